package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/pg"
)

// River's settings, those of its own benchmark.
const (
	riverWorkers  = 2000
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
)

// riverBatch is how many jobs InsertMany is given.
const riverBatch = 1000

// nothing is the job that does nothing.
type nothing struct {
	Index   int             `json:"index"`
	Payload json.RawMessage `json:"payload"`
}

// Kind names the job to River.
func (nothing) Kind() string { return "nothing" }

type doNothing struct {
	river.WorkerDefaults[nothing]
}

// Work has no effect.
func (*doNothing) Work(context.Context, *river.Job[nothing]) error { return nil }

// riverQueue is River in a database of its own.
type riverQueue struct {
	stores  *stores
	batched bool
}

func (q riverQueue) run(ctx context.Context, l load) (w worked, err error) {
	pool, drop, err := q.stores.database(ctx, pg.Migrations{})
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	driver := riverpgxv5.New(pool)
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return w, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return w, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &doNothing{})
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     riverCooldown,
		FetchPollInterval: riverPoll,
		Logger:            quiet,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
		Workers:           workers,
	})
	if err != nil {
		return w, err
	}
	// An event of every job fits, so that none is dropped.
	completed, cancel := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: l.jobs + 1,
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	defer cancel()
	if err := client.Start(ctx); err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, client.Stop(context.WithoutCancel(ctx))) }()
	if err := q.stores.settle(ctx); err != nil {
		return w, err
	}
	return q.work(ctx, l, client, completed)
}

func (q riverQueue) work(ctx context.Context, l load, client *river.Client[pgx.Tx], completed <-chan *river.Event) (w worked, err error) {
	batch, enqueue := 1, func(ctx context.Context, i, _ int) error {
		_, err := client.Insert(ctx, nothing{i, queuePayload}, nil)
		return err
	}
	if q.batched {
		enqueue = func(ctx context.Context, from, until int) error {
			var jobs []river.InsertManyParams
			for i := from; i < until; i++ {
				jobs = append(jobs, river.InsertManyParams{Args: nothing{i, queuePayload}})
			}
			_, err := client.InsertMany(ctx, jobs)
			return err
		}
		// At a pace there is nothing to wait for.
		if l.every == 0 {
			batch = riverBatch
		}
	}
	var c *clock
	w.took, err = timed(func() (took, error) {
		before := ownCPU()
		c = startClock(l.jobs)
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return l.send(ctx, c, batch, enqueue) })
		group.Go(func() error {
			for range l.jobs {
				select {
				case event := <-completed:
					var job nothing
					if err := json.Unmarshal(event.Job.EncodedArgs, &job); err != nil {
						return err
					}
					c.settled(job.Index)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		err := group.Wait()
		return took{wall: time.Since(c.began), client: ownCPU() - before}, err
	})
	if err == nil {
		w.latency = c.latency()
	}
	return w, err
}
