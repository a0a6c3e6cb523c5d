package archive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// Name of the cron.
const Name = "archive"

// Run is the job: it archives each day database from ACTIVE to
// DROPPABLE, and the legacy databases of tenants whose devices are not routed.
// Each database is archived under its own lease; one that fails is in the report
// and stops no other. One without news costs two requests, no write and no lease.
//
// The counters are databases, quiet, busy (somebody else is at it, or at its tables), moving (still
// being written), documents, attachments, rejected and unassigned (operational
// documents of a legacy database that name no restaurant of it).
func (a *Archiver) Run(ctx context.Context, r run.Run) error {
	if !r.DryRun {
		a.monthsAhead(ctx)
	}
	restaurants, company, over, err := a.tenants(ctx)
	if err != nil {
		return err
	}
	days, err := daydb.List(ctx, a.pool, daydb.Filter{
		CompanyID:    r.Scope.CompanyID,
		RestaurantID: r.Scope.RestaurantID,
		States:       archivedStates,
	})
	if err != nil {
		return err
	}

	inScope := make(map[daydb.Restaurant]bool)
	for _, reg := range restaurants {
		inScope[reg.Restaurant] = r.Scope.Covers(reg.Restaurant) && (r.Zone == "" || r.Zone == reg.Timezone)
	}
	databases := make(map[string]func(context.Context, run.Run))
	for _, l := range legacies(restaurants, company, over, r.Report) {
		if l.anyIn(inScope) {
			databases[l.db] = func(ctx context.Context, r run.Run) { a.legacyUnit(ctx, r, l) }
		}
	}
	var todo []daydb.DayDB
	for _, day := range days {
		if inScope[day.Restaurant] {
			todo = append(todo, day)
		}
	}
	if r.Share != nil {
		// What is quiet costs two requests, and less than to hand it to another.
		todo = a.withNews(ctx, r, todo)
	}
	for _, day := range todo {
		databases[day.Name] = func(ctx context.Context, r run.Run) { a.dayUnit(ctx, r, day) }
	}
	return r.Each(ctx, a.workers, slices.Sorted(maps.Keys(databases)), func(ctx context.Context, r run.Run, db string) {
		databases[db](ctx, r)
	})
}

// tenants returns what decides from where a restaurant is archived.
func (a *Archiver) tenants(ctx context.Context) ([]daydb.Registration, map[string]flags.Flags, map[daydb.Restaurant]handover, error) {
	restaurants, err := daydb.Restaurants(ctx, a.pool)
	if err != nil {
		return nil, nil, nil, err
	}
	company, err := flags.All(ctx, a.pool)
	if err != nil {
		return nil, nil, nil, err
	}
	over, err := handovers(ctx, a.pool)
	return restaurants, company, over, err
}

// Unit archives one database of a run: a day's, or a legacy one.
func (a *Archiver) Unit(ctx context.Context, r run.Run, db string) {
	if _, err := daydb.ParseName(a.env, db); err == nil {
		day, err := daydb.Load(ctx, a.pool, db)
		if err != nil {
			a.runOne(ctx, r, db, daydb.Restaurant{}, func() error { return err })
			return
		}
		a.dayUnit(ctx, r, day)
		return
	}
	l, err := a.legacyOf(ctx, db)
	if err != nil {
		a.runOne(ctx, r, db, daydb.Restaurant{}, func() error { return err })
		return
	}
	if l != nil {
		a.legacyUnit(ctx, r, *l)
	}
}

func (a *Archiver) dayUnit(ctx context.Context, r run.Run, day daydb.DayDB) {
	a.runOne(ctx, r, day.Name, day.Restaurant, func() error { return a.runDay(ctx, r, day) })
}

func (a *Archiver) legacyUnit(ctx context.Context, r run.Run, l legacy) {
	l = l.within(r.Scope)
	a.runOne(ctx, r, l.db, daydb.Restaurant{}, func() error { return a.runLegacy(ctx, r, l) })
}

// legacyOf returns a legacy database as it is now, nil if nothing is archived
// from it any more.
func (a *Archiver) legacyOf(ctx context.Context, db string) (*legacy, error) {
	restaurants, company, over, err := a.tenants(ctx)
	if err != nil {
		return nil, err
	}
	// A zone that is unknown was reported when the run was planned.
	for _, l := range legacies(restaurants, company, over, &run.Report{}) {
		if l.db == db {
			return &l, nil
		}
	}
	return nil, nil
}

// withNews leaves out the days that are quiet.
func (a *Archiver) withNews(ctx context.Context, r run.Run, days []daydb.DayDB) []daydb.DayDB {
	quiet := make([]bool, len(days))
	var group errgroup.Group
	group.SetLimit(a.workers)
	for i, day := range days {
		group.Go(func() error {
			s, err := findSource(ctx, a.pool, identityOf(day))
			if err == nil {
				quiet[i], err = a.quietDay(ctx, r, s, day)
			}
			return err
		})
	}
	_ = group.Wait() // Whoever archives a database meets its error again, and reports it.
	var left []daydb.DayDB
	for i, day := range days {
		if quiet[i] {
			r.Report.Add("databases", 1)
		} else {
			left = append(left, day)
		}
	}
	return left
}

// archivedStates are those of days that may have something new to archive.
var archivedStates = []daydb.State{daydb.Active, daydb.Draining, daydb.Archived, daydb.Droppable}

// runOne archives one database and reports how it went.
func (a *Archiver) runOne(ctx context.Context, r run.Run, db string, owner daydb.Restaurant, archive func() error) {
	if ctx.Err() != nil {
		return
	}
	start := time.Now()
	r.Report.Add("databases", 1)
	err := archive()
	switch {
	case err == nil:
	case errors.Is(err, fence.ErrHeld), pg.Code(err) == lockNotAvailable:
		r.Report.Add("busy", 1)
	case errors.Is(err, ErrMoving):
		r.Report.Add("moving", 1)
	default:
		r.Report.Fail(run.Failure{
			CompanyID:    owner.CompanyID,
			RestaurantID: owner.RestaurantID,
			DBName:       db,
			Step:         "archive",
			Error:        err.Error(),
		})
		a.log.WarnContext(ctx, "database was not archived",
			"day_db", db, "run_id", r.ID, "elapsed", time.Since(start), "error", err)
	}
}

// count adds what a database gave to the report and to the log.
func (a *Archiver) count(ctx context.Context, r run.Run, db string, t tally) {
	if t == (tally{}) {
		return
	}
	r.Report.Add("documents", t.documents)
	r.Report.Add("attachments", t.attachments)
	r.Report.Add("rejected", t.rejected)
	a.log.InfoContext(ctx, "documents archived", "day_db", db, "run_id", r.ID,
		"documents", t.documents, "attachments", t.attachments, "rejected", t.rejected)
}

func (a *Archiver) runDay(ctx context.Context, r run.Run, day daydb.DayDB) error {
	s, err := findSource(ctx, a.pool, identityOf(day))
	if err != nil {
		return err
	}
	if quiet, err := a.quietDay(ctx, r, s, day); quiet || err != nil {
		return a.unlessDropped(ctx, day, err)
	}
	if r.DryRun {
		if _, err := a.checkIncarnation(ctx, day); err != nil {
			return err
		}
		return a.dryRun(ctx, r, day.Name, s, dayClassifier(day))
	}
	err = a.leases.Hold(ctx, LeaseName(day.Name), func(ctx context.Context, lease fence.Lease) error {
		_, t, err := a.catchUpDay(ctx, day, lease)
		a.count(ctx, r, day.Name, t)
		return err
	})
	return a.unlessDropped(ctx, day, err)
}

// quietDay reports whether nothing has happened to a day since it was archived.
func (a *Archiver) quietDay(ctx context.Context, r run.Run, s *source, day daydb.DayDB) (bool, error) {
	info, err := a.couch.Info(ctx, day.Name)
	if err != nil || day.InstanceStartTime == nil || *day.InstanceStartTime != info.InstanceStartTime {
		return false, err
	}
	return a.quiet(ctx, r, s, info)
}

// unlessDropped forgives that a database is gone when its drop was under way.
func (a *Archiver) unlessDropped(ctx context.Context, day daydb.DayDB, err error) error {
	if !errors.Is(err, couch.ErrNotFound) {
		return err
	}
	now, loadErr := daydb.Load(ctx, a.pool, day.Name)
	if loadErr == nil && now.DropIntendedAt != nil {
		return nil
	}
	return err
}

// quiet reports whether nothing has happened to a database since it was
// archived, for one request more than the info. It does not ask for the marker:
// to a successor under the same name the sequence is foreign, so all that is in
// it is pending, and an empty one has nothing to archive.
func (a *Archiver) quiet(ctx context.Context, r run.Run, s *source, info couch.Info) (bool, error) {
	if s == nil || s.hasRejects || s.purges != info.PurgeSeq {
		return false, nil
	}
	pending, err := a.couch.Pending(ctx, s.db, s.since)
	if err != nil || pending > 0 {
		return false, err
	}
	r.Report.Add("quiet", 1)
	return true, nil
}

// dryRun counts what would be archived, and writes nothing.
func (a *Archiver) dryRun(ctx context.Context, r run.Run, db string, s *source, classify classifier) error {
	since := couch.SeqStart
	if s != nil {
		since = s.since
	}
	err := a.readBatches(ctx, db, since, classify, newBatch(), func(b *batch) (*batch, error) {
		r.Report.Add("documents", int64(len(b.archived())))
		b.reset()
		return b, nil
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", db, err)
	}
	return nil
}
