package cron

import (
	"context"
	"errors"
	"fmt"
	"time"

	robfig "github.com/robfig/cron/v3"

	"github.com/rollingd/rollingd/internal/fence"
)

// watch runs what is due of one job, whenever the clock or the minute says that
// it is time to look.
func (r *Registry) watch(ctx context.Context, clock *robfig.Cron, job Job) {
	alarm := newAlarm(clock)
	defer alarm.clear()
	minute := time.NewTicker(lookEvery)
	defer minute.Stop()
	for {
		if err := r.runDue(ctx, job); err != nil && ctx.Err() == nil {
			r.logger.ErrorContext(ctx, "cannot run what is due", "cron", job.Name, "error", err)
		}
		if err := r.tellLastSuccess(ctx, job); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "metrics of a cron are out of date", "cron", job.Name, "error", err)
		}
		if entries, err := r.entries(ctx, r.pool, job); err == nil {
			alarm.set(entries)
		}
		select {
		case <-ctx.Done():
			return
		case <-minute.C:
		case <-alarm.rings:
		}
	}
}

// RunDue runs what is due of a job now and returns when it is done, as the
// registry does by itself between Start and Stop. Nothing being due is no
// error, nor is a run that failed: its row says so.
func (r *Registry) RunDue(ctx context.Context, name string) error {
	job, err := r.job(name)
	if err != nil {
		return err
	}
	return r.runDue(ctx, job)
}

func (r *Registry) runDue(ctx context.Context, job Job) error {
	// A look without the lease: most looks find nothing, and to take the lease for
	// them would stand in the way of a manual run.
	needed, err := r.needed(ctx, job)
	if err != nil || !needed {
		return err
	}
	err = r.leases.Hold(ctx, leaseName(job.Name), func(ctx context.Context, lease fence.Lease) error {
		for {
			row, err := r.beginDue(ctx, lease, job)
			if err != nil || row == nil {
				return err
			}
			r.execute(ctx, lease, job, *row)
		}
	})
	if held := (*fence.HeldError)(nil); errors.As(err, &held) {
		// Another replica was faster, or a run is under way. The next look sees.
		return nil
	}
	return err
}

// needed reports whether a scheduled time waits for its run, or a run has lost
// its process and must be closed.
func (r *Registry) needed(ctx context.Context, job Job) (bool, error) {
	orphaned, err := hasOrphan(ctx, r.pool, job.Name)
	if err != nil || orphaned {
		return orphaned, err
	}
	due, err := r.due(ctx, r.pool, job)
	return due != nil, err
}

// leaseName is the lease of which a run of the job holds the only one.
func leaseName(job string) string { return "cron/" + job }

// alarm rings at the scheduled times of a job, by the clock of this process,
// which is good enough to wake somebody up.
type alarm struct {
	clock *robfig.Cron
	ids   map[string]robfig.EntryID
	rings chan struct{}
}

func newAlarm(clock *robfig.Cron) *alarm {
	return &alarm{clock: clock, ids: make(map[string]robfig.EntryID), rings: make(chan struct{}, 1)}
}

// set keeps an entry of the clock for each of these, and none for others.
func (a *alarm) set(entries []entry) {
	wanted := make(map[string]bool)
	for _, e := range entries {
		wanted[e.zone] = true
		if _, known := a.ids[e.zone]; !known {
			a.ids[e.zone] = a.clock.Schedule(e.schedule, robfig.FuncJob(a.ring))
		}
	}
	for zone, id := range a.ids {
		if !wanted[zone] {
			a.clock.Remove(id)
			delete(a.ids, zone)
		}
	}
}

func (a *alarm) clear() { a.set(nil) }

func (a *alarm) ring() {
	select {
	case a.rings <- struct{}{}:
	default: // It rings already.
	}
}

// tellLastSuccess sets the gauge from what is on record, so that it is right in
// a replica that runs nothing, and after a restart. It is that of the zone whose
// last success is the oldest, or else of a new one since it is known: a zone that
// fails every night must not hide behind one that does not.
func (r *Registry) tellLastSuccess(ctx context.Context, job Job) error {
	entries, err := r.entries(ctx, r.pool, job)
	if err != nil {
		return err
	}
	zones := make([]string, len(entries))
	for i, e := range entries {
		zones[i] = e.zone
	}
	var at float64
	err = r.pool.QueryRow(ctx, `
		select coalesce(extract(epoch from min(coalesce(succeeded.at, known.since))), 0)::float8
		from unnest($2::text[]) used (zone)
		left join cron_starts known on known.cron = $1 and known.zone = used.zone
		left join lateral (
		  select max(finished_at) as at
		  from cron_runs
		  where cron = $1
		    and (zone = used.zone or zone is null)
		    and state = 'succeeded'
		    and not dry_run
		    and scope = '{}') succeeded on true`, job.Name, zones).Scan(&at)
	if err != nil {
		return fmt.Errorf("last success: %w", err)
	}
	r.metrics.lastSuccess.WithLabelValues(job.Name).Set(at)
	return nil
}
