package history

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
)

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
	ApplyOrder int64
	AppliedAt  time.Time
	// Counted: it is entered among what the cutover counts.
	Counted bool
	// Refused: it was given back at least once, and a person may have brought it
	// back out of its turn.
	Refused bool
}

const drained = "drained"

// aggregate is what an order of commands is kept in.
type aggregate struct{ kind, id string }

// inbox checks each line of it, in the order in which they were applied.
func (c *check) inbox(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  i.idempotency_key,
		  i.command_id,
		  i.aggregate_type,
		  i.aggregate_id,
		  i.way,
		  i.queue_sequence,
		  i.epoch,
		  i.apply_order,
		  i.applied_at,
		  exists (
		    select from primary_drained d
		    where d.idempotency_key = i.idempotency_key),
		  exists (
		    select from primary_refusals r
		    where r.idempotency_key = i.idempotency_key)
		from continuity_inbox i
		order by i.apply_order`)
	if err != nil {
		return err
	}
	defer rows.Close()
	epoch, forgotten := continuity.Epoch(0), 0
	last := make(map[aggregate]*accepted)
	for rows.Next() {
		e, err := pgx.RowToStructByPos[entry](rows)
		if err != nil {
			return err
		}
		if e.Epoch < epoch {
			c.report.violation(FallingEpoch, e.CommandID, "the inbox: %d follows %d", e.Epoch, epoch)
		}
		epoch = e.Epoch
		c.gate(e)
		q := c.byKey[e.Key]
		if q != nil {
			q.effect = &e
		}
		if e.Way != drained {
			c.report.Direct++
			c.afterTheQueueOpened(e)
		} else {
			c.report.Drained++
			switch {
			// One behind it in the queue has come after that had forgotten the key.
			case q == nil, q.CommandID != e.CommandID && q.Sequence > *e.Sequence:
				forgotten++
			case q.CommandID != e.CommandID:
				c.report.violation(Unaccounted, e.CommandID, "drained, but the queue has the key for %s", q.CommandID)
			case !e.Refused:
				c.order(last, e, q)
			}
		}
		c.Progress(c.report.Direct+c.report.Drained, "effects")
	}
	if forgotten > 0 {
		c.report.warning(Unaccounted, uuid.Nil, "%d drained commands are not in the queue, which was purged or restored, or has taken them in meanwhile", forgotten)
	}
	return rows.Err()
}

// order compares the order in which an aggregate's commands were applied with
// that of the queue.
func (c *check) order(last map[aggregate]*accepted, e entry, q *accepted) {
	of := aggregate{e.AggregateType, e.AggregateID}
	if before := last[of]; before != nil && before.Sequence > q.Sequence {
		c.report.violation(Inverted, e.CommandID, "applied after %s, which was queued behind it", before.CommandID)
	}
	last[of] = q
}
