package history

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// event is a line of the primary's outbox. Version is 0 for what has none.
type event struct {
	Type          string
	AggregateType string
	AggregateID   string
	CommandID     uuid.UUID
	Version       int64
	// Present is the aggregate's version now.
	Present int64
	// Outcome is what the command's line in the inbox says, nil if there is none.
	Outcome *string
}

func (e event) aggregate() aggregate { return aggregate{e.AggregateType, e.AggregateID} }

// told are the events of one aggregate, up to the last that was read.
type told struct {
	last event
	// seen are those that tell of the same command, by its id and their type.
	seen map[tale]bool
}

type tale struct {
	kind    string
	command uuid.UUID
}

// events accounts for every version of an aggregate by one event, and for every
// event by one command. Of the events in memory are those of one aggregate.
func (c *check) events(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select
		  e.event_type,
		  e.aggregate_type,
		  e.aggregate_id,
		  (e.payload ->> 'commandId')::uuid,
		  coalesce((e.payload ->> 'version')::bigint, 0),
		  coalesce(o.version, p.version, 0),
		  i.outcome
		from primary_outbox e
		left join continuity_inbox i on i.command_id = (e.payload ->> 'commandId')::uuid
		left join orders o on e.aggregate_type = 'order' and o.order_id = e.aggregate_id
		left join payments p on e.aggregate_type = 'payment' and p.payment_id = e.aggregate_id
		order by e.aggregate_type, e.aggregate_id, e.position`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var of told
	for n := 1; rows.Next(); n++ {
		e, err := pgx.RowToStructByPos[event](rows)
		if err != nil {
			return err
		}
		if e.aggregate() != of.last.aggregate() {
			c.present(of.last)
			of = told{seen: make(map[tale]bool)}
		}
		c.event(&of, e)
		c.Progress(n, "events")
	}
	c.present(of.last)
	return rows.Err()
}

func (c *check) event(of *told, e event) {
	switch this := (tale{e.Type, e.CommandID}); {
	case e.Outcome == nil:
		c.report.violation(Unaccounted, e.CommandID, "%s without a line in the inbox", e.Type)
	case *e.Outcome != "applied":
		c.report.violation(Unaccounted, e.CommandID, "%s of a command that changed nothing", e.Type)
	case of.seen[this]:
		c.report.violation(DoubleEffect, e.CommandID, "%s twice", e.Type)
	default:
		of.seen[this] = true
	}
	if before := of.last.Version; e.Version != before+1 && e.Version != 0 {
		code := Inverted
		if e.Version > before {
			code = Unaccounted
		}
		c.report.violation(code, e.CommandID, "version %d of %s %q follows version %d", e.Version, e.AggregateType, e.AggregateID, before)
	}
	of.last = e
}

// present compares the last event of an aggregate with what it is now.
func (c *check) present(last event) {
	if last.Version != last.Present {
		c.report.violation(DoubleEffect, last.CommandID, "%s %q is at version %d, and its last event tells of %d", last.AggregateType, last.AggregateID, last.Present, last.Version)
	}
}

// untold finds what no event tells of: commands that changed something, and
// aggregates.
func (c *check) untold(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select i.command_id
		from continuity_inbox i
		where i.outcome = 'applied'
		  and not exists (
		    select from primary_outbox e
		    where (e.payload ->> 'commandId')::uuid = i.command_id)
		order by i.apply_order`)
	if err != nil {
		return err
	}
	commands, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	for _, id := range commands {
		c.report.violation(LostEffect, id, "applied, and no event tells of it")
	}
	rows, err = tx.Query(ctx, `
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
	silent, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a aggregate, err error) {
		return a, row.Scan(&a.kind, &a.id)
	})
	for _, a := range silent {
		c.report.violation(Unaccounted, uuid.Nil, "no event tells of %s %q", a.kind, a.id)
	}
	return err
}
