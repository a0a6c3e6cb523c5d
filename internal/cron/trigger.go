package cron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

var (
	// ErrUnknownCron is returned for a job that is not registered.
	ErrUnknownCron = errors.New("no such cron")
	// ErrRunning is returned while a run of the job is under way; RunningError
	// names it.
	ErrRunning = errors.New("cron is running")
	// ErrPaused is returned for a job that is paused; PausedError says why.
	ErrPaused = errors.New("cron is paused")
	// ErrStopped is returned when the registry has been stopped.
	ErrStopped = errors.New("crons are stopped")
)

// RunningError names the run that is under way.
type RunningError struct {
	Cron string
	// RunID is 0 while a run is being entered or one has lost its process.
	RunID int64
}

func (e *RunningError) Error() string {
	if e.RunID == 0 {
		return fmt.Sprintf("%s is being started by another process", e.Cron)
	}
	return fmt.Sprintf("%s is running: run %d", e.Cron, e.RunID)
}

// Is makes a RunningError an ErrRunning.
func (e *RunningError) Is(target error) bool { return target == ErrRunning }

// PausedError says why a job is paused.
type PausedError struct {
	Cron string
	Pause
}

func (e *PausedError) Error() string {
	return fmt.Sprintf("%s was paused by %s: %s", e.Cron, e.Actor, e.Reason)
}

// Is makes a PausedError an ErrPaused.
func (e *PausedError) Is(target error) bool { return target == ErrPaused }

// ScopeError refuses the scope of a manual run.
type ScopeError struct {
	// Field is companyId or restaurantId.
	Field  string
	Reason string
}

func (e *ScopeError) Error() string { return e.Reason }

// Request is what a manual run is asked to do.
type Request struct {
	Actor  string
	Scope  run.Scope
	DryRun bool
	// Wait makes Trigger return the run when it has ended.
	Wait bool
}

const (
	// startWait is how long a manual run waits for a lease under which nothing
	// runs: another replica has it for the moment of a look.
	startWait = 3 * time.Second
	startStep = 100 * time.Millisecond
)

// Trigger starts a run by hand, and returns it as it was entered, or as it
// ended if the request waits. The run goes on when ctx ends.
//
// It returns ErrUnknownCron, a ScopeError, what the job's Check says, a
// RunningError, a PausedError or ErrStopped, and then nothing has run.
func (r *Registry) Trigger(ctx context.Context, name string, req Request) (Run, error) {
	job, err := r.job(name)
	if err != nil {
		return Run{}, err
	}
	if err := r.checkScope(ctx, req.Scope); err != nil {
		return Run{}, err
	}
	if job.Check != nil {
		if err := job.Check(ctx, req.Scope, req.DryRun); err != nil {
			return Run{}, err
		}
	}
	for began := time.Now(); ; {
		row, err := r.triggerOnce(ctx, job, req)
		held := (*fence.HeldError)(nil)
		if !errors.As(err, &held) {
			return row, err
		}
		running, err := r.runningID(ctx, name)
		if err != nil {
			return Run{}, err
		}
		if running != 0 || time.Since(began) > startWait {
			return Run{}, &RunningError{Cron: name, RunID: running}
		}
		if err := pause(ctx, startStep); err != nil {
			return Run{}, err
		}
	}
}

// triggerOnce returns a fence.HeldError when somebody else has the lease.
func (r *Registry) triggerOnce(ctx context.Context, job Job, req Request) (Run, error) {
	entered := make(chan Run, 1)
	ended := make(chan error, 1)
	work := func(ctx context.Context) {
		ended <- r.leases.Hold(ctx, leaseName(job.Name), func(ctx context.Context, lease fence.Lease) error {
			row, err := r.beginManual(ctx, lease, job, req)
			if err != nil {
				return err
			}
			entered <- row
			r.execute(ctx, lease, job, row)
			return nil
		})
	}
	select {
	case r.launch <- work:
	case <-r.stopping:
		return Run{}, ErrStopped
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	}
	var row Run
	select {
	case row = <-entered:
	case err := <-ended:
		// A short run may have ended before its entry was looked at.
		if err != nil {
			return Run{}, r.orStopped(err)
		}
		row = <-entered
		return r.Run(ctx, row.ID)
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	}
	if !req.Wait {
		return row, nil
	}
	select {
	case err := <-ended:
		if err != nil {
			return Run{}, r.orStopped(err)
		}
		return r.Run(ctx, row.ID)
	case <-ctx.Done():
		return Run{}, context.Cause(ctx)
	}
}

// orStopped makes ErrStopped of an error that comes of the stop.
func (r *Registry) orStopped(err error) error {
	select {
	case <-r.stopping:
		if errors.Is(err, context.Canceled) {
			return ErrStopped
		}
	default:
	}
	return err
}

func (r *Registry) beginManual(ctx context.Context, lease fence.Lease, job Job, req Request) (Run, error) {
	row := Run{Trigger: TriggerManual, Actor: req.Actor, Scope: req.Scope, DryRun: req.DryRun}
	err := r.begin(ctx, lease, job, func(tx pgx.Tx) error {
		paused, err := loadPause(ctx, tx, job.Name)
		if err != nil {
			return err
		}
		if paused != nil {
			return &PausedError{Cron: job.Name, Pause: *paused}
		}
		return insertRun(ctx, tx, lease, job, &row)
	})
	if paused := (*PausedError)(nil); errors.As(err, &paused) {
		err = paused // All that there is to say.
	}
	row.Counters, row.Changes, row.Failures = map[string]int64{}, []run.Change{}, []run.Failure{}
	return row, err
}

// job returns a registered job, or ErrUnknownCron.
func (r *Registry) job(name string) (Job, error) {
	job, ok := r.byName[name]
	if !ok {
		return Job{}, fmt.Errorf("%w: %q", ErrUnknownCron, name)
	}
	return job, nil
}

// checkScope refuses a company or a restaurant that is not registered: a typing
// error would otherwise be a run that does nothing and succeeds.
func (r *Registry) checkScope(ctx context.Context, scope run.Scope) error {
	if scope.CompanyID == "" {
		if scope.RestaurantID != "" {
			return &ScopeError{Field: "companyId", Reason: "restaurantId needs the companyId that it belongs to"}
		}
		return nil
	}
	var company, restaurant bool
	err := r.pool.QueryRow(ctx, `
		select
		  exists (select from restaurants where company_id = $1),
		  exists (select from restaurants where company_id = $1 and restaurant_id = $2)`,
		scope.CompanyID, scope.RestaurantID).Scan(&company, &restaurant)
	switch {
	case err != nil:
		return fmt.Errorf("look up scope: %w", pg.Translate(err))
	case !company:
		return &ScopeError{Field: "companyId", Reason: fmt.Sprintf("no restaurant of company %q is registered", scope.CompanyID)}
	case scope.RestaurantID != "" && !restaurant:
		return &ScopeError{
			Field:  "restaurantId",
			Reason: fmt.Sprintf("company %q has no restaurant %q", scope.CompanyID, scope.RestaurantID),
		}
	}
	return nil
}

// runningID returns the run of the job that is under way, 0 for none.
func (r *Registry) runningID(ctx context.Context, job string) (int64, error) {
	var id int64
	err := r.pool.QueryRow(ctx, `select id from cron_runs where cron = $1 and state = 'running'`, job).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("look for a run of %s: %w", job, pg.Translate(err))
	}
	return id, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
