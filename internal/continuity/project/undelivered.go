package project

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// Undelivered is what the continuity plane still has to deliver for a day. A day
// for which there is anything is not to be sealed.
type Undelivered struct {
	// Documents are orders and payments that are not in the day as they are now.
	Documents int64 `json:"documents"`
	// Events of them are not in the hosted outbox yet.
	Events int64 `json:"events"`
	// Commands wait in the primary's own work queue.
	Commands int64 `json:"commands"`
	// QueueOpen: the hosted queue may hold commands for any day, which nobody can
	// count from here.
	QueueOpen bool `json:"queueOpen"`
}

// Count is 0 if nothing is undelivered. An open queue counts as one command.
func (u Undelivered) Count() int64 {
	n := u.Documents + u.Events + u.Commands
	if u.QueueOpen {
		n++
	}
	return n
}

// UndeliveredOf returns, by the ids of days, what is undelivered for them; a day
// for which nothing is has no entry. What is in no day yet counts for the
// restaurant's ACTIVE day, in which it will be.
func UndeliveredOf(ctx context.Context, db daydb.Querier, dayIDs []int64) (map[int64]Undelivered, error) {
	var queueOpen, workQueue bool
	err := db.QueryRow(ctx, `
		select
		  epoch > 0 and mode <> 'DIRECT',
		  to_regclass('public.continuity_commands') is not null
		from primary_fence`).Scan(&queueOpen, &workQueue)
	if err != nil {
		return nil, fmt.Errorf("undelivered: %w", pg.Translate(err))
	}
	all := make(map[int64]Undelivered)
	if queueOpen {
		for _, id := range dayIDs {
			all[id] = Undelivered{QueueOpen: true}
		}
	}
	count := func(query string, add func(*Undelivered, int64)) error {
		rows, err := db.Query(ctx, query, dayIDs)
		if err != nil {
			return fmt.Errorf("undelivered: %w", pg.Translate(err))
		}
		var id, n int64
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			u := all[id]
			add(&u, n)
			all[id] = u
			return nil
		})
		if err != nil {
			return fmt.Errorf("undelivered: %w", pg.Translate(err))
		}
		return nil
	}
	if err := count(countDocuments, func(u *Undelivered, n int64) { u.Documents = n }); err != nil {
		return nil, err
	}
	if err := count(countEvents, func(u *Undelivered, n int64) { u.Events = n }); err != nil {
		return nil, err
	}
	if workQueue {
		if err := count(countCommands, func(u *Undelivered, n int64) { u.Commands = n }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

const countDocuments = `
	with waiting as (
	  select company_id, restaurant_id, day_database_id from orders where projected_version < version
	  union all
	  select company_id, restaurant_id, day_database_id from payments where projected_version < version
	)
	select d.id, count(*)
	from day_databases d
	join waiting w on w.day_database_id = d.id
	  or w.day_database_id is null and d.state = 'ACTIVE'
	    and (w.company_id, w.restaurant_id) = (d.company_id, d.restaurant_id)
	where d.id = any($1)
	group by d.id`

const countEvents = `
	with waiting as (
	  select
	    e.company_id,
	    e.restaurant_id,
	    coalesce(o.day_database_id, p.day_database_id) as day_database_id
	  from primary_outbox e
	  left join orders o on e.aggregate_type = 'order' and o.order_id = e.aggregate_id
	  left join payments p on e.aggregate_type = 'payment' and p.payment_id = e.aggregate_id
	  where e.published_at is null
	)
	select d.id, count(*)
	from day_databases d
	join waiting w on w.day_database_id = d.id
	  or w.day_database_id is null and d.state = 'ACTIVE'
	    and (w.company_id, w.restaurant_id) = (d.company_id, d.restaurant_id)
	where d.id = any($1)
	group by d.id`

// A command for an aggregate that is not there yet names its restaurant.
const countCommands = `
	with waiting as (
	  select
	    coalesce(o.company_id, p.company_id, c.payload ->> 'companyId') as company_id,
	    coalesce(o.restaurant_id, p.restaurant_id, c.payload ->> 'restaurantId') as restaurant_id,
	    coalesce(o.day_database_id, p.day_database_id) as day_database_id
	  from public.continuity_commands c
	  left join orders o on c.aggregate_type = 'order' and o.order_id = c.aggregate_id
	  left join payments p on c.aggregate_type = 'payment' and p.payment_id = c.aggregate_id
	  where c.status in ('pending', 'claimed')
	)
	select d.id, count(*)
	from day_databases d
	join waiting w on w.day_database_id = d.id
	  or w.day_database_id is null and d.state = 'ACTIVE'
	    and (w.company_id, w.restaurant_id) = (d.company_id, d.restaurant_id)
	where d.id = any($1)
	group by d.id`
