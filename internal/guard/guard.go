// Package guard decides when a day database may go. It evaluates three locks,
// moves days from DRAINING to ARCHIVED and on, seals what is to be dropped, and
// holds the one function that deletes a database.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/run"
)

// Name of the cron.
const Name = "rolling-db-drop-eval"

// Schedule is when the guard runs, in each restaurant's own zone.
const Schedule = "0 4 * * *"

// ErrBusinessDay is returned when a run would pretend that a later day is
// today. Only a dry run may: a day that has not come makes databases look old.
var ErrBusinessDay = errors.New("a later business day than today needs dryRun")

// Couch is what the guard needs of CouchDB. Every call answers with the
// sentinels of package couch; a call without an answer may have had its effect.
type Couch interface {
	Ping(ctx context.Context) error
	Info(ctx context.Context, db string) (couch.Info, error)
	Pending(ctx context.Context, db string, since couch.Seq) (int64, error)
	Names(ctx context.Context, prefix string) ([]string, error)
	Security(ctx context.Context, db string) (couch.Security, error)
	PutSecurity(ctx context.Context, db string, s couch.Security) error
	Doc(ctx context.Context, db, id, rev string) ([]byte, error)
	PutDesign(ctx context.Context, db, id, validate string) error
	DropDesign(ctx context.Context, db, id string) error
	Delete(ctx context.Context, db string) error
}

// Archive is what the guard needs of the archiver. All of it is repeatable.
type Archive interface {
	CatchUp(ctx context.Context, d daydb.DayDB, lease fence.Lease) (archive.Position, error)
	Blockers(ctx context.Context, sourceID int64) ([]archive.Blocker, error)
	Reconcile(ctx context.Context, d daydb.DayDB, pos archive.Position) (archive.Reconciliation, error)
	Rewind(ctx context.Context, d daydb.DayDB, pos archive.Position, lease fence.Lease) error
	Prove(ctx context.Context, d daydb.DayDB, pos archive.Position) (archive.Proof, error)
}

// Options of a guard.
type Options struct {
	Pool    *pgxpool.Pool
	Couch   Couch
	Archive Archive
	Leases  *fence.Leases
	Log     *slog.Logger
	// Env is the prefix of the database names of this environment.
	Env string
	// TTLDays is the age in business days that a day must exceed to be dropped.
	TTLDays int
	// Settle is the least time between a seal and its drop.
	Settle time.Duration
	// UnsealPause is the time between the two halves of lifting a seal, in which
	// CouchDB forgets the design document that it has cached.
	UnsealPause time.Duration
	// Silence is how long a device may not be heard before a day that it holds
	// documents of does not wait for it any more.
	Silence time.Duration
	// Undelivered says, by the ids of days, what the continuity plane has yet to
	// bring to them; nil while it is off.
	Undelivered func(ctx context.Context, db daydb.Querier, dayIDs []int64) (map[int64]Undelivered, error)
	// Workers is how many days are looked at at once.
	Workers int
}

// Guard evaluates and drops day databases.
type Guard struct {
	Options
	// deleteWithin bounds the time between the start of the intention's
	// transaction and the DELETE. A process that was stopped in between decides
	// anew. The clock is the monotonic one.
	deleteWithin time.Duration
}

// New returns a guard.
func New(opts Options) *Guard { return &Guard{Options: opts, deleteWithin: deleteWithin} }

// leaseWait is how long an evaluation waits for the archiver to be done with a
// day; both start at the same hour.
const leaseWait = 10 * time.Minute

// Run looks at every DRAINING, ARCHIVED and DROPPABLE day of the companies
// whose rollingDb is on, and then for databases that should not be there. What
// fails for one day is reported and does not stop the others.
func (g *Guard) Run(ctx context.Context, r run.Run) error {
	all, err := flags.All(ctx, g.Pool)
	if err != nil {
		return err
	}
	regs, err := daydb.Restaurants(ctx, g.Pool)
	if err != nil {
		return err
	}
	zones := make(map[daydb.Restaurant]string, len(regs))
	covered := regs[:0:0]
	for _, reg := range regs {
		zones[reg.Restaurant] = reg.Timezone
		if r.Scope.Covers(reg.Restaurant) && (r.Zone == "" || r.Zone == reg.Timezone) {
			covered = append(covered, reg)
		}
	}
	days, err := daydb.List(ctx, g.Pool, daydb.Filter{
		CompanyID:    r.Scope.CompanyID,
		RestaurantID: r.Scope.RestaurantID,
		States:       []daydb.State{daydb.Draining, daydb.Archived, daydb.Droppable},
	})
	if err != nil {
		return err
	}
	todays, err := g.todays(ctx, r, covered)
	if err != nil {
		return err
	}
	around, err := g.elsewhereOf(ctx, g.Pool, idsOf(days)...)
	if err != nil {
		return err
	}

	var (
		quiet  confirmations
		due    dueDays
		groups errgroup.Group
	)
	groups.SetLimit(max(g.Workers, 1))
	leftOut := make(map[daydb.Restaurant]bool)
	for _, d := range days {
		zone := zones[d.Restaurant]
		if !all[d.CompanyID].RollingDb || r.Zone != "" && zone != r.Zone {
			continue
		}
		if todays[zone].IsZero() {
			// Once for the restaurant, not for each of its days.
			if !leftOut[d.Restaurant] {
				g.failed(r, daydb.DayDB{Restaurant: d.Restaurant}, unknownZone(zone))
			}
			leftOut[d.Restaurant] = true
			continue
		}
		groups.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			r.Report.Add("evaluated", 1)
			isDue, err := g.look(ctx, r, d, todays[zone], around[d.ID], &quiet)
			if err != nil {
				g.failed(r, d, err)
			}
			if isDue {
				due.add(d.Name)
			}
			return nil
		})
	}
	_ = groups.Wait() // Failures are in the report.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := quiet.flush(ctx, g.Pool, r.DryRun); err != nil {
		return err
	}
	if err := r.Each(ctx, g.Workers, due.names, g.Unit); err != nil {
		return err
	}
	if r.Scope.CompanyID == "" && r.Scope.RestaurantID == "" {
		return g.findGhosts(ctx, r)
	}
	return nil
}

// Unit evaluates one day, under its lease, and takes the step that follows.
func (g *Guard) Unit(ctx context.Context, r run.Run, name string) {
	d, err := daydb.Load(ctx, g.Pool, name)
	if err != nil {
		r.Report.Fail(run.Failure{DBName: name, Step: "evaluate", Error: err.Error()})
		return
	}
	if err := g.evaluateOne(ctx, r, d); err != nil {
		g.failed(r, d, err)
	}
}

func (g *Guard) evaluateOne(ctx context.Context, r run.Run, d daydb.DayDB) error {
	reg, err := daydb.LoadRestaurant(ctx, g.Pool, d.Restaurant)
	if err != nil {
		return err
	}
	todays, err := g.todays(ctx, r, []daydb.Registration{reg})
	if err != nil {
		return err
	}
	if todays[reg.Timezone].IsZero() {
		return unknownZone(reg.Timezone)
	}
	return g.Leases.HoldWait(ctx, archive.LeaseName(d.Name), leaseWait, func(ctx context.Context, lease fence.Lease) error {
		return g.step(ctx, r, d.Name, todays[reg.Timezone], lease)
	})
}

func idsOf(days []daydb.DayDB) []int64 {
	ids := make([]int64, len(days))
	for i, d := range days {
		ids[i] = d.ID
	}
	return ids
}

// todays returns the business day that counts as today, by zone: the zero Day for
// a zone that is unknown, whose restaurants are left out and no others.
func (g *Guard) todays(ctx context.Context, r run.Run, regs []daydb.Registration) (map[string]daydb.Day, error) {
	todays := make(map[string]daydb.Day)
	for _, reg := range regs {
		if _, known := todays[reg.Timezone]; known {
			continue
		}
		today, err := daydb.Today(ctx, g.Pool, reg.Timezone)
		if errors.Is(err, daydb.ErrUnknownZone) {
			todays[reg.Timezone] = daydb.Day{}
			continue
		}
		if err != nil {
			return nil, err
		}
		if pretended := r.Scope.BusinessDay; !pretended.IsZero() {
			if today.Before(pretended) && !r.DryRun {
				return nil, fmt.Errorf("%w: %s is later than %s, today's business day in %s",
					ErrBusinessDay, pretended, today, reg.Timezone)
			}
			today = pretended
		}
		todays[reg.Timezone] = today
	}
	return todays, nil
}

func unknownZone(zone string) error {
	return fmt.Errorf("%w %q: `rollingd restaurants put` corrects it", daydb.ErrUnknownZone, zone)
}

// failed reports what went wrong for one day.
func (g *Guard) failed(r run.Run, d daydb.DayDB, err error) {
	step := "evaluate"
	var at *stepError
	if errors.As(err, &at) {
		step = at.step
	}
	r.Report.Fail(run.Failure{
		CompanyID:    d.CompanyID,
		RestaurantID: d.RestaurantID,
		DBName:       d.Name,
		Step:         step,
		Error:        err.Error(),
	})
}

// stepError says in which step of the protocol something went wrong.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

func at(step string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{step: step, err: err}
}

// dueDays collects the days that are to be evaluated.
type dueDays struct {
	mu    sync.Mutex
	names []string
}

func (d *dueDays) add(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names = append(d.names, name)
}

// confirmations collects the evaluations that a run found unchanged, to write
// them in one statement.
type confirmations struct {
	mu  sync.Mutex
	ids []int64
}

func (c *confirmations) add(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids = append(c.ids, id)
}

func (c *confirmations) flush(ctx context.Context, pool *pgxpool.Pool, dryRun bool) error {
	if len(c.ids) == 0 || dryRun {
		return nil
	}
	return confirm(ctx, pool, c.ids)
}
