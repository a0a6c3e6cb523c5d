package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

// idlePoll is how long the drain waits when there was nothing to claim.
const idlePoll = 5 * time.Millisecond

// ourQueue is the queue of commands in a hosted database of its own.
type ourQueue struct {
	stores *stores
	// batched enqueues batches, as River's InsertMany.
	batched bool
	// effect applies each command in a primary's database.
	effect bool
	// wait is added to each call.
	wait time.Duration
}

func (q ourQueue) run(ctx context.Context, l load) (w worked, err error) {
	pool, drop, err := q.stores.database(ctx, migrations.Hosted())
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	line := &line{transport: hosted.NewPostgres(pool), wait: q.wait}
	sequencer := hosted.NewFence(line)
	if _, err := sequencer.ForceQueue(ctx, 1, "bench", "to be measured"); err != nil {
		return w, err
	}
	state, err := sequencer.BeginCatchup(ctx, 2, 1)
	if err != nil {
		return w, err
	}

	// Both gates are open now: commands enter, and are handed out.
	s := shift{queue: hosted.NewQueue(line), batched: q.batched, jobs: make(map[uuid.UUID]int, l.jobs)}
	s.apply = func(context.Context, continuity.Claim) error { return nil }
	if q.effect {
		p, drop, err := q.stores.newPrimary(ctx)
		if err != nil {
			return w, err
		}
		defer func() { err = errors.Join(err, drop()) }()
		if s.apply, err = p.applier(ctx, state.Fence); err != nil {
			return w, err
		}
	}
	if err := q.stores.settle(ctx); err != nil {
		return w, err
	}
	return s.work(ctx, l)
}

// shift drains while commands come in.
type shift struct {
	queue   *hosted.Queue
	batched bool
	apply   func(context.Context, continuity.Claim) error
	clock   *clock
	// jobs are the numbers of the commands.
	jobs map[uuid.UUID]int
}

func (s *shift) work(ctx context.Context, l load) (w worked, err error) {
	commands := make([]continuity.Command, l.jobs)
	for i := range commands {
		commands[i] = newOrder()
		s.jobs[commands[i].CommandID] = i
	}
	intake := hosted.NewIntake(s.queue)
	batch, enqueue := 1, func(ctx context.Context, i, _ int) error {
		_, err := intake.Enqueue(ctx, commands[i], 0)
		return err
	}
	if s.batched && l.every == 0 {
		batch, enqueue = hosted.MaxBatch, func(ctx context.Context, from, until int) error {
			return s.enqueueAll(ctx, commands[from:until])
		}
	}
	w.took, err = timed(func() (took, error) {
		before := ownCPU()
		s.clock = startClock(l.jobs)
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return l.send(ctx, s.clock, batch, enqueue) })
		group.Go(func() error { return s.drain(ctx, l.jobs) })
		err := group.Wait()
		return took{wall: time.Since(s.clock.began), client: ownCPU() - before}, err
	})
	if err == nil {
		w.latency = s.clock.latency()
	}
	return w, err
}

func (s *shift) enqueueAll(ctx context.Context, commands []continuity.Command) error {
	all := make([]hosted.Submission, len(commands))
	for i, c := range commands {
		all[i].Command = c
	}
	entries, err := s.queue.EnqueueAll(ctx, all)
	for _, e := range entries {
		err = errors.Join(err, e.Err)
	}
	return err
}

// drain hands out, applies and acks n commands. The drainer acks earlier, what was
// applied while its last ack was under way.
func (s *shift) drain(ctx context.Context, n int) error {
	for acked := 0; acked < n; {
		claims, err := s.queue.Claim(ctx, hosted.ClaimOptions{Worker: "bench", Limit: drain.DefaultBatch, Lease: drain.DefaultClaimLease})
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			if err := pause(ctx, idlePoll); err != nil {
				return err
			}
			continue
		}
		group, applying := errgroup.WithContext(ctx)
		group.SetLimit(drain.DefaultWorkers)
		for _, c := range claims {
			group.Go(func() error { return s.apply(applying, c) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		lost, err := s.queue.AckAll(ctx, claims)
		if err != nil {
			return err
		}
		if len(lost) > 0 {
			return fmt.Errorf("%d claims are lost", len(lost))
		}
		for _, c := range claims {
			s.clock.settled(s.jobs[c.CommandID])
		}
		acked += len(claims)
	}
	return nil
}

func newOrder() continuity.Command {
	id := uuid.New()
	return continuity.Command{
		CommandID:      id,
		IdempotencyKey: "order:" + id.String(),
		CommandType:    "order.create",
		AggregateType:  "order",
		AggregateID:    id.String(),
		Payload:        queuePayload,
	}
}

// line is a transport on which every call takes longer.
type line struct {
	transport hosted.Transport
	wait      time.Duration
	// observe, if set, is told what each call took.
	observe func(function string, took time.Duration)
}

func (l *line) Call(ctx context.Context, function string, args map[string]any, into any) error {
	start := time.Now()
	if err := pause(ctx, l.wait); err != nil {
		return fmt.Errorf("%w: %w", continuity.ErrUnavailable, err)
	}
	err := l.transport.Call(ctx, function, args, into)
	if l.observe != nil {
		l.observe(function, time.Since(start))
	}
	return err
}

// database makes a migrated database, and returns what removes it.
func (s *stores) database(ctx context.Context, m pg.Migrations) (*pgxpool.Pool, func() error, error) {
	name, dsn, err := s.createDatabase(ctx)
	if err != nil {
		return nil, nil, err
	}
	pool, err := pg.Open(ctx, dsn, pg.Options{MaxConns: queueConns})
	if err != nil {
		return nil, nil, errors.Join(err, s.dropDatabase(ctx, name))
	}
	drop := func() error {
		pool.Close()
		return s.dropDatabase(context.WithoutCancel(ctx), name)
	}
	if m.FS == nil {
		return pool, drop, nil
	}
	if _, err := pg.Migrate(ctx, pool, m); err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	return pool, drop, nil
}

// primaryStore is a primary with a database of its own.
type primaryStore struct {
	*primary.Primary
	leases *fence.Leases
}

func (s *stores) newPrimary(ctx context.Context) (*primaryStore, func() error, error) {
	pool, drop, err := s.database(ctx, migrations.Primary())
	if err != nil {
		return nil, nil, err
	}
	p, err := primary.New(primary.Options{Pool: pool, Lease: time.Hour, Instance: "bench"})
	if err != nil {
		return nil, nil, errors.Join(err, drop())
	}
	return &primaryStore{Primary: p, leases: fence.New(pool, "bench", time.Hour)}, drop, nil
}

// applier returns what has the effect of a command under the hosted fence.
func (p *primaryStore) applier(ctx context.Context, f continuity.Fence) (func(context.Context, continuity.Claim) error, error) {
	asOf, err := p.Clock(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Adopt(ctx, f, asOf, "to be measured"); err != nil {
		return nil, err
	}
	lease, err := p.leases.Acquire(ctx, drain.LeaseName)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, c continuity.Claim) error {
		_, err := p.ApplyClaim(ctx, c, lease)
		return err
	}, nil
}
