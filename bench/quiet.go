package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// quietWorkers is how many days are looked at at a time.
	quietWorkers = archive.DefaultWorkers
	// docsPerQuietDay is what a day holds; a night must not depend on it.
	docsPerQuietDay = 20
)

// quietBench measures a night in which nothing has happened.
type quietBench struct {
	*bench
	world    *world
	requests *counter
	days     []daydb.DayDB

	guard, archiver, bare runs
	// requests of the last round: within the days' databases, and in all.
	guardInDays, guardInAll       int
	archiverInDays, archiverInAll int
}

func (b *bench) quiet(ctx context.Context) (err error) {
	m := &quietBench{bench: b, requests: newCounter()}
	if m.world, err = b.stores.newWorld(ctx, couch.Options{Transport: m.requests}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.world.close(ctx), b.stores.removeEnv(ctx, m.world.env)) }()
	b.say("making %d day databases", b.sizes.quietDays)
	if err := m.makeDays(ctx); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	archiver := archive.New(archive.Options{
		Pool:    m.world.pool,
		Couch:   m.world.couch,
		Leases:  m.world.leases,
		Log:     log,
		Env:     m.world.env,
		Workers: quietWorkers,
	})
	evaluator := guard.New(guard.Options{
		Pool:    m.world.pool,
		Couch:   m.world.couch,
		Archive: archiver,
		Leases:  m.world.leases,
		Log:     log,
		Env:     m.world.env,
		TTLDays: 30,
		Settle:  20 * time.Hour,
		Workers: quietWorkers,
	})
	b.say("the night that archives them")
	night, err := m.world.runJob(ctx, evaluator.Run, run.Scope{})
	if err != nil {
		return err
	}
	if err := m.checkArchived(ctx); err != nil {
		return err
	}
	for round := range b.sizes.rounds {
		b.say("round %d of %d", round+1, b.sizes.rounds)
		if err := m.night(ctx, evaluator.Run, &m.guard, &m.guardInDays, &m.guardInAll); err != nil {
			return err
		}
		if err := m.night(ctx, archiver.Run, &m.archiver, &m.archiverInDays, &m.archiverInAll); err != nil {
			return err
		}
		if err := m.lookBare(ctx); err != nil {
			return err
		}
	}
	m.report(night)
	return nil
}

// makeDays makes drained days with some documents each.
func (m *quietBench) makeDays(ctx context.Context) error {
	w, restaurants := m.world, m.sizes.quietRestaurant
	if err := w.register(ctx, restaurants, true); err != nil {
		return err
	}
	today, err := daydb.Today(ctx, w.pool, daydb.DefaultTimezone)
	if err != nil {
		return err
	}
	return w.withToken(ctx, func(ctx context.Context, lease fence.Lease) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(restaurants)
		rows := make([]daydb.DayDB, m.sizes.quietDays)
		for r := range restaurants {
			// One after the other: a restaurant has one ACTIVE day at a time.
			group.Go(func() error {
				for i := r; i < len(rows); i += restaurants {
					row, err := w.drainedDay(ctx, restaurantOf(r), today.Add(-1-i/restaurants), lease.Token)
					if err != nil {
						return err
					}
					if err := w.stores.loadSome(ctx, row.Name, i*docsPerQuietDay, (i+1)*docsPerQuietDay); err != nil {
						return err
					}
					rows[i] = row
				}
				return nil
			})
		}
		err := group.Wait()
		m.days = rows
		return err
	})
}

func (m *quietBench) checkArchived(ctx context.Context) error {
	archived, err := daydb.List(ctx, m.world.pool, daydb.Filter{States: []daydb.State{daydb.Archived}})
	if err == nil && len(archived) != len(m.days) {
		err = fmt.Errorf("%d days of %d are ARCHIVED", len(archived), len(m.days))
	}
	return err
}

// night runs a job and counts what it asks of CouchDB.
func (m *quietBench) night(ctx context.Context, job func(context.Context, run.Run) error, rounds *runs, inDays, inAll *int) error {
	if err := m.stores.settle(ctx); err != nil {
		return err
	}
	m.requests.take()
	t, err := m.world.runJob(ctx, job, run.Scope{})
	*rounds = append(*rounds, t)
	counted := m.requests.take()
	*inDays, *inAll = 0, total(counted)
	for _, d := range m.days {
		*inDays += counted[d.Name]
	}
	return err
}

// lookBare sends, for each day, the two requests that tell whether anything has
// changed.
func (m *quietBench) lookBare(ctx context.Context) error {
	c := m.stores.bare()
	defer c.close()
	t, err := timed(func() (took, error) {
		before, start := ownCPU(), time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(quietWorkers)
		for _, d := range m.days {
			group.Go(func() error {
				if _, err := c.do(ctx, "GET", escape(d.Name), nil); err != nil {
					return err
				}
				_, err := c.do(ctx, "GET", escape(d.Name)+"/_changes?limit=0&since=now", nil)
				return err
			})
		}
		err := group.Wait()
		return took{wall: time.Since(start), client: ownCPU() - before}, err
	})
	m.bare = append(m.bare, t)
	return err
}

func (m *quietBench) report(night took) {
	n := float64(len(m.days))
	s := m.results.section(fmt.Sprintf("A quiet night over %d archived days, %d at a time (medians of %d rounds)", len(m.days), quietWorkers, m.sizes.rounds),
		"", "time", "requests per day database", "goal", "", "requests in all", "ratio")
	line := func(name string, r runs, inDays, inAll int, g goal) {
		perDay := float64(inDays) / n
		want, verdict := g.cells(perDay)
		s.row(name, r.String(), fmt.Sprintf("%.3f", perDay), want, verdict, fmt.Sprint(inAll), name+"/bare "+times(r.over(m.bare)))
	}
	line("guard", m.guard, m.guardInDays, m.guardInAll, atMost(2, ""))
	line("archive", m.archiver, m.archiverInDays, m.archiverInAll, atMost(2, ""))
	s.row("two bare requests per day", m.bare.String(), "2.000", "", "", fmt.Sprint(2*len(m.days)), "")
	s.remark("The night before, which archived %d documents and evaluated every day, took %s.", len(m.days)*docsPerQuietDay, seconds(night.wall))

	s = m.results.section("The same in CPU time: who works", "", "client", "CouchDB", "Postgres")
	s.row(append([]string{"guard"}, m.guard.cpu()...)...)
	s.row(append([]string{"archive"}, m.archiver.cpu()...)...)
	s.row(append([]string{"two bare requests per day"}, m.bare.cpu()...)...)
}
