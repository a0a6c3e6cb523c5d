package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/backup"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	purgeName = "continuity-purge"
	// purgeSchedule is when nobody sells.
	purgeSchedule = "0 8 * * *"
	// retention is longer than the primary's backups go back: a primary that is
	// restored is given again what it has forgotten. A backup is removed by the
	// next one, so the oldest is up to a day older than backups are kept.
	retention = backup.DefaultKeep + 2*24*time.Hour
)

// purgeJobs are the cron that deletes what the hosted queue has settled long ago.
func (p *continuityPlane) purgeJobs(pool *pgxpool.Pool, backupDir string) []cron.Job {
	if p == nil || p.admin.Queue == nil {
		return nil
	}
	return []cron.Job{{
		Name:        purgeName,
		Description: "deletes from the hosted Postgres commands that were acked and events that were delivered before the oldest backup of the primary, and events that nobody takes and snapshots of orders and payments that are as old",
		Schedule:    purgeSchedule,
		Run: func(ctx context.Context, r run.Run) error {
			keep, err := keepSettled(ctx, pool, backupDir)
			if err != nil {
				return fmt.Errorf("how far backups go back: %w", err)
			}
			if r.DryRun {
				return nil
			}
			return errors.Join(
				untilNone(ctx, r, "purged", keep, p.admin.Queue.Purge),
				untilNone(ctx, r, "unclaimed", keep, p.outbox.PurgeUnclaimed),
				untilNone(ctx, r, "snapshots", keep, p.snapshotsOf(primary.OrderKey(""))),
				untilNone(ctx, r, "snapshots", keep, p.snapshotsOf(primary.PaymentKey(""))),
			)
		},
	}}
}

// snapshotsOf purges the snapshots whose keys begin so.
func (p *continuityPlane) snapshotsOf(prefix string) func(context.Context, time.Duration) (int, error) {
	return func(ctx context.Context, keep time.Duration) (int, error) {
		return p.snapshots.Purge(ctx, prefix, keep)
	}
}

// untilNone repeats a purge while it deletes any.
func untilNone(ctx context.Context, r run.Run, counter string, keep time.Duration, purge func(context.Context, time.Duration) (int, error)) error {
	for {
		n, err := purge(ctx, keep)
		if err != nil || n == 0 {
			return err
		}
		r.Report.Add(counter, int64(n))
	}
}

// keepSettled is how long what was settled is kept: the retention, or for longer
// than the oldest backup that is there. The newest backup is never removed,
// however old it is.
func keepSettled(ctx context.Context, pool *pgxpool.Pool, backupDir string) (time.Duration, error) {
	if backupDir == "" {
		return retention, nil
	}
	backups, err := backup.List(backupDir, backup.PrimaryKind)
	if err != nil || len(backups) == 0 {
		return retention, err
	}
	oldest := backups[len(backups)-1]
	var age time.Duration
	if err := pool.QueryRow(ctx, `select now() - $1::timestamptz`, oldest.TakenAt).Scan(&age); err != nil {
		return 0, pg.Translate(err)
	}
	return max(retention, age+24*time.Hour), nil
}
