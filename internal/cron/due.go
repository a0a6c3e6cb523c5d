package cron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	robfig "github.com/robfig/cron/v3"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	// onTime is how late a run may start and still count as on schedule.
	onTime = 5 * time.Minute
	// maxAttempts bounds the runs for one scheduled time, so that a job which
	// brings its process down does not do so all day.
	maxAttempts = 3
	// retryAfter is the pause before a run that failed is repeated.
	retryAfter = 10 * time.Minute
	// utcZone is the zone of a job that is not per zone.
	utcZone = "UTC"
)

// parse reads a cron expression of five fields in an explicit zone.
func parse(spec string, loc *time.Location) (robfig.Schedule, error) {
	schedule, err := robfig.ParseStandard(spec)
	if err != nil {
		return nil, err
	}
	s, ok := schedule.(*robfig.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q is an interval, which has no scheduled times that replicas agree on", spec)
	}
	s.Location = loc
	return s, nil
}

// lookBack are the windows in which the last scheduled time is searched, so
// that a yearly schedule is found and an hourly one needs few steps.
var lookBack = []time.Duration{
	2 * time.Hour,
	26 * time.Hour,
	8 * 24 * time.Hour,
	32 * 24 * time.Hour,
	367 * 24 * time.Hour,
}

// lastDue returns the last scheduled time that is not after now and is after
// since, or the zero time.
func lastDue(schedule robfig.Schedule, since, now time.Time) time.Time {
	for _, window := range lookBack {
		var last time.Time
		for t := schedule.Next(now.Add(-window)); !t.IsZero() && !t.After(now); t = schedule.Next(t) {
			last = t
		}
		if last.After(since) {
			return last
		}
		if !last.IsZero() || now.Add(-window).Before(since) {
			break
		}
	}
	return time.Time{}
}

// entry is a job in one time zone.
type entry struct {
	zone     string
	schedule robfig.Schedule
}

// entries returns the entries of a job for the zones in use now.
func (r *Registry) entries(ctx context.Context, db pg.Querier, job Job) ([]entry, error) {
	zones := []string{utcZone}
	if job.PerZone {
		var err error
		if zones, err = zonesInUse(ctx, db); err != nil {
			return nil, err
		}
	}
	var entries []entry
	for _, zone := range zones {
		loc, err := r.zones.load(zone)
		if err != nil {
			continue
		}
		schedule, err := parse(job.Schedule, loc)
		if err != nil {
			return nil, fmt.Errorf("schedule of job %s: %w", job.Name, err)
		}
		entries = append(entries, entry{zone: zone, schedule: schedule})
	}
	return entries, nil
}

// zonesInUse returns the zones of the restaurants that are active, or that left
// a day database behind which is still to be archived and dropped. An
// installation without any has the default zone.
func zonesInUse(ctx context.Context, db pg.Querier) ([]string, error) {
	rows, err := db.Query(ctx, `
		select distinct timezone
		from restaurants r
		where active
		   or exists (
		     select from day_databases d
		     where d.company_id = r.company_id
		       and d.restaurant_id = r.restaurant_id
		       and d.state <> 'DROPPED')
		order by timezone`)
	if err != nil {
		return nil, fmt.Errorf("zones in use: %w", err)
	}
	zones, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("zones in use: %w", err)
	}
	if len(zones) == 0 {
		zones = []string{daydb.DefaultTimezone}
	}
	return zones, nil
}

// dueTime is a scheduled time that waits for its run.
type dueTime struct {
	zone    string
	at      time.Time
	trigger string
}

// due returns the first scheduled time of the job that waits for its run, nil
// for none.
func (r *Registry) due(ctx context.Context, db pg.Querier, job Job) (*dueTime, error) {
	paused, err := loadPause(ctx, db, job.Name)
	if err != nil || paused != nil {
		return nil, err
	}
	entries, err := r.entries(ctx, db, job)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		since, now, err := knownSince(ctx, db, job.Name, e.zone)
		if err != nil {
			return nil, err
		}
		at := lastDue(e.schedule, since, now)
		late := now.Sub(at) > onTime
		if at.IsZero() || late && !r.catchUp {
			continue
		}
		again, open, err := isOpen(ctx, db, job, e.zone, at)
		if err != nil {
			return nil, err
		}
		if !open {
			continue
		}
		due := &dueTime{zone: e.zone, at: at, trigger: TriggerSchedule}
		if late || again {
			due.trigger = TriggerCatchUp
		}
		return due, nil
	}
	return nil, nil
}

// knownSince returns since when this installation knows the job in the zone,
// which begins with the first call, and Postgres' now.
func knownSince(ctx context.Context, db pg.Querier, job, zone string) (since, now time.Time, err error) {
	err = db.QueryRow(ctx, `select since, now() from cron_starts where cron = $1 and zone = $2`, job, zone).
		Scan(&since, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		err = db.QueryRow(ctx, `
			insert into cron_starts (cron, zone)
			values ($1, $2)
			on conflict on constraint cron_starts_pkey do update set cron = excluded.cron
			returning since, now()`, job, zone).Scan(&since, &now)
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("start of %s in %s: %w", job, zone, err)
	}
	return since, now, nil
}

// isOpen reports whether a scheduled time waits for a run, and whether that
// would be another attempt. A run that was cut off has not served its time. One
// that failed, as a whole or in part where that counts, has its attempts bounded,
// and a pause before the next.
func isOpen(ctx context.Context, db pg.Querier, job Job, zone string, at time.Time) (again, open bool, err error) {
	var (
		runs, attempts int
		served         bool
		resting        bool
	)
	err = db.QueryRow(ctx, `
		select
		  count(*),
		  count(*) filter (where interrupted_by is distinct from 'stop'),
		  coalesce(bool_or(state <> 'failed' and (state <> 'partial' or not @repeat_partial)), false),
		  coalesce(bool_or(interrupted_by is null and finished_at > now() - @pause::interval), false)
		from cron_runs
		where cron = @cron
		  and zone = @zone
		  and due_at = @due`,
		pgx.NamedArgs{"cron": job.Name, "zone": zone, "due": at, "pause": retryAfter, "repeat_partial": job.RepeatPartial}).
		Scan(&runs, &attempts, &served, &resting)
	if err != nil {
		return false, false, fmt.Errorf("runs of %s due at %s: %w", job.Name, at.UTC().Format(time.RFC3339), err)
	}
	return runs > 0, !served && !resting && attempts < maxAttempts, nil
}

// zones loads time zones, and complains once of each that does not load.
type zones struct {
	logger *slog.Logger
	mu     sync.Mutex
	known  map[string]*time.Location
}

func newZones(logger *slog.Logger) *zones {
	return &zones{logger: logger, known: make(map[string]*time.Location)}
}

var errUnknownZone = errors.New("unknown time zone")

// load returns errUnknownZone for a zone that was typed into the database by
// hand: its restaurants are left out, the others are not.
func (z *zones) load(name string) (*time.Location, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	loc, seen := z.known[name]
	if !seen {
		var err error
		if loc, err = time.LoadLocation(name); err != nil {
			z.logger.Error("restaurants in an unknown time zone are left out by every cron", "timezone", name, "error", err)
		}
		z.known[name] = loc
	}
	if loc == nil {
		return nil, errUnknownZone
	}
	return loc, nil
}
