package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/manifest"
	"github.com/rollingd/rollingd/internal/rotation"
	"github.com/rollingd/rollingd/internal/run"
)

// rotationWorkers is how many restaurants are rotated at a time, and how many
// series of bare calls run at a time.
const rotationWorkers = 8

// rotationRounds bounds the rounds: each makes six databases per restaurant.
const rotationRounds = 3

// rotationBench compares two mornings of a fleet with the calls that CouchDB
// cannot be spared.
type rotationBench struct {
	*bench
	first, firstBare   runs
	second, secondBare runs
	// requests are those of the last round.
	firstRequests, secondRequests, settledRequests int
	settled                                        runs
}

func (b *bench) rotation(ctx context.Context) error {
	m := &rotationBench{bench: b}
	rounds := min(b.sizes.rounds, rotationRounds)
	for round := range rounds {
		b.say("round %d of %d", round+1, rounds)
		steps := []func(context.Context) error{m.rotate, m.callBare}
		if round%2 == 1 {
			steps[0], steps[1] = steps[1], steps[0]
		}
		for _, step := range steps {
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	m.report(rounds)
	return nil
}

// rotate runs the job for a fleet that has nothing yet, for the next day, and
// once more when all is done.
func (m *rotationBench) rotate(ctx context.Context) (err error) {
	requests := newCounter()
	w, err := m.stores.newWorld(ctx, couch.Options{Transport: requests})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx), m.stores.removeEnv(ctx, w.env)) }()
	if err := w.register(ctx, m.sizes.restaurants, false); err != nil {
		return err
	}
	job, err := rotation.New(rotation.Options{
		Pool:    w.pool,
		Couch:   w.couch,
		Leases:  w.leases,
		Env:     w.env,
		Log:     slog.New(slog.DiscardHandler),
		Workers: rotationWorkers,
	})
	if err != nil {
		return err
	}
	today, err := daydb.Today(ctx, w.pool, daydb.DefaultTimezone)
	if err != nil {
		return err
	}
	for _, morning := range []struct {
		day      daydb.Day
		rounds   *runs
		requests *int
	}{
		{today.Add(-1), &m.first, &m.firstRequests},
		{today, &m.second, &m.secondRequests},
		{today, &m.settled, &m.settledRequests},
	} {
		if err := m.stores.settle(ctx); err != nil {
			return err
		}
		requests.take()
		t, err := w.runJob(ctx, job.Run, run.Scope{BusinessDay: morning.day})
		if err != nil {
			return err
		}
		*morning.rounds = append(*morning.rounds, t)
		*morning.requests = total(requests.take())
	}
	return nil
}

// runJob runs a nightly job as a person would start it, and fails if anything
// went wrong for any restaurant.
func (w *world) runJob(ctx context.Context, job func(context.Context, run.Run) error, scope run.Scope) (took, error) {
	lease, err := w.leases.Acquire(ctx, "cron/bench")
	if err != nil {
		return took{}, err
	}
	report := &run.Report{}
	t, err := timed(func() (took, error) {
		before, start := ownCPU(), time.Now()
		err := job(ctx, run.Run{Actor: "bench", Scope: scope, Lease: lease, Report: report})
		return took{wall: time.Since(start), client: ownCPU() - before}, err
	})
	if failures := report.Failures(); err == nil && len(failures) > 0 {
		err = fmt.Errorf("%d failures, the first: %+v", len(failures), failures[0])
	}
	return t, errors.Join(err, w.leases.Release(ctx, lease))
}

// callBare makes the calls of the first morning, and of the second, for the same
// number of restaurants.
func (m *rotationBench) callBare(ctx context.Context) (err error) {
	w, err := m.stores.newWorld(ctx, couch.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx), m.stores.removeEnv(ctx, w.env)) }()
	today, err := daydb.Today(ctx, w.pool, daydb.DefaultTimezone)
	if err != nil {
		return err
	}
	c := m.stores.bare()
	defer c.close()
	for _, morning := range []struct {
		calls  func(context.Context, *bare, string, daydb.Restaurant, daydb.Day) error
		day    daydb.Day
		rounds *runs
	}{
		{firstMorning, today.Add(-1), &m.firstBare},
		{secondMorning, today, &m.secondBare},
	} {
		t, err := timed(func() (took, error) {
			before, start := ownCPU(), time.Now()
			group, ctx := errgroup.WithContext(ctx)
			group.SetLimit(rotationWorkers)
			for i := range m.sizes.restaurants {
				group.Go(func() error { return morning.calls(ctx, c, w.env, restaurantOf(i), morning.day) })
			}
			err := group.Wait()
			return took{wall: time.Since(start), client: ownCPU() - before}, err
		})
		if err != nil {
			return err
		}
		*morning.rounds = append(*morning.rounds, t)
	}
	return nil
}

// How many calls the bare mornings make for each restaurant.
const (
	firstMorningCalls  = 13
	secondMorningCalls = 7
)

// firstMorning creates core, today and tomorrow, and writes the manifest.
func firstMorning(ctx context.Context, c *bare, env string, r daydb.Restaurant, day daydb.Day) error {
	core, err := contracts.CoreName(env, r.CompanyID, r.RestaurantID)
	if err != nil {
		return err
	}
	if err := createSecured(ctx, c, core, r); err != nil {
		return err
	}
	design := couch.DesignDoc{ID: manifest.DesignID, Language: "javascript", Validate: manifest.Validation}
	if _, err := c.do(ctx, "PUT", escape(core)+"/"+manifest.DesignID, design); err != nil {
		return err
	}
	for _, d := range []daydb.Day{day, day.Add(1)} {
		if err := createDay(ctx, c, env, r, d); err != nil {
			return err
		}
	}
	_, err = c.do(ctx, "PUT", escape(core)+"/"+contracts.ManifestID, manifestOf(day, 1, ""))
	return err
}

// secondMorning looks whether the day that was prewarmed is the one that was
// created, creates the day after, and writes the manifest anew.
func secondMorning(ctx context.Context, c *bare, env string, r daydb.Restaurant, day daydb.Day) error {
	core, err := contracts.CoreName(env, r.CompanyID, r.RestaurantID)
	if err != nil {
		return err
	}
	today, err := daydb.ComposeName(env, r, day)
	if err != nil {
		return err
	}
	if _, err := c.do(ctx, "GET", escape(today)+"/_security", nil); err != nil {
		return err
	}
	if err := createDay(ctx, c, env, r, day.Add(1)); err != nil {
		return err
	}
	raw, err := c.do(ctx, "GET", escape(core)+"/"+contracts.ManifestID, nil)
	if err != nil {
		return err
	}
	rev, err := revOf(raw)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, "PUT", escape(core)+"/"+contracts.ManifestID, manifestOf(day, 2, rev))
	return err
}

// createDay also asks for the creation time, which is half of a day's identity.
func createDay(ctx context.Context, c *bare, env string, r daydb.Restaurant, day daydb.Day) error {
	name, err := daydb.ComposeName(env, r, day)
	if err != nil {
		return err
	}
	if err := createSecured(ctx, c, name, r); err != nil {
		return err
	}
	_, err = c.do(ctx, "GET", escape(name), nil)
	return err
}

// createSecured creates a database and its security, and reads that back.
func createSecured(ctx context.Context, c *bare, db string, r daydb.Restaurant) error {
	if _, err := c.do(ctx, "PUT", escape(db)+"?q=1", nil); err != nil {
		return err
	}
	if _, err := c.do(ctx, "PUT", escape(db)+"/_security", couch.OpenTo(r.Role(), uuid.New())); err != nil {
		return err
	}
	_, err := c.do(ctx, "GET", escape(db)+"/_security", nil)
	return err
}

func (m *rotationBench) report(rounds int) {
	n := m.sizes.restaurants
	s := m.results.section(fmt.Sprintf("Rotating %d restaurants, %d at a time (medians of %d rounds)", n, rotationWorkers, rounds),
		"", "time", "restaurants", "requests each", "ratio")
	line := func(name string, r, base runs, requests int) {
		ratio := ""
		if base != nil {
			ratio = "rotation/bare " + times(r.over(base))
		}
		s.row(name, r.String(), r.rate(n), fmt.Sprintf("%.1f", float64(requests)/float64(n)), ratio)
	}
	line("first morning: core, today, tomorrow, manifest", m.first, m.firstBare, m.firstRequests)
	line("the bare calls for that", m.firstBare, nil, firstMorningCalls*n)
	line("next morning: tomorrow, manifest", m.second, m.secondBare, m.secondRequests)
	line("the bare calls for that", m.secondBare, nil, secondMorningCalls*n)
	line("once more, when all is done", m.settled, nil, m.settledRequests)

	s = m.results.section("The same in CPU time: who works", "", "client", "CouchDB", "Postgres")
	s.row(append([]string{"first morning"}, m.first.cpu()...)...)
	s.row(append([]string{"the bare calls for that"}, m.firstBare.cpu()...)...)
	s.row(append([]string{"next morning"}, m.second.cpu()...)...)
	s.row(append([]string{"the bare calls for that"}, m.secondBare.cpu()...)...)
	s.row(append([]string{"once more"}, m.settled.cpu()...)...)
}
