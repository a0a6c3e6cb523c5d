package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/backup"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/rotation"
	"github.com/rollingd/rollingd/internal/run"
)

// backupJobs are the crons that dump the databases into a folder, none without
// one.
func (o Options) backupJobs() ([]cron.Job, error) {
	if o.BackupDir == "" {
		return nil, nil
	}
	b, err := backup.New(backup.Options{Dir: o.BackupDir, PrimaryURL: o.DatabaseURL, HostedURL: o.HostedOwnerURL, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	all := []cron.Job{
		{
			Name:        backup.PrimaryName,
			Description: "dumps the primary's Postgres into ROLLINGD_BACKUP_DIR, and keeps 14 days",
			Schedule:    backup.PrimarySchedule,
			Run:         b.Primary,
		},
		{
			Name:        backup.RestoreTestName,
			Description: "restores the newest dump of the primary into a scratch database, counts, and drops that",
			Schedule:    backup.RestoreTestSchedule,
			Run:         b.RestoreTest,
		},
	}
	if o.HostedOwnerURL != "" {
		all = append(all, cron.Job{
			Name:        backup.ContinuityName,
			Description: "dumps the queue, the snapshots, the events and the fence of the hosted Postgres",
			Schedule:    backup.ContinuitySchedule,
			Run:         b.Continuity,
		})
	}
	return all, nil
}

// jobs are the crons of the primary, each in every restaurant's own zone.
func jobs(pool *pgxpool.Pool, rotator *rotation.Rotator, drops *guard.Guard, archiver *archive.Archiver) []cron.Job {
	return []cron.Job{
		{
			Name:        rotation.Name,
			Description: "creates and switches day databases, warms core, writes the manifest, routes devices; companies with rollingDb",
			Schedule:    "0 5 * * *",
			PerZone:     true,
			// A CouchDB that was away for a minute at five must not leave the tills in
			// yesterday's database until tomorrow.
			RepeatPartial: true,
			Check: func(ctx context.Context, scope run.Scope, _ bool) error {
				return rotator.CheckScope(ctx, scope)
			},
			Run: rotator.Run,
		},
		{
			Name:        guard.Name,
			Description: "evaluates the three locks, archives, seals and drops day databases; companies with rollingDb, the drop with rollingDbDrop",
			Schedule:    guard.Schedule,
			PerZone:     true,
			Destructive: true,
			Check:       evaluationDay(pool),
			Run:         drops.Run,
		},
		{
			Name:        archive.Name,
			Description: "copies finished documents to Postgres; all companies",
			Schedule:    "0 4 * * *",
			PerZone:     true,
			Check: func(_ context.Context, scope run.Scope, _ bool) error {
				if !scope.BusinessDay.IsZero() {
					return &cron.ScopeError{Field: "businessDay", Reason: "archive takes no businessDay: it copies what is finished, of every day"}
				}
				return nil
			},
			Run: archiver.Run,
		},
	}
}

// evaluationDay refuses a run in earnest that pretends a later day than today:
// a day that has not come makes databases look old.
func evaluationDay(pool *pgxpool.Pool) func(ctx context.Context, scope run.Scope, dryRun bool) error {
	return func(ctx context.Context, scope run.Scope, dryRun bool) error {
		if scope.BusinessDay.IsZero() || dryRun {
			return nil
		}
		regs, err := daydb.Restaurants(ctx, pool)
		if err != nil {
			return err
		}
		asked := make(map[string]bool)
		for _, reg := range regs {
			if !scope.Covers(reg.Restaurant) || asked[reg.Timezone] {
				continue
			}
			asked[reg.Timezone] = true
			today, err := daydb.Today(ctx, pool, reg.Timezone)
			if errors.Is(err, daydb.ErrUnknownZone) {
				continue // The run leaves its restaurants out, and says so.
			}
			if err != nil {
				return err
			}
			if today.Before(scope.BusinessDay) {
				return fmt.Errorf("%w: today is %s in %s", guard.ErrBusinessDay, today, reg.Timezone)
			}
		}
		return nil
	}
}
