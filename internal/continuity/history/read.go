package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

const page = 1000

func (c *check) readEpochs(ctx context.Context) error {
	c.gates = make(map[continuity.Epoch]bool)
	for after := int64(0); ; {
		flips, err := c.Fence.Log(ctx, after, page)
		if err != nil {
			return err
		}
		for _, f := range flips {
			after = f.ID
			c.log = append(c.log, f)
		}
		if len(flips) < page {
			return nil
		}
	}
}

func (c *check) readQueue(ctx context.Context) error {
	c.queue = make(map[string]hosted.QueuedCommand)
	for {
		commands, err := c.Queue.List(ctx, "", c.last, page)
		if err != nil {
			return err
		}
		for _, q := range commands {
			c.last = q.Sequence
			c.queue[q.IdempotencyKey] = q
		}
		if len(commands) < page {
			c.report.Accepted = len(c.queue)
			return nil
		}
	}
}

// readPrimary reads what belongs together in one transaction: the primary goes on
// meanwhile, and a new effect has its line in three of the tables.
func (c *check) readPrimary(ctx context.Context) error {
	atOnce := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, c.Primary, atOnce, func(tx pgx.Tx) error {
		if err := c.readFlips(ctx, tx); err != nil {
			return fmt.Errorf("flips: %w", err)
		}
		if err := c.readInbox(ctx, tx); err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
		if err := c.readEvents(ctx, tx); err != nil {
			return fmt.Errorf("events: %w", err)
		}
		if err := c.readSilent(ctx, tx); err != nil {
			return fmt.Errorf("aggregates: %w", err)
		}
		return nil
	})
}

// flip is a line in the primary's log. What was applied under it stands behind
// inboxOrder, up to that of the next.
type flip struct {
	Epoch      continuity.Epoch
	Mode       continuity.Mode
	Closed     bool
	InboxOrder int64
	At         time.Time
}

func (f flip) direct() bool { return !f.Closed && f.Mode == continuity.Direct }

func (c *check) readFlips(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  epoch,
		  mode,
		  closed,
		  inbox_order,
		  at
		from primary_fence_flips
		order by id`)
	if err != nil {
		return err
	}
	c.flips, err = pgx.CollectRows(rows, pgx.RowToStructByPos[flip])
	if err == nil && len(c.flips) == 0 {
		return errors.New("the log is empty")
	}
	return err
}

// entry is a line of the inbox, with what else the primary has about its key.
type entry struct {
	Key           string
	CommandID     uuid.UUID
	AggregateType string
	AggregateID   string
	Way           string
	// Sequence is the place in the queue, nil for a direct write.
	Sequence   *continuity.Sequence
	Epoch      continuity.Epoch
	Outcome    string
	ApplyOrder int64
	AppliedAt  time.Time
	// Counted: it is entered among what the cutover counts.
	Counted bool
	// Refused: it was given back at least once, and a person may have brought it
	// back out of its turn.
	Refused bool
}

const drained = "drained"

func (c *check) readInbox(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  i.idempotency_key,
		  i.command_id,
		  i.aggregate_type,
		  i.aggregate_id,
		  i.way,
		  i.queue_sequence,
		  i.epoch,
		  i.outcome,
		  i.apply_order,
		  i.applied_at,
		  exists (
		    select from primary_drained d
		    where d.idempotency_key = i.idempotency_key),
		  r.idempotency_key is not null
		from continuity_inbox i
		left join primary_refusals r using (idempotency_key)
		order by i.apply_order`)
	if err != nil {
		return err
	}
	if c.inbox, err = pgx.CollectRows(rows, pgx.RowToStructByPos[entry]); err != nil {
		return err
	}
	c.byKey = make(map[string]*entry, len(c.inbox))
	for i := range c.inbox {
		e := &c.inbox[i]
		c.byKey[e.Key] = e
		if e.Way == drained {
			c.report.Drained++
		} else {
			c.report.Direct++
		}
	}
	return nil
}

// event is a line of the primary's outbox. Version is 0 for what has none.
type event struct {
	Type          string
	AggregateType string
	AggregateID   string
	CommandID     uuid.UUID
	Version       int64
	// Present is the aggregate's version now.
	Present int64
}

func (c *check) readEvents(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  e.event_type,
		  e.aggregate_type,
		  e.aggregate_id,
		  (e.payload ->> 'commandId')::uuid,
		  coalesce((e.payload ->> 'version')::bigint, 0),
		  coalesce(o.version, p.version, 0)
		from primary_outbox e
		left join orders o on e.aggregate_type = 'order' and o.order_id = e.aggregate_id
		left join payments p on e.aggregate_type = 'payment' and p.payment_id = e.aggregate_id
		order by e.position`)
	if err != nil {
		return err
	}
	c.events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	return err
}

// readSilent reads the aggregates of which no event tells.
func (c *check) readSilent(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select kind, id
		from (
		  select 'order' as kind, order_id as id from orders
		  union all
		  select 'payment', payment_id from payments
		  union all
		  select 'cashflow', entry_id from cashflow_entries
		) a
		where not exists (
		  select from primary_outbox e
		  where e.aggregate_type = a.kind and e.aggregate_id = a.id)
		order by kind, id`)
	if err != nil {
		return err
	}
	c.silent, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a aggregate, err error) {
		return a, row.Scan(&a.kind, &a.id)
	})
	return err
}
