package crew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

const (
	// retention is how long units are kept for people to look at.
	retention = 14 * 24 * time.Hour
	// purgeBatch is how many are deleted in one statement.
	purgeBatch = 2000
)

// Share returns what has the units of a job done by the crew, for run.Run.Share.
// It returns when each has ended, on whichever replica, and their results are in
// the run's report; or with the cause of ctx, after which replicas leave out what
// they have not begun.
func (c *Crew) Share(job string) func(ctx context.Context, r run.Run, keys []string) error {
	return func(ctx context.Context, r run.Run, keys []string) error {
		if err := c.enqueue(ctx, job, r, keys); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if err != nil {
			return fmt.Errorf("hand out the units: %w", err)
		}
		left := make(map[string]bool, len(keys))
		for _, key := range keys {
			left[key] = true
		}
		ticker := time.NewTicker(gatherEvery)
		defer ticker.Stop()
		for {
			ended := c.anyEnded() // From before the look on.
			err := c.gather(ctx, r, left)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, pg.ErrUnavailable):
				// The results are where they are, until the run's lease has ended.
				c.Logger.WarnContext(ctx, "units of a run not gathered", "run_id", r.ID, "error", err)
			case err != nil:
				return fmt.Errorf("gather the units: %w", err)
			case len(left) == 0:
				c.purge(ctx, r.ID)
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-ended:
			case <-ticker.C:
			}
		}
	}
}

func (c *Crew) enqueue(ctx context.Context, job string, r run.Run, keys []string) error {
	for some := range slices.Chunk(keys, hosted.MaxBatch) {
		if err := c.enqueueSome(ctx, job, r, some); err != nil {
			return err
		}
		c.look()
	}
	_, err := c.Pool.Exec(ctx, `select pg_notify($1, '')`, channel)
	return pg.Translate(err)
}

func (c *Crew) enqueueSome(ctx context.Context, job string, r run.Run, keys []string) error {
	units := make([]hosted.Submission, len(keys))
	for i, key := range keys {
		payload, err := json.Marshal(unit{Job: job, Key: key, RunID: r.ID, Actor: r.Actor, Zone: r.Zone, Scope: r.Scope})
		if err != nil {
			return err
		}
		units[i].Command = continuity.Command{
			CommandID:      uuid.New(),
			IdempotencyKey: fmt.Sprintf("run/%d/%s", r.ID, key),
			CommandType:    commandType(job),
			AggregateType:  aggregate,
			AggregateID:    key,
			Payload:        payload,
		}
	}
	for {
		entries, err := c.queue.EnqueueAll(ctx, units)
		for _, e := range entries {
			err = errors.Join(err, e.Err)
		}
		if !errors.Is(err, continuity.ErrUnavailable) && !errors.Is(err, continuity.ErrOutcomeUnknown) {
			return err
		}
		// Those that are in the queue are known by their keys.
		c.Logger.WarnContext(ctx, "units of a run not handed out yet", "run_id", r.ID, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(gatherEvery):
		}
	}
}

// gather takes in the results that have come, and the units that are dead. It may
// be repeated when it has failed.
func (c *Crew) gather(ctx context.Context, r run.Run, left map[string]bool) error {
	rows, err := c.Pool.Query(ctx, `select key, result from cron_run_units where run_id = $1 and key = any($2)`,
		r.ID, slices.Collect(maps.Keys(left)))
	if err != nil {
		return pg.Translate(err)
	}
	var (
		key    string
		result run.Result
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &result}, func() error {
		delete(left, key)
		r.Report.Merge(result)
		result = run.Result{}
		return nil
	})
	if err != nil {
		return pg.Translate(err)
	}
	rows, err = c.Pool.Query(ctx, `
		select aggregate_id, command_id::text, coalesce(last_error, '')
		from public.continuity_commands
		where status = 'dead'
		  and skipped_at is null
		  and aggregate_type = $1
		  and payload ->> 'runId' = $2::text`, aggregate, fmt.Sprint(r.ID))
	if err != nil {
		return pg.Translate(err)
	}
	var command, last string
	_, err = pgx.ForEachRow(rows, []any{&key, &command, &last}, func() error {
		if left[key] {
			delete(left, key)
			c.Logger.ErrorContext(ctx, "unit of a run is dead", "run_id", r.ID, "day_db", key, "command_id", command)
			r.Report.Fail(run.Failure{
				DBName: key,
				Step:   "work",
				Error:  fmt.Sprintf("no replica got through it; the last one: %s (command %s)", last, command),
			})
		}
		return nil
	})
	return pg.Translate(err)
}

// purge deletes what nobody needs any more, now that a run has its results. It may fail: the next run repeats it.
// The queue's own purge spares the current epoch, and this queue never has
// another. A unit that is dead stands in the report of its run.
func (c *Crew) purge(ctx context.Context, runID int64) {
	_, err := c.Pool.Exec(ctx, `
		delete from cron_run_units u
		using cron_runs r
		where r.id = u.run_id
		  and (r.id = $1 or r.state <> 'running')`, runID)
	for err == nil {
		var purged pgconn.CommandTag
		purged, err = c.Pool.Exec(ctx, `
			delete from public.continuity_commands
			where queue_sequence in (
			  select queue_sequence
			  from public.continuity_commands
			  where aggregate_type = $1
			    and status in ('acked', 'dead')
			    and settled_at < now() - $2::interval
			  limit $3)`, aggregate, retention, purgeBatch)
		if purged.RowsAffected() == 0 {
			break
		}
	}
	if err != nil {
		c.Logger.WarnContext(ctx, "settled units of runs not purged", "error", err)
	}
}
