// Package cron runs the periodic jobs, once per scheduled time across all
// replicas.
//
// It is level-triggered: the clock of this process only wakes it up. What is
// due is found by comparing, by Postgres' now(), the last scheduled time of a
// job in each time zone with the runs that are on record; a scheduled time
// without a run is served, late if need be and once however many were missed.
//
// One run per job at a time holds a lease, and every write to a run's row is
// made under its fencing token. A process that dies leaves a run without a
// lease; whoever looks next closes it as failed and serves its time again.
package cron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	robfig "github.com/robfig/cron/v3"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// DefaultMaxDuration ends a run of a job that names no limit of its own.
	DefaultMaxDuration = 3 * time.Hour
	// lookEvery is how often what is due is looked for besides at the scheduled
	// times: it finds new zones, runs that lost their process, and resumed jobs.
	lookEvery = time.Minute
)

// Job is a periodic piece of work. It must be idempotent: a run that was cut
// off is repeated.
type Job struct {
	// Name identifies the job for ever: in the API, the lease and the history.
	Name        string
	Description string
	// Schedule is a cron expression of five fields, such as "0 5 * * *".
	Schedule string
	// PerZone gives the job an entry in every time zone in use, whose runs are
	// narrowed to the restaurants of that zone. Without it there is one entry, in UTC.
	PerZone bool
	// Destructive says that the job may drop a database.
	Destructive bool
	// RepeatPartial has a scheduled run that left something out repeated like one
	// that failed as a whole: what it left out must not wait for the next night.
	RepeatPartial bool
	// MaxDuration ends a run that takes longer; zero is DefaultMaxDuration.
	MaxDuration time.Duration
	// Check refuses the scope of a manual run before it starts; nil takes all.
	Check func(ctx context.Context, scope run.Scope, dryRun bool) error
	// Run does the work. What goes wrong for one restaurant is noted in the
	// run's report and does not end it; an error is the failure of the whole run.
	Run func(ctx context.Context, r run.Run) error
}

// Options of a registry.
type Options struct {
	Pool   *pgxpool.Pool
	Leases *fence.Leases
	Logger *slog.Logger
	// Metrics registers the registry's metrics; nil for none.
	Metrics prometheus.Registerer
	// NoCatchUp leaves out scheduled times that were missed by more than a few
	// minutes.
	NoCatchUp bool
	// Share returns what has the units of a job done by all replicas, for
	// run.Run.Share; nil has each run done where it was started.
	Share func(job string) func(ctx context.Context, r run.Run, keys []string) error
}

// Registry holds the jobs and runs them between Start and Stop.
type Registry struct {
	pool    *pgxpool.Pool
	leases  *fence.Leases
	logger  *slog.Logger
	metrics *metrics
	catchUp bool
	share   func(job string) func(ctx context.Context, r run.Run, keys []string) error

	jobs   []Job
	byName map[string]Job
	zones  *zones

	// launch hands a manual run to the supervisor, under whose context it goes on
	// after the request that asked for it has ended.
	launch chan func(context.Context)
	stop   context.CancelCauseFunc
	// stopping is closed when no run is started any more, stopped when all have ended.
	stopping chan struct{}
	stopped  chan struct{}
	start    sync.Once
}

// New returns a registry of the jobs, or an error that names a job whose
// description is wrong.
func New(opts Options, jobs ...Job) (*Registry, error) {
	r := &Registry{
		pool:     opts.Pool,
		leases:   opts.Leases,
		logger:   opts.Logger,
		metrics:  newMetrics(opts.Metrics),
		catchUp:  !opts.NoCatchUp,
		share:    opts.Share,
		byName:   make(map[string]Job),
		zones:    newZones(opts.Logger),
		launch:   make(chan func(context.Context)),
		stopping: make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	for _, job := range jobs {
		if job.Name == "" || job.Run == nil {
			return nil, fmt.Errorf("job %q needs a name and something to run", job.Name)
		}
		if _, twice := r.byName[job.Name]; twice {
			return nil, fmt.Errorf("job %s is registered twice", job.Name)
		}
		if _, err := parse(job.Schedule, time.UTC); err != nil {
			return nil, fmt.Errorf("schedule of job %s: %w", job.Name, err)
		}
		if job.MaxDuration == 0 {
			job.MaxDuration = DefaultMaxDuration
		}
		r.jobs = append(r.jobs, job)
		r.byName[job.Name] = job
	}
	return r, nil
}

// errStopped is why the context of a run ends when the registry stops.
var errStopped = errors.New("the server was stopped")

// Start looks at once for what is due, and goes on until Stop.
func (r *Registry) Start() {
	r.start.Do(func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		r.stop = cancel
		go r.supervise(ctx)
	})
}

// Stop ends all runs and returns when they have written their end, or with the
// context's error when that takes too long. What is cut off is caught up at the
// next start.
func (r *Registry) Stop(ctx context.Context) error {
	r.start.Do(func() {
		r.stop = func(error) {}
		close(r.stopping)
		close(r.stopped)
	})
	r.stop(errStopped)
	select {
	case <-r.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop crons: %w", context.Cause(ctx))
	}
}

func (r *Registry) supervise(ctx context.Context) {
	defer close(r.stopped)
	clock := robfig.New(robfig.WithLocation(time.UTC))
	clock.Start()
	defer clock.Stop()

	var work sync.WaitGroup
	defer work.Wait()
	for _, job := range r.jobs {
		work.Go(func() { r.watch(ctx, clock, job) })
	}
	for {
		select {
		case f := <-r.launch:
			work.Go(func() { f(ctx) })
		case <-ctx.Done():
			close(r.stopping)
			return
		}
	}
}
