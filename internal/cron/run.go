package cron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// What started a run.
const (
	TriggerSchedule = "schedule"
	TriggerManual   = "manual"
	TriggerCatchUp  = "catchup"
)

// State of a run.
type State string

// The states of a run.
const (
	Running State = "running"
	// Succeeded: everything in the scope was done.
	Succeeded State = "succeeded"
	// Partial: the run went through, and its failures say what was not done.
	Partial State = "partial"
	// Failed: the run did not go through.
	Failed State = "failed"
)

// Run is a run of a job as it is on record.
type Run struct {
	ID   int64  `json:"id"`
	Cron string `json:"cron"`
	// Zone and DueAt are of the scheduled time that the run serves; nil for a
	// manual run.
	Zone    *string    `json:"zone"`
	DueAt   *time.Time `json:"dueAt"`
	Trigger string     `json:"trigger"`
	// Actor is who started a manual run, "cron" else.
	Actor      string     `json:"actor"`
	Scope      run.Scope  `json:"scope"`
	DryRun     bool       `json:"dryRun"`
	State      State      `json:"state"`
	StartedAt  time.Time  `json:"startedAt"`
	FinishedAt *time.Time `json:"finishedAt"`
	// Token is the fencing token of the lease that the run held.
	Token    int64            `json:"token"`
	Counters map[string]int64 `json:"counters"`
	Changes  []run.Change     `json:"changes"`
	Failures []run.Failure    `json:"failures"`
}

// ErrUnknownRun is returned for a run that is not on record.
var ErrUnknownRun = errors.New("no such run")

const runColumns = `
  id,
  cron,
  zone,
  due_at,
  trigger,
  actor,
  scope,
  dry_run,
  state,
  started_at,
  finished_at,
  token,
  counters,
  changes,
  failures`

func scanRun(row pgx.CollectableRow) (Run, error) {
	var r Run
	err := row.Scan(&r.ID, &r.Cron, &r.Zone, &r.DueAt, &r.Trigger, &r.Actor, &r.Scope, &r.DryRun, &r.State,
		&r.StartedAt, &r.FinishedAt, &r.Token, &r.Counters, &r.Changes, &r.Failures)
	return r, err
}

// Run returns the run with this id, or ErrUnknownRun.
func (r *Registry) Run(ctx context.Context, id int64) (Run, error) {
	rows, err := r.pool.Query(ctx, `select `+runColumns+` from cron_runs where id = $1`, id)
	if err != nil {
		return Run{}, fmt.Errorf("load run %d: %w", id, pg.Translate(err))
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return Run{}, fmt.Errorf("%w: %d", ErrUnknownRun, id)
	}
	if err != nil {
		return Run{}, fmt.Errorf("load run %d: %w", id, pg.Translate(err))
	}
	return found, nil
}

// Filter selects runs; zero fields select all.
type Filter struct {
	Cron string
	// BeforeID continues a listing behind the run with this id.
	BeforeID int64
	// Limit bounds the listing; 0 is no bound.
	Limit int
}

// Runs returns the runs that the filter selects, the latest first.
func (r *Registry) Runs(ctx context.Context, f Filter) ([]Run, error) {
	rows, err := r.pool.Query(ctx, `select `+runColumns+` from cron_runs
		where (@cron = '' or cron = @cron)
		  and (@before::bigint = 0 or id < @before)
		order by id desc
		limit nullif(@limit::int, 0)`,
		pgx.NamedArgs{"cron": f.Cron, "before": f.BeforeID, "limit": f.Limit})
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", pg.Translate(err))
	}
	runs, err := pgx.CollectRows(rows, scanRun)
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", pg.Translate(err))
	}
	return runs, nil
}
