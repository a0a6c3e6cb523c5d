package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity/history"
	"github.com/rollingd/rollingd/internal/continuity/primary"
)

// verdict is what a check of both databases has found.
type verdict struct {
	accepted   int
	applied    int
	dead       int
	duplicates int
	inversions int
	// documents are the orders and payments that tills see as they are.
	documents int
	// sealed is how long the longest seal lasted that led to a cutover, in
	// milliseconds, and cutovers how many there were.
	sealed   float64
	cutovers int
	// broken are the promises that were not kept; none is what is wanted.
	broken []string
}

// mostSealed is how many milliseconds both gates may be closed for a cutover.
const mostSealed = 2000

func (v *verdict) wrong(format string, args ...any) {
	v.broken = append(v.broken, fmt.Sprintf(format, args...))
}

// check compares what the edges have promised with what is in the databases. The
// history checker looks from inside; the rest is plain SQL, and knows no more of
// the product than a bookkeeper who reads its tables.
func (s *site) check(ctx context.Context) (verdict, error) {
	var v verdict
	report, err := history.Verify(ctx, history.Options{
		Queue: s.queue, Fence: s.fence, Primary: s.own, Settled: true, Strict: s.day.policy == primary.Strict,
		Skew: time.Millisecond, // One machine has one clock.
	})
	if err != nil {
		return v, fmt.Errorf("verify the history: %w", err)
	}
	for _, f := range report.Violations {
		v.wrong("history: %s: %s (command %s)", f.Code, f.Detail, f.CommandID)
	}
	b, err := s.read(ctx)
	if err != nil {
		return v, err
	}
	s.outcomes(&v, b)
	s.orders(&v, b)
	s.shown(&v, b)
	v.duplicates += b.events
	if b.events > 0 {
		v.wrong("%d events were told twice", b.events)
	}
	v.sealed, v.cutovers = b.sealed, b.cutovers
	if v.sealed > mostSealed {
		v.wrong("both gates were closed for %.0f ms", v.sealed)
	}
	return v, nil
}

// books are the rows that matter, by key.
type books struct {
	inbox  map[string]effect
	queue  map[string]queued
	orders map[string]order
	// entries of the cashflow, by id.
	entries map[string]int
	// records are the orders and payments, documents what CouchDB has of them, by
	// database and id.
	records   []record
	documents map[string]map[string]document
	// events is how many were told more than once.
	events   int
	sealed   float64
	cutovers int
}

type effect struct {
	Key     string
	Order   int64
	Outcome string
	Refused bool
}

type queued struct {
	Key    string
	Status string
	Reason string
}

type order struct {
	ID      string
	Status  string
	Version int64
	// Created is how often it was.
	Created int64
}

func (s *site) read(ctx context.Context) (books, error) {
	b := books{
		inbox: map[string]effect{}, queue: map[string]queued{}, orders: map[string]order{}, entries: map[string]int{},
		documents: map[string]map[string]document{},
	}
	for _, step := range []func() error{
		func() error {
			return each(ctx, s.own, func(e effect) { b.inbox[e.Key] = e }, `
				select
				  i.idempotency_key,
				  i.apply_order,
				  i.outcome,
				  r.idempotency_key is not null
				from continuity_inbox i
				left join primary_refusals r using (idempotency_key)`)
		},
		func() error {
			return each(ctx, s.their, func(q queued) { b.queue[q.Key] = q }, `
				select
				  idempotency_key,
				  status,
				  coalesce(last_error, '')
				from continuity_commands`)
		},
		func() error {
			return each(ctx, s.own, func(o order) { b.orders[o.ID] = o }, `
				select
				  order_id,
				  status,
				  version,
				  (select count(*) from primary_outbox e
				   where e.event_type = 'order.created' and e.aggregate_id = o.order_id)
				from orders o`)
		},
		func() error {
			return each(ctx, s.own, func(id struct{ ID string }) { b.entries[id.ID]++ }, `select entry_id from cashflow_entries`)
		},
		func() error { return s.readRecords(ctx, &b) },
		func() error { return s.readDocuments(ctx, &b) },
		func() error {
			return s.own.QueryRow(ctx, `
				select count(*)
				from (
				  select from primary_outbox
				  group by payload ->> 'commandId', event_type, aggregate_id
				  having count(*) > 1
				) twice`).Scan(&b.events)
		},
		func() error {
			return s.their.QueryRow(ctx, `
				select
				  coalesce(max((detail ->> 'sealedSeconds')::float8) * 1000, 0),
				  count(*)
				from continuity_epochs
				where event = 'cutover'`).Scan(&b.sealed, &b.cutovers)
		},
	} {
		if err := step(); err != nil {
			return b, fmt.Errorf("read the books: %w", err)
		}
	}
	return b, nil
}

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func each[T any](ctx context.Context, db querier, take func(T), sql string) error {
	rows, err := db.Query(ctx, sql)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	for _, one := range all {
		take(one)
	}
	return err
}

// outcomes: whatever was promised has one effect or is dead, and what has an
// effect was promised or at least asked for.
func (s *site) outcomes(v *verdict, b books) {
	for _, p := range s.ledger.promises() {
		v.accepted++
		_, hasEffect := b.inbox[p.IdempotencyKey]
		q := b.queue[p.IdempotencyKey]
		dead := q.Status == "dead"
		switch {
		case hasEffect && dead:
			v.duplicates++
			v.wrong("%s has an effect, and is dead: %s", p.IdempotencyKey, q.Reason)
		case hasEffect:
			v.applied++
		case dead:
			v.dead++
			if strings.TrimSpace(q.Reason) == "" {
				v.wrong("%s is dead, and nobody knows why", p.IdempotencyKey)
			}
		default:
			v.wrong("%s was taken (%s) and is lost; in the queue it is %q", p.IdempotencyKey, p.way, q.Status)
		}
		if p.AggregateType == cashflow && hasEffect && b.entries[p.AggregateID] != 1 {
			v.wrong("%s has %d entries", p.IdempotencyKey, b.entries[p.AggregateID])
		}
	}
}

// orders: each was created once, its version counts the commands that changed it,
// and they were applied in the order in which they were promised.
func (s *site) orders(v *verdict, b books) {
	last := make(map[string]effect)
	changes := make(map[string]int64)
	for _, p := range s.ledger.promises() {
		e, ok := b.inbox[p.IdempotencyKey]
		if p.AggregateType != orders || !ok {
			continue
		}
		if e.Outcome == "applied" {
			changes[p.AggregateID]++
		}
		if before, ok := last[p.AggregateID]; ok && !e.Refused && e.Order < before.Order {
			v.inversions++
			v.wrong("%s was applied before %s, which was promised earlier", e.Key, before.Key)
		}
		last[p.AggregateID] = e
	}
	for id, want := range changes {
		o := b.orders[id]
		if o.Created > 1 {
			v.duplicates++
			v.wrong("order %s was created %d times", id, o.Created)
		}
		if o.Version != want {
			v.wrong("order %s is at version %d, but %d promised commands have changed it", id, o.Version, want)
		}
	}
}
