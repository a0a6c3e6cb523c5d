package cron

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// scheduleActor signs what a run does that nobody started by hand.
	scheduleActor = "cron"
	// progressEvery is how often a run writes how far it has come.
	progressEvery = 2 * time.Second
	// endTimeout bounds the write of a run's end, also after its context has ended.
	endTimeout = 10 * time.Second
)

// The steps of failures that are the whole run's.
const (
	stepRun     = "run"
	stepPanic   = "panic"
	stepTimeout = "timeout"
	stepStop    = "stop"
	stepLease   = "lease"
)

// What kept a run from its end.
const (
	interruptedByStop  = "stop"
	interruptedByLease = "lease"
)

// orphaned is what is said of a run whose process went away.
var orphaned = run.Failure{Step: stepLease, Error: "the process that ran it stopped or lost its lease"}

// hasOrphan reports whether a run of the job is on record as running without
// its lease.
func hasOrphan(ctx context.Context, db pg.Querier, job string) (bool, error) {
	var found bool
	err := db.QueryRow(ctx, `
		select exists (
		  select from cron_runs r
		  where r.cron = $1
		    and r.state = 'running'
		    and not exists (
		      select from leases l
		      where l.name = $2
		        and l.token = r.token
		        and l.expires_at > now()))`, job, leaseName(job)).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("look for orphaned runs of %s: %w", job, err)
	}
	return found, nil
}

// closeOrphans ends the runs of a job that lost their process. Whoever holds
// the lease, and runs nothing yet, knows that no run of the job is alive.
func closeOrphans(ctx context.Context, tx pgx.Tx, job string) error {
	_, err := tx.Exec(ctx, `
		update cron_runs set
		  state = 'failed',
		  interrupted_by = $3,
		  failures = failures || $2::jsonb,
		  finished_at = now()
		where cron = $1
		  and state = 'running'`, job, []run.Failure{orphaned}, interruptedByLease)
	if err != nil {
		return fmt.Errorf("close orphaned runs of %s: %w", job, err)
	}
	return nil
}

// beginDue enters the run of the first scheduled time that waits for one; nil
// if none does.
func (r *Registry) beginDue(ctx context.Context, lease fence.Lease, job Job) (*Run, error) {
	var row *Run
	err := r.begin(ctx, lease, job, func(tx pgx.Tx) error {
		due, err := r.due(ctx, tx, job)
		if err != nil || due == nil {
			return err
		}
		row = &Run{Zone: &due.zone, DueAt: &due.at, Trigger: due.trigger, Actor: scheduleActor}
		return insertRun(ctx, tx, lease, job, row)
	})
	return row, err
}

// begin opens the transaction in which a run is entered: under the lease, and
// after the runs that lost theirs were closed.
func (r *Registry) begin(ctx context.Context, lease fence.Lease, job Job, fn func(pgx.Tx) error) error {
	err := pg.WithTx(ctx, r.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		if err := closeOrphans(ctx, tx, job.Name); err != nil {
			return err
		}
		return fn(tx)
	})
	if err != nil {
		return fmt.Errorf("begin run of %s: %w", job.Name, err)
	}
	return nil
}

// insertRun enters a run and completes row with what it was given.
func insertRun(ctx context.Context, tx pgx.Tx, lease fence.Lease, job Job, row *Run) error {
	row.Cron, row.Token, row.State = job.Name, lease.Token, Running
	return tx.QueryRow(ctx, `
		insert into cron_runs (cron, zone, due_at, trigger, actor, scope, dry_run, token)
		values (@cron, @zone, @due, @trigger, @actor, @scope, @dry, @token)
		returning id, started_at`,
		pgx.NamedArgs{
			"cron":    row.Cron,
			"zone":    row.Zone,
			"due":     row.DueAt,
			"trigger": row.Trigger,
			"actor":   row.Actor,
			"scope":   row.Scope,
			"dry":     row.DryRun,
			"token":   row.Token,
		}).Scan(&row.ID, &row.StartedAt)
}

// execute runs the job and writes how it ended.
func (r *Registry) execute(ctx context.Context, lease fence.Lease, job Job, row Run) {
	log := r.logger.With("cron", job.Name, "run_id", row.ID, "token", row.Token)
	log.InfoContext(ctx, "run started", "trigger", row.Trigger, "actor", row.Actor, "dry_run", row.DryRun)
	began := time.Now()

	report := &run.Report{}
	todo := run.Run{
		ID:     row.ID,
		Actor:  row.Actor,
		Scope:  row.Scope,
		DryRun: row.DryRun,
		Lease:  lease,
		Report: report,
	}
	if r.share != nil && !row.DryRun {
		todo.Share = r.share(job.Name)
	}
	if row.Zone != nil && job.PerZone {
		todo.Zone = *row.Zone
	}
	work, cancel := context.WithTimeoutCause(ctx, job.MaxDuration, errTooLong)
	progress := r.tellProgress(work, lease, row, report)
	err := protect(work, job, todo)
	failure, interrupted := r.judge(ctx, work, err)
	cancel()
	<-progress // Its last write must not come after the end.

	if failure != nil {
		report.Fail(*failure)
	}
	state := outcome(failure, report)
	elapsed := time.Since(began)
	if err := r.end(ctx, lease, row, state, interrupted, report); err != nil {
		log.ErrorContext(ctx, "run ended and cannot say so", "state", state, "elapsed", elapsed, "error", err)
		return
	}
	r.metrics.ended(job.Name, state, elapsed)
	log.InfoContext(ctx, "run ended", "state", state, "failures", len(report.Failures()), "elapsed", elapsed)
}

var errTooLong = errors.New("the run took longer than its job may")

// panicError carries a panic out of a job; its message has no stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// protect runs the job and makes a panic an error.
func protect(ctx context.Context, job Job, todo run.Run) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return job.Run(ctx, todo)
}

// judge says what the error of a job means for its run: nil for none, and what
// interrupted it.
func (r *Registry) judge(ctx, work context.Context, err error) (failure *run.Failure, interrupted *string) {
	if err == nil {
		return nil, nil
	}
	panicked := (*panicError)(nil)
	switch cause := context.Cause(work); {
	case errors.As(err, &panicked):
		r.logger.ErrorContext(ctx, "job panicked", "panic", panicked.Error(), "stack", string(panicked.stack))
		return &run.Failure{Step: stepPanic, Error: panicked.Error()}, nil
	case errors.Is(cause, errTooLong):
		return &run.Failure{Step: stepTimeout, Error: fmt.Sprintf("%v: %v", errTooLong, err)}, nil
	case errors.Is(cause, fence.ErrLost):
		by := interruptedByLease
		return &orphaned, &by
	case work.Err() != nil:
		by := interruptedByStop
		return &run.Failure{Step: stepStop, Error: errStopped.Error() + " before the run was through"}, &by
	default:
		return &run.Failure{Step: stepRun, Error: err.Error()}, nil
	}
}

func outcome(failure *run.Failure, report *run.Report) State {
	switch {
	case failure != nil:
		return Failed
	case len(report.Failures()) > 0:
		return Partial
	default:
		return Succeeded
	}
}

// end writes the end of a run, unless its lease is lost: then another process
// has closed it or will.
func (r *Registry) end(ctx context.Context, lease fence.Lease, row Run, state State, interrupted *string, report *run.Report) error {
	// A run that is stopped has no context left, and its end is to be written all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return r.write(ctx, lease, row, report, `,
			  state = @state,
			  interrupted_by = @interrupted,
			  finished_at = now()`,
		pgx.NamedArgs{"state": state, "interrupted": interrupted})
}

// tellProgress writes every few seconds how far a run has come, until ctx ends;
// the channel is closed when it has stopped.
func (r *Registry) tellProgress(ctx context.Context, lease fence.Lease, row Run, report *run.Report) <-chan struct{} {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				// A failure here harms nobody: the next write, or the end, says more.
				_ = r.write(ctx, lease, row, report, ``, pgx.NamedArgs{})
			}
		}
	}()
	return stopped
}

// write updates the row of a run under its lease: what the run has reported,
// and the assignments, which begin with a comma. It fails with fence.ErrLost
// when the run is no longer this process's.
func (r *Registry) write(ctx context.Context, lease fence.Lease, row Run, report *run.Report, assignments string, args pgx.NamedArgs) error {
	args["id"], args["token"] = row.ID, lease.Token
	args["counters"] = maps.Collect(maps.All(report.Counters()))
	args["changes"] = append([]run.Change{}, report.Changes()...)
	args["failures"] = storable(report.Failures())
	err := pg.WithTx(ctx, r.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update cron_runs set
			  counters = @counters,
			  changes = @changes,
			  failures = @failures`+assignments+`
			where id = @id
			  and token = @token
			  and state = 'running'`, args)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("%w: run %d was closed", fence.ErrLost, row.ID)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write run %d: %w", row.ID, err)
	}
	return nil
}

// storable makes failures fit for jsonb, which takes no NUL: an error may quote
// a document's id, and such an id exists.
func storable(failures []run.Failure) []run.Failure {
	stored := append([]run.Failure{}, failures...)
	for i := range stored {
		for _, text := range []*string{&stored[i].CompanyID, &stored[i].RestaurantID, &stored[i].DBName, &stored[i].Step, &stored[i].Error} {
			*text = strings.ReplaceAll(*text, "\x00", "\u2400")
		}
	}
	return stored
}
