package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// senders enqueue side by side, in every queue that is measured.
	senders = 16
	// queueConns bounds the connections of each queue that is measured.
	queueConns = 32
	// floodInterval is a command's distance to the next at 1,000 in a minute.
	floodInterval = time.Minute / 1000
	// addedWait is what a call of the hosted database takes longer over RPC.
	addedWait = 20 * time.Millisecond
)

// queuePayload is what every job carries, and a valid order.
var queuePayload = json.RawMessage(`{"companyId":"acme","restaurantId":"north","total":12990}`)

// load is what a queue is given to do.
type load struct {
	jobs int
	// every is the time from one job to the next; 0 is as fast as it goes.
	every time.Duration
}

// worked is what a queue took for a load, until the last job was settled.
type worked struct {
	took
	// latency is that of each job, from the beginning of its enqueue until it was
	// settled.
	latency []time.Duration
}

// lane is a queue that is measured.
type lane struct {
	name string
	// remark says what it does for a job.
	remark string
	goal   goal
	run    func(context.Context, load) (worked, error)

	fast  runs
	paced []time.Duration
}

// queueBench compares the queue of commands with queues of jobs.
type queueBench struct {
	*bench
	lanes []*lane
	// batched and single are those that the others are measured against.
	batched, single *lane
}

func (b *bench) queue(ctx context.Context) error {
	m := &queueBench{bench: b}
	m.batched = &lane{
		name:   "River, InsertMany",
		remark: "inserts batches of 1,000 at once, claims and completes in batches; a job has no order and no key",
		run:    riverQueue{stores: b.stores, batched: true}.run,
	}
	m.single = &lane{
		name:   "River, one by one",
		remark: "inserts each job in a commit of its own, claims and completes in batches; a job has no order and no key",
		run:    riverQueue{stores: b.stores}.run,
	}
	m.lanes = []*lane{
		{
			name:   "the queue alone, in batches",
			remark: "enqueues batches of 100, claims and acks in batches; a command passes the fence, keeps the order of its aggregate, and has one row for a key",
			goal:   atLeast(0.5, "x"),
			run:    ourQueue{stores: b.stores, batched: true}.run,
		},
		{
			name:   "the queue alone, one by one",
			remark: "each command comes by itself, as to an edge, and has its receipt when it is committed; those that come while calls are under way share the next",
			run:    ourQueue{stores: b.stores}.run,
		},
		{
			name:   "the queue, inbox and order.create",
			remark: "as one by one, and the effect in a second database, a commit each, exactly once, under the lease of the drain",
			run:    ourQueue{stores: b.stores, effect: true}.run,
		},
		{
			name:   fmt.Sprintf("the queue alone, %d ms per call", addedWait.Milliseconds()),
			remark: "as one by one, over a line that makes every call longer",
			run:    ourQueue{stores: b.stores, wait: addedWait}.run,
		},
		m.batched,
		m.single,
	}
	if graphileInstalled() {
		m.lanes = append(m.lanes,
			&lane{
				name:   "graphile-worker, addJobs",
				remark: "as River with InsertMany, in Node",
				run:    graphileQueue{stores: b.stores, Batch: 1000}.run,
			},
			&lane{
				name:   "graphile-worker, one by one",
				remark: "as River one by one, in Node",
				run:    graphileQueue{stores: b.stores, Batch: 1}.run,
			})
	} else {
		b.say("graphile-worker is not installed (npm ci --prefix bench/graphile) and is left out")
	}
	if err := m.measure(ctx); err != nil {
		return err
	}
	m.report()
	return b.seal(ctx)
}

func (m *queueBench) measure(ctx context.Context) error {
	for round := range m.sizes.rounds {
		m.say("round %d of %d", round+1, m.sizes.rounds)
		lanes := slices.Clone(m.lanes)
		if round%2 == 1 {
			slices.Reverse(lanes)
		}
		for _, l := range lanes {
			w, err := l.run(ctx, load{jobs: m.sizes.queueJobs})
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			l.fast = append(l.fast, w.took)
		}
	}
	for _, l := range m.lanes {
		m.say("%s at 1,000 a minute", l.name)
		w, err := l.run(ctx, load{jobs: m.sizes.queuePaced, every: floodInterval})
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		l.paced = w.latency
	}
	return nil
}

func (m *queueBench) report() {
	n := m.sizes.queueJobs
	s := m.results.section(fmt.Sprintf("%d commands through the queue, as fast as it goes (medians of %d rounds)", n, m.sizes.rounds),
		"", "enqueued and settled", "of River's batches", "of River one by one", "Postgres' CPU", "goal", "")
	for _, l := range m.lanes {
		ratio := m.batched.fast.over(l.fast)
		want, verdict := l.goal.cells(ratio)
		cpu := medianOf(l.fast, func(t took) time.Duration { return t.postgres }) / time.Duration(n)
		s.row(l.name, l.fast.rate(n), times(ratio), times(m.single.fast.over(l.fast)), fmt.Sprintf("%.2f ms each", float64(cpu.Microseconds())/1000), want, verdict)
	}
	for _, l := range m.lanes {
		s.remark("%s: %s.", l.name, l.remark)
	}
	s.remark("Enqueued by %d at once, worked off meanwhile, each queue with up to %d connections.", senders, queueConns)

	s = m.results.section(fmt.Sprintf("From enqueue to ack at 1,000 commands a minute (%d commands)", m.sizes.queuePaced), "", "50 of 100", "95", "99")
	for _, l := range m.lanes {
		s.row(l.name, millis(percentile(l.paced, 50)), millis(percentile(l.paced, 95)), millis(percentile(l.paced, 99)))
	}
	s.remark("Ours asks every %s while it is idle. River listens, and fetches every %s at the earliest, as its own benchmark has it; it settles jobs together, several times a second. graphile-worker listens.",
		idlePoll, riverCooldown)
}

// clock times the jobs of a load.
type clock struct {
	began time.Time
	from  []time.Duration
	until []time.Duration
}

func startClock(jobs int) *clock {
	return &clock{began: time.Now(), from: make([]time.Duration, jobs), until: make([]time.Duration, jobs)}
}

func (c *clock) sent(i int)    { c.from[i] = time.Since(c.began) }
func (c *clock) settled(i int) { c.until[i] = time.Since(c.began) }

// latency is read when all jobs are settled.
func (c *clock) latency() []time.Duration {
	all := make([]time.Duration, len(c.from))
	for i := range all {
		all[i] = c.until[i] - c.from[i]
	}
	return all
}

// send enqueues the jobs of a load, batch by batch, each when its time has come.
func (l load) send(ctx context.Context, c *clock, batch int, enqueue func(ctx context.Context, from, until int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(senders)
	for from := 0; from < l.jobs && ctx.Err() == nil; from += batch {
		until := min(from+batch, l.jobs)
		if l.every > 0 {
			if err := pause(ctx, time.Duration(from)*l.every-time.Since(c.began)); err != nil {
				break
			}
		}
		group.Go(func() error {
			for i := from; i < until; i++ {
				c.sent(i)
			}
			return enqueue(ctx, from, until)
		})
	}
	return group.Wait()
}

// pause waits, and ends early with the context.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
