package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
)

// archiveRounds are the rounds of each contestant.
type archiveRounds struct {
	archive  runs
	copy     runs
	curl     runs
	curlLike runs
	couch2pg runs
}

// archive measures a first archiving of one day database, against a bare read of
// its feed, a bare COPY of the rows that come out, and couch2pg.
func (b *bench) archive(ctx context.Context) (err error) {
	n := b.sizes.archiveDocs
	day, err := daydb.ParseDay("20261101")
	if err != nil {
		return err
	}
	m := &archiveBench{bench: b, day: day}
	w, err := b.stores.newWorld(ctx, couch.Options{})
	if err != nil {
		return err
	}
	m.env = w.env
	defer func() { err = errors.Join(err, b.stores.removeEnv(ctx, m.env)) }()
	row, err := m.enter(ctx, w)
	if err != nil {
		return err
	}
	m.db = row.Name
	b.say("writing %d documents", n)
	if err := errors.Join(b.stores.load(ctx, m.db, n), w.close(ctx)); err != nil {
		return err
	}
	if !couch2pgInstalled() {
		b.say("couch2pg is not installed (npm ci --prefix bench/couch2pg) and is left out")
	}
	// The caches are warm for all alike.
	if _, err := b.stores.curl(ctx, m.db, plainFeed); err != nil {
		return err
	}

	// Each round begins with another one, so that none always comes first.
	order := []func(context.Context) error{m.archiveAndCopy, m.readFeed, m.readLikeArchiver, m.runCouch2pg}
	for round := range b.sizes.rounds {
		b.say("round %d of %d", round+1, b.sizes.rounds)
		m.round = round
		first := round % len(order)
		for _, step := range slices.Concat(order[first:], order[:first]) {
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	m.report(n)
	return nil
}

type archiveBench struct {
	*bench
	archiveRounds
	env   string
	db    string
	day   daydb.Day
	round int
}

// enter enters the day in an empty ledger.
func (m *archiveBench) enter(ctx context.Context, w *world) (row daydb.DayDB, err error) {
	if err := w.register(ctx, 1, true); err != nil {
		return daydb.DayDB{}, err
	}
	err = w.withToken(ctx, func(ctx context.Context, lease fence.Lease) error {
		row, err = w.drainedDay(ctx, restaurantOf(0), m.day, lease.Token)
		return err
	})
	return row, err
}

// archiveAndCopy archives into an empty archive, then copies the rows into an
// empty table of the same kind.
func (m *archiveBench) archiveAndCopy(ctx context.Context) (err error) {
	w, err := m.stores.newWorldOf(ctx, m.env, couch.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	row, err := m.enter(ctx, w)
	if err != nil {
		return err
	}
	cmd, out, err := w.archiver(ctx, row, m.profile(fmt.Sprintf("archive-%d", m.round+1)))
	if err != nil {
		return err
	}
	if err := m.stores.settle(ctx); err != nil {
		return err
	}
	t, err := timed(func() (took, error) {
		if err := cmd.Run(); err != nil {
			return took{}, err
		}
		var result archiverResult
		err := json.Unmarshal(out.Bytes(), &result)
		return took{wall: result.Elapsed, client: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, err
	})
	if err != nil {
		return fmt.Errorf("archiver: %w", err)
	}
	m.archiveRounds.archive = append(m.archiveRounds.archive, t)
	if err := w.checkArchived(ctx, m.sizes.archiveDocs); err != nil {
		return err
	}
	t, err = w.copyRows(ctx)
	m.copy = append(m.copy, t)
	return err
}

func (m *archiveBench) readFeed(ctx context.Context) error {
	t, err := m.stores.curl(ctx, m.db, plainFeed)
	m.curl = append(m.curl, t)
	return err
}

func (m *archiveBench) readLikeArchiver(ctx context.Context) error {
	t, err := m.stores.curl(ctx, m.db, archiverFeed)
	m.curlLike = append(m.curlLike, t)
	return err
}

func (m *archiveBench) runCouch2pg(ctx context.Context) error {
	if !couch2pgInstalled() {
		return nil
	}
	t, err := m.stores.couch2pg(ctx, m.db, m.sizes.archiveDocs)
	m.couch2pg = append(m.couch2pg, t)
	return err
}

func (m *archiveBench) report(n int) {
	s := m.results.section(fmt.Sprintf("Archiving %d documents of one day database (medians of %d rounds)", n, m.sizes.rounds),
		"", "time", "documents", "ratio", "goal", "")
	a := m.archiveRounds.archive
	s.row("archive", a.String(), a.rate(n), "", "", "")
	line := func(name string, r runs, ratio float64, what string, g goal) {
		want, verdict := g.cells(ratio)
		s.row(name, r.String(), r.rate(n), what+" "+times(ratio), want, verdict)
	}
	line("curl _changes?include_docs=true", m.curl, a.over(m.curl), "archive/curl", atMost(1.2, "x"))
	line("curl, asking as the archiver does", m.curlLike, a.over(m.curlLike), "archive/curl", goal{})
	line("COPY of the same rows", m.copy, a.over(m.copy), "archive/COPY", goal{})
	if len(m.couch2pg) > 0 {
		line("couch2pg 0.7.1", m.couch2pg, m.couch2pg.over(a), "couch2pg/archive", atLeast(7, "x"))
	}

	s = m.results.section("The same in CPU time: who works", "", "client", "CouchDB", "Postgres")
	s.row(append([]string{"archive"}, a.cpu()...)...)
	s.row(append([]string{"curl _changes?include_docs=true"}, m.curl.cpu()...)...)
	s.row(append([]string{"curl, asking as the archiver does"}, m.curlLike.cpu()...)...)
	s.row(append([]string{"COPY of the same rows"}, m.copy.cpu()...)...)
	if len(m.couch2pg) > 0 {
		s.row(append([]string{"couch2pg 0.7.1"}, m.couch2pg.cpu()...)...)
	}
	if os.Getenv("ROLLINGD_TEST_COUCHDB_URL") != "" {
		s.remark("That of a CouchDB which was not started here cannot be seen.")
	}
}
