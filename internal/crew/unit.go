package crew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// unit is the payload of a command.
type unit struct {
	Job   string    `json:"job"`
	Key   string    `json:"key"`
	RunID int64     `json:"runId"`
	Actor string    `json:"actor"`
	Zone  string    `json:"zone,omitempty"`
	Scope run.Scope `json:"scope"`
}

func commandType(job string) string { return "run." + job }

// aggregate is the type under which units are ordered: those of one database or
// restaurant are done one after the other, whatever the jobs.
const aggregate = "run"

// errRunEnded ends a unit that nobody waits for any more.
var errRunEnded = errors.New("the run has ended")

const (
	// settleTimeout bounds what is said to the queue after the work.
	settleTimeout = 10 * time.Second
	// unknownFor is how long a unit waits that an older version has taken, which does
	// not know its job, for a replica of the version that has handed it out.
	unknownFor = 2 * time.Second
)

// do does a unit that was claimed:
//
//  1. it is left out if its run has ended, and stopped when that ends: nobody
//     waits for it, and the flags and the scope of that run are not those of now
//  2. the work, which is repeatable
//  3. the result
//  4. the command is acknowledged
//
// A crash before 4 has it done again; a second result of the same unit is not
// taken. A stop gives the unit back.
func (c *Crew) do(ctx context.Context, claim continuity.Claim) {
	// What is said to the queue is said after a stop, too.
	settle, cancelSettle := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelSettle()
	work, end := context.WithCancelCause(ctx)
	defer end(nil)

	var u unit
	err := json.Unmarshal(claim.Payload, &u)
	if err != nil {
		c.settled(settle, u, "refused", c.fail(settle, claim, err))
		return
	}
	go c.keep(work, claim, u.RunID, end)
	running, err := c.running(work, u.RunID)
	if err == nil && !running {
		err = errRunEnded
	}
	todo := c.Units[u.Job]
	if err == nil && todo == nil {
		c.settled(settle, u, "not known", c.giveBack(settle, claim, unknownFor))
		return
	}
	if err == nil {
		report := &run.Report{}
		start := time.Now()
		protect(work, c, todo, u, report)
		if err = context.Cause(work); err == nil {
			err = c.store(settle, u, report)
		}
		c.Logger.DebugContext(ctx, "unit of a run done", "cron", u.Job, "run_id", u.RunID, "day_db", u.Key, "elapsed", time.Since(start))
	}
	switch {
	case err == nil:
		c.settled(settle, u, "done", c.ack(settle, claim))
	case errors.Is(err, errRunEnded):
		c.settled(settle, u, "left out", c.ack(settle, claim))
	case errors.Is(err, continuity.ErrLostClaim):
		c.settled(settle, u, "lost", nil)
	case ctx.Err() != nil:
		c.settled(settle, u, "given back", c.giveBack(settle, claim, 0))
	default:
		c.settled(settle, u, "failed", c.fail(settle, claim, err))
	}
}

// protect does the work and makes a panic a failure of its own.
func protect(ctx context.Context, c *Crew, todo run.Unit, u unit, report *run.Report) {
	defer func() {
		if p := recover(); p != nil {
			c.Logger.ErrorContext(ctx, "unit of a run panicked", "cron", u.Job, "run_id", u.RunID, "panic", p, "stack", string(debug.Stack()))
			report.Fail(run.Failure{DBName: u.Key, Step: "panic", Error: fmt.Sprintf("panic: %v", p)})
		}
	}()
	todo(ctx, run.Run{ID: u.RunID, Actor: u.Actor, Scope: u.Scope, Zone: u.Zone, Report: report}, u.Key)
}

func (c *Crew) running(ctx context.Context, runID int64) (running bool, err error) {
	err = c.Pool.QueryRow(ctx, `select exists (select from cron_runs where id = $1 and state = 'running')`, runID).Scan(&running)
	return running, pg.Translate(err)
}

// store keeps a result for the run; the first one of a unit counts.
func (c *Crew) store(ctx context.Context, u unit, report *run.Report) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	result, err := json.Marshal(report.Result())
	if err != nil {
		return err
	}
	_, err = c.Pool.Exec(ctx, `
		insert into cron_run_units (run_id, key, result, done_by)
		values ($1, $2, $3, $4)
		on conflict on constraint cron_run_units_pkey do nothing`, u.RunID, u.Key, result, c.Name)
	return pg.Translate(err)
}

func (c *Crew) ack(ctx context.Context, claim continuity.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return c.queue.Ack(ctx, claim.CommandID, claim.Token)
}

func (c *Crew) fail(ctx context.Context, claim continuity.Claim, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := c.queue.Fail(ctx, claim.CommandID, claim.Token, cause.Error(), false)
	return err
}

// giveBack leaves a unit to whoever takes it after a while. No attempt is counted.
func (c *Crew) giveBack(ctx context.Context, claim continuity.Claim, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return c.queue.Snooze(ctx, claim.CommandID, claim.Token, wait)
}

// settled counts how a unit ended here. What the queue was not told it finds out
// when the lease ends.
func (c *Crew) settled(ctx context.Context, u unit, outcome string, err error) {
	c.units.WithLabelValues(u.Job, outcome).Inc()
	if err != nil && !errors.Is(err, continuity.ErrLostClaim) {
		c.Logger.WarnContext(ctx, "the queue was not told how a unit ended", "cron", u.Job, "run_id", u.RunID, "outcome", outcome, "error", err)
	}
}
