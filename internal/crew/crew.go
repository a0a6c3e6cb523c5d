// Package crew has the units of a night's run done by all replicas: whoever runs
// the job puts them into the primary's own queue, every replica takes from it,
// and the results go back to the run.
//
// The queue hands out the units of one database in their order and one at a
// time. A replica that dies keeps its units until its lease ends; then another
// does them again, which every unit allows. A database whose units kill whoever
// takes them ends dead after its last attempt, as a failure of the run, and stops
// no other.
package crew

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// lookEvery is how often a replica looks for units, beside when it is told.
	lookEvery = time.Second
	// gatherEvery is how often a run looks for results of other replicas.
	gatherEvery = 200 * time.Millisecond
)

// Options of a crew; all are required.
type Options struct {
	// Pool of the primary's own database, which has the queue too.
	Pool *pgxpool.Pool
	// Name is this replica's, for people.
	Name string
	// Units does the units of each job, by the job's name.
	Units map[string]run.Unit
	// Workers is how many units are done here at a time.
	Workers int
	// Lease is how long the unit of a replica that died waits for another.
	Lease   time.Duration
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Crew is this replica's part of it.
type Crew struct {
	Options
	queue *hosted.Queue
	fence *hosted.Fence
	units *prometheus.CounterVec

	// wake says that there may be something to take.
	wake chan struct{}
	// slots are taken by units that are done here.
	slots chan struct{}

	mu sync.Mutex
	// ended is closed, and made anew, when a unit has ended here.
	ended chan struct{}

	stop    context.CancelFunc
	stopped chan struct{}
}

// New returns a crew that does nothing yet.
func New(opts Options) *Crew {
	transport := hosted.NewPostgres(opts.Pool)
	c := &Crew{
		Options: opts,
		queue:   hosted.NewQueue(transport),
		fence:   hosted.NewFence(transport),
		units: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollingd_crew_units_total",
			Help: "Units of runs that this replica has taken, by job and outcome.",
		}, []string{"job", "outcome"}),
		wake:    make(chan struct{}, 1),
		slots:   make(chan struct{}, opts.Workers),
		ended:   make(chan struct{}),
		stopped: make(chan struct{}),
	}
	opts.Metrics.MustRegister(c.units)
	return c
}

// Start opens the queue of this database and takes units from it until Stop.
func (c *Crew) Start(ctx context.Context) error {
	if err := c.open(ctx); err != nil {
		return fmt.Errorf("open the queue of runs: %w", err)
	}
	// It lives until it is stopped, not until the start is done.
	living, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	go func() {
		defer close(c.stopped)
		var listening sync.WaitGroup
		listening.Go(func() { c.listen(living) })
		c.work(living)
		listening.Wait()
	}()
	return nil
}

// Stop takes no more, gives back what is under way, and waits for it.
func (c *Crew) Stop(ctx context.Context) error {
	if c.stop == nil {
		return nil
	}
	c.stop()
	select {
	case <-c.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open makes the types known and opens the gates. This queue has no other side
// that could be away: units come in and are taken at any time.
func (c *Crew) open(ctx context.Context) error {
	for job := range c.Units {
		_, err := c.Pool.Exec(ctx, `
			insert into public.continuity_command_types (command_type, on_dead)
			values ($1, 'skip')
			on conflict do nothing`, commandType(job))
		if err != nil {
			return pg.Translate(err)
		}
	}
	state, err := c.fence.State(ctx)
	if err == nil && state.Mode == continuity.Direct {
		state, err = c.fence.ForceQueue(ctx, state.Epoch, "rollingd", "units of runs")
	}
	if err == nil && state.Mode == continuity.Queue {
		_, err = c.fence.BeginCatchup(ctx, state.Epoch, max(state.Term, 1))
	}
	return err
}

// work takes units until ctx ends, and waits for those that are under way.
func (c *Crew) work(ctx context.Context) {
	var busy sync.WaitGroup
	defer busy.Wait()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		taken, err := c.take(ctx, &busy)
		if err != nil && ctx.Err() == nil {
			c.Logger.WarnContext(ctx, "units of runs not taken", "error", err)
		}
		if taken {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-ticker.C:
		}
	}
}

// take claims as many units as there are free slots, and reports whether there
// may be more.
func (c *Crew) take(ctx context.Context, busy *sync.WaitGroup) (bool, error) {
	free := cap(c.slots) - len(c.slots) // Only this goroutine fills them.
	if free == 0 || ctx.Err() != nil {
		return false, nil
	}
	claims, err := c.queue.Claim(ctx, hosted.ClaimOptions{Worker: c.Name, Limit: min(free, hosted.MaxBatch), Lease: c.Lease})
	if err != nil {
		return false, err
	}
	for _, claim := range claims {
		c.slots <- struct{}{}
		busy.Go(func() {
			defer func() {
				<-c.slots
				c.tell()
				c.look()
			}()
			c.do(ctx, claim)
		})
	}
	return len(claims) > 0, nil
}

// look has this replica look for units at once.
func (c *Crew) look() {
	select {
	case c.wake <- struct{}{}:
	default: // It will look anyway.
	}
}

// tell wakes the runs that wait here: a unit has ended.
func (c *Crew) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.ended)
	c.ended = make(chan struct{})
}

// anyEnded returns a channel that is closed when the next unit has ended here.
func (c *Crew) anyEnded() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// keep extends a claim until ctx ends, and ends the work when it is lost or
// could not be extended in time, or when its run has ended: one that hangs would
// keep its database from every later run.
func (c *Crew) keep(ctx context.Context, claim continuity.Claim, runID int64, end context.CancelCauseFunc) {
	ticker := time.NewTicker(c.Lease / 3)
	defer ticker.Stop()
	start := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		err := c.queue.Extend(ctx, claim.CommandID, claim.Token, c.Lease)
		switch {
		case err == nil:
			start = began
		case errors.Is(err, continuity.ErrLostClaim), time.Since(start) >= c.Lease:
			end(fmt.Errorf("%w: %w", continuity.ErrLostClaim, err))
			return
		}
		if running, err := c.running(ctx, runID); err == nil && !running {
			end(errRunEnded)
			return
		}
	}
}
