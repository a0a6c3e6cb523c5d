package cron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
)

// Entry is a job in one of the time zones in use.
type Entry struct {
	Name        string `json:"name"`
	Schedule    string `json:"schedule"`
	Zone        string `json:"zone"`
	Description string `json:"description"`
	Destructive bool   `json:"destructive"`
	// NextRunAt is nil while the job is paused.
	NextRunAt *time.Time `json:"nextRunAt"`
	// Running says that a run of the job is under way, whatever its zone.
	Running      bool   `json:"running"`
	RunningRunID *int64 `json:"runningRunId"`
	Paused       bool   `json:"paused"`
	Pause        *Pause `json:"pause"`
	// LastRun is the last that covered this zone; nil if there was none.
	LastRun *Run `json:"lastRun"`
	// LastWholeRun is the last that has ended and covered all of this zone, in
	// earnest: no canary's and no dry run hides that a night failed.
	LastWholeRun *Run `json:"lastWholeRun"`
}

// Pause says who paused a job, when and why.
type Pause struct {
	Reason string    `json:"reason"`
	Actor  string    `json:"actor"`
	Since  time.Time `json:"since"`
}

// Destructive reports whether a job may drop a database; ErrUnknownCron for a
// job that is not registered.
func (r *Registry) Destructive(name string) (bool, error) {
	job, err := r.job(name)
	return job.Destructive, err
}

// List returns all entries: the jobs in the order of their registration, each
// in every zone in use.
func (r *Registry) List(ctx context.Context) ([]Entry, error) {
	var all []Entry
	for _, job := range r.jobs {
		entries, err := r.listJob(ctx, job)
		if err != nil {
			return nil, fmt.Errorf("list crons: %w", pg.Translate(err))
		}
		all = append(all, entries...)
	}
	return all, nil
}

func (r *Registry) listJob(ctx context.Context, job Job) ([]Entry, error) {
	zones, err := r.entries(ctx, r.pool, job)
	if err != nil {
		return nil, err
	}
	var now time.Time
	if err := r.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return nil, err
	}
	paused, err := loadPause(ctx, r.pool, job.Name)
	if err != nil {
		return nil, err
	}
	running, err := r.runningID(ctx, job.Name)
	if err != nil {
		return nil, err
	}
	var all []Entry
	for _, z := range zones {
		e := Entry{
			Name:        job.Name,
			Schedule:    job.Schedule,
			Zone:        z.zone,
			Description: job.Description,
			Destructive: job.Destructive,
			Running:     running != 0,
			Paused:      paused != nil,
			Pause:       paused,
		}
		if running != 0 {
			e.RunningRunID = &running
		}
		if next := z.schedule.Next(now); paused == nil && !next.IsZero() {
			next = next.UTC()
			e.NextRunAt = &next
		}
		if e.LastRun, err = lastRun(ctx, r.pool, job.Name, z.zone, false); err != nil {
			return nil, err
		}
		if e.LastWholeRun, err = lastRun(ctx, r.pool, job.Name, z.zone, true); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func lastRun(ctx context.Context, db pg.Querier, job, zone string, whole bool) (*Run, error) {
	rows, err := db.Query(ctx, `select `+runColumns+` from cron_runs
		where cron = $1
		  and (zone = $2 or zone is null)
		  and (not $3 or (scope = '{}' and not dry_run and state <> 'running'))
		order by id desc
		limit 1`, job, zone, whole)
	if err != nil {
		return nil, err
	}
	last, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &last, nil
}

// Pause keeps a job from running, by schedule or by hand, until Resume. A run
// that is under way goes on. Pausing a paused job changes the reason.
func (r *Registry) Pause(ctx context.Context, name, reason, actor string) error {
	if _, err := r.job(name); err != nil {
		return err
	}
	_, err := r.pool.Exec(ctx, `
		insert into cron_pauses (cron, reason, actor)
		values ($1, $2, $3)
		on conflict on constraint cron_pauses_pkey do update set
		  reason = excluded.reason,
		  actor = excluded.actor`, name, reason, actor)
	if err != nil {
		return fmt.Errorf("pause %s: %w", name, pg.Translate(err))
	}
	r.logger.InfoContext(ctx, "cron paused", "cron", name, "actor", actor, "reason", reason)
	return nil
}

// Resume lets a job run again; the last scheduled time that it missed is caught
// up. Resuming a job that is not paused is no error.
func (r *Registry) Resume(ctx context.Context, name, actor string) error {
	if _, err := r.job(name); err != nil {
		return err
	}
	if _, err := r.pool.Exec(ctx, `delete from cron_pauses where cron = $1`, name); err != nil {
		return fmt.Errorf("resume %s: %w", name, pg.Translate(err))
	}
	r.logger.InfoContext(ctx, "cron resumed", "cron", name, "actor", actor)
	return nil
}

func loadPause(ctx context.Context, db pg.Querier, job string) (*Pause, error) {
	var p Pause
	err := db.QueryRow(ctx, `select reason, actor, since from cron_pauses where cron = $1`, job).
		Scan(&p.Reason, &p.Actor, &p.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pause of %s: %w", job, err)
	}
	return &p, nil
}
