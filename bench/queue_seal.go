package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/migrations"
)

// sealGoal is how long nothing may enter.
var sealGoal = atMost(2, " s")

// sealed are the cutovers over one line.
type sealed struct {
	wait time.Duration
	// calls are the calls of the seal alone, closed how long nothing could enter.
	calls, closed []time.Duration
	// accepted are the commands of all cutovers, refused those that found the queue sealed.
	accepted, refused int64
}

// seal measures the drainer's cutover while commands go on coming in.
func (b *bench) seal(ctx context.Context) error {
	lines := []*sealed{{}, {wait: addedWait}}
	for round := range b.sizes.rounds {
		b.say("seal, round %d of %d", round+1, b.sizes.rounds)
		for _, s := range lines {
			if err := b.cutOver(ctx, s); err != nil {
				return err
			}
		}
	}
	s := b.results.section(fmt.Sprintf("The cutover under 1,000 commands a minute, after %d that waited (%d rounds)", b.sizes.backlog, b.sizes.rounds),
		"", "call of the seal", "at most", "nothing enters", "at most", "commands", "found it sealed", "goal", "")
	for _, l := range lines {
		most := slices.Max(l.closed)
		want, verdict := sealGoal.cells(most.Seconds())
		s.row(fmt.Sprintf("%d ms per call", l.wait.Milliseconds()),
			millis(percentile(l.calls, 50)), millis(slices.Max(l.calls)), millis(percentile(l.closed, 50)), millis(most),
			fmt.Sprint(l.accepted), fmt.Sprint(l.refused), want, verdict)
	}
	s.remark("The drainer claims, applies order.create in the primary's database, acks, seals and cuts over. Every command accepted is applied.")
	return nil
}

// cutOver has commands wait and more come in for a while, and brings them home.
func (b *bench) cutOver(ctx context.Context, s *sealed) (err error) {
	pool, drop, err := b.stores.database(ctx, migrations.Hosted())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	p, dropPrimary, err := b.stores.newPrimary(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dropPrimary()) }()
	l := &line{transport: hosted.NewPostgres(pool), wait: s.wait, observe: func(function string, took time.Duration) {
		if function == "continuity_seal" {
			s.calls = append(s.calls, took)
		}
	}}
	queue, sequencer := hosted.NewQueue(l), hosted.NewFence(l)
	d, err := drain.New(drain.Options{
		Queue: queue, Fence: sequencer, Primary: p.Primary, Leases: p.leases,
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler), Instance: "bench",
	})
	if err != nil {
		return err
	}
	if _, err := sequencer.ForceQueue(ctx, 1, "bench", "to be measured"); err != nil {
		return err
	}
	f := flood{queue: queue, ended: make(chan error, 1)}
	if err := f.fill(ctx, load{jobs: b.sizes.backlog}); err != nil {
		return err
	}
	flooding, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { f.ended <- f.run(flooding) }()
	if err := pause(ctx, b.sizes.flood); err != nil {
		return err
	}
	result, err := d.RunOnce(ctx)
	if err != nil {
		return err
	}
	if result.Cutover == nil {
		return fmt.Errorf("no cutover: it waits for %s", result.WaitingFor)
	}
	if err := <-f.ended; err != nil {
		return err
	}
	if proof := result.Cutover; proof.Accepted != f.accepted.Load() || proof.Applied != proof.Accepted {
		return fmt.Errorf("%d were accepted, the proof says %d accepted and %d applied", f.accepted.Load(), proof.Accepted, proof.Applied)
	}
	s.closed = append(s.closed, result.Cutover.Sealed.Duration())
	s.accepted += f.accepted.Load()
	s.refused += f.refused.Load()
	return nil
}

// flood are the commands of an outage.
type flood struct {
	queue             *hosted.Queue
	accepted, refused atomic.Int64
	ended             chan error
}

// fill enqueues what an outage has left.
func (f *flood) fill(ctx context.Context, l load) error {
	return l.send(ctx, startClock(l.jobs), 1, func(ctx context.Context, _, _ int) error {
		_, err := f.queue.Enqueue(ctx, newOrder(), 0)
		f.accepted.Add(1)
		return err
	})
}

// run enqueues at its pace until direct writes are open.
func (f *flood) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Longer than any drain takes; it ends when the queue is closed.
	endless := load{jobs: int(limit / floodInterval), every: floodInterval}
	err := endless.send(ctx, startClock(endless.jobs), 1, func(ctx context.Context, _, _ int) error {
		_, err := f.queue.Enqueue(ctx, newOrder(), 0)
		switch {
		case err == nil:
			f.accepted.Add(1)
			return nil
		case errors.Is(err, continuity.ErrSealed):
			f.refused.Add(1)
			return nil
		}
		return err
	})
	if errors.Is(err, continuity.ErrNotOpen) {
		return nil // Direct writes are open.
	}
	return err
}
