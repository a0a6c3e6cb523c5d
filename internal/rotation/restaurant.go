package rotation

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/manifest"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// Unit takes steps 1 to 4 for one restaurant of a run, company/restaurant.
func (ro *Rotator) Unit(ctx context.Context, r run.Run, key string) {
	company, restaurant, _ := strings.Cut(key, "/")
	m := &member{
		Registration: daydb.Registration{Restaurant: daydb.Restaurant{CompanyID: company, RestaurantID: restaurant}},
		report:       r.Report,
	}
	reg, err := daydb.LoadRestaurant(ctx, ro.pool, m.Restaurant)
	if err == nil {
		m.Registration = reg
		var f flags.Flags
		f, err = flags.Load(ctx, ro.pool, company)
		m.routed = f.DeviceRouted
	}
	if err != nil {
		m.fail(stepPlan, "", pg.Translate(err))
		return
	}
	ro.rotate(ctx, r, m)
}

// rotate takes steps 1 to 4 for one restaurant, under its lease.
func (ro *Rotator) rotate(ctx context.Context, r run.Run, m *member) {
	if ctx.Err() != nil {
		return
	}
	if r.DryRun {
		ro.preview(ctx, r, m)
		return
	}
	err := ro.leases.HoldWait(ctx, "restaurant/"+m.String(), ro.leaseWait, func(ctx context.Context, lease fence.Lease) error {
		w := &work{Rotator: ro, run: r, m: m, lease: lease}
		w.rotate(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	})
	if err != nil {
		m.fail(stepLease, "", err)
	}
}

// work is the rotation of one restaurant under its lease.
type work struct {
	*Rotator
	run   run.Run
	m     *member
	lease fence.Lease
	plan  plan
	// ledger is what the manifest is to say.
	ledger manifest.Ledger
	// seen are the day databases that were found or put in place.
	seen []string
	// prewarmed is the creation time of tomorrow's database, to be recorded; empty
	// when this run has not made it.
	prewarmed string
}

// within runs fn in a transaction of the lease.
func (w *work) within(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pg.WithTx(ctx, w.pool, func(tx pgx.Tx) error {
		if err := w.lease.Check(ctx, tx); err != nil {
			return err
		}
		return fn(tx)
	})
}

func (w *work) rotate(ctx context.Context) {
	err := w.within(ctx, func(tx pgx.Tx) (err error) {
		if w.plan, err = w.readPlan(ctx, tx, w.run, w.m); err != nil {
			return err
		}
		if err := w.plan.enter(ctx, tx, w.run.Mark(w.lease)); err != nil {
			return err
		}
		w.ledger, err = w.manifests.Read(ctx, tx, w.m.Restaurant)
		return err
	})
	if errors.Is(err, errSwitchedOff) {
		return
	}
	if err != nil {
		w.m.fail(stepPlan, "", err)
		return
	}
	// A ledger that stands where it should, and a manifest that says so in the
	// core that it was written to: such a restaurant costs two requests.
	settled := w.plan.settled() && w.m.ManifestGeneration != nil
	haveCore := settled || w.core(ctx)
	if !w.today(ctx) {
		return
	}
	w.tomorrow(ctx)
	var published manifest.Published
	if haveCore {
		published, err = w.manifest(ctx)
	}
	if settled && errors.Is(err, couch.ErrNotFound) {
		if haveCore = w.core(ctx); haveCore {
			published, err = w.manifest(ctx)
		}
	}
	if haveCore && err != nil {
		w.m.fail(stepManifest, "", err)
	}
	if w.m.hasCore = haveCore && err == nil; w.m.hasCore {
		w.run.Report.Reach(w.m.String())
	}
	w.record(ctx, published)
}

func (w *work) core(ctx context.Context) bool {
	created, err := w.ensureCore(ctx, w.lease, w.m)
	if created {
		w.run.Report.Add(countCreated, 1)
	}
	if err != nil {
		name, _ := contracts.CoreName(w.env, w.m.CompanyID, w.m.RestaurantID) // Was composed before.
		w.m.fail(stepCore, name, err)
		return false
	}
	return true
}

// today makes the target day ACTIVE. It reports false when the company was
// switched off meanwhile.
func (w *work) today(ctx context.Context) bool {
	if w.plan.today.State == daydb.Active {
		if err := w.verify(ctx, w.plan.today.Name, w.m.Restaurant, w.plan.today.Generation); err != nil {
			w.m.fail(stepToday, w.plan.today.Name, err)
			return true
		}
		w.seen = append(w.seen, w.plan.today.Name)
		return true
	}
	secured := make(map[string]string)
	var passed []daydb.DayDB
	for _, d := range w.plan.passed {
		if w.ensureDay(ctx, d, secured) {
			passed = append(passed, d)
		}
	}
	if !w.ensureDay(ctx, w.plan.today, secured) {
		return true
	}
	p, ledger := w.plan, w.ledger
	err := w.within(ctx, func(tx pgx.Tx) (err error) {
		if err := w.activate(ctx, tx, w.m, w.run.Mark(w.lease), &p, passed, secured); err != nil {
			return err
		}
		ledger, err = w.manifests.Read(ctx, tx, w.m.Restaurant)
		return err
	})
	if errors.Is(err, errSwitchedOff) {
		return false
	}
	if err != nil {
		w.m.fail(stepToday, w.plan.today.Name, err)
		return true
	}
	former := ""
	if w.plan.active != nil {
		former = w.plan.active.Name
		moved(w.run.Report, *w.plan.active, daydb.Draining, daydb.Drain)
	}
	for _, d := range passed {
		moved(w.run.Report, d, daydb.Active, daydb.Activate)
		d.State = daydb.Active
		moved(w.run.Report, d, daydb.Draining, daydb.Drain)
	}
	moved(w.run.Report, w.plan.today, daydb.Active, daydb.Activate)
	w.log.Info("day activated", "day_db", p.today.Name, "former", former, "token", w.lease.Token, "run_id", w.run.ID)
	w.plan, w.ledger = p, ledger
	return true
}

// ensureDay makes sure of the database of a PREWARMED day. It notes what it had
// to create, and reports a failure itself.
func (w *work) ensureDay(ctx context.Context, d daydb.DayDB, secured map[string]string) bool {
	var err error
	if d.InstanceStartTime != nil {
		err = w.verify(ctx, d.Name, w.m.Restaurant, d.Generation)
	} else {
		var created bool
		secured[d.Name], created, err = w.createDay(ctx, d)
		if created {
			w.run.Report.Add(countCreated, 1)
		}
	}
	if err != nil {
		w.m.fail(stepToday, d.Name, err)
		return false
	}
	w.seen = append(w.seen, d.Name)
	return true
}

// tomorrow creates and secures the next day's database.
func (w *work) tomorrow(ctx context.Context) {
	d := w.plan.tomorrow
	if d.InstanceStartTime != nil || d.State != daydb.Prewarmed {
		return
	}
	at, created, err := w.createDay(ctx, d)
	if created {
		w.run.Report.Add(countCreated, 1)
	}
	if err != nil {
		w.m.fail(stepTomorrow, d.Name, err)
		return
	}
	w.prewarmed = at
}

// manifest publishes the manifest, and reports days that it cannot name.
func (w *work) manifest(ctx context.Context) (manifest.Published, error) {
	published, err := w.manifests.Publish(ctx, w.lease, w.ledger, w.seen...)
	if published.Written {
		w.run.Report.Add(countManifests, 1)
	}
	for _, name := range published.Gone {
		w.m.fail(stepManifest, name, ErrDeleted)
	}
	return published, err
}

// record notes in one transaction what tomorrow and manifest have done.
func (w *work) record(ctx context.Context, published manifest.Published) {
	publish := w.m.hasCore && !published.Recorded()
	if w.prewarmed == "" && !publish {
		return
	}
	err := w.within(ctx, func(tx pgx.Tx) error {
		if w.prewarmed != "" {
			if err := recordCreation(ctx, tx, w.plan.tomorrow, w.lease.Token, w.prewarmed); err != nil {
				return err
			}
		}
		if publish {
			return w.manifests.Record(ctx, tx, w.lease, published)
		}
		return nil
	})
	if err != nil {
		w.m.fail(stepRecord, w.plan.tomorrow.Name, err)
		return
	}
	if w.prewarmed != "" {
		w.run.Report.Add(countPrewarmed, 1)
	}
}
