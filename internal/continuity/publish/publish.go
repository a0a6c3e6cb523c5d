// Package publish tells the hosted database what the primary has done: events, in
// the order of each aggregate; snapshots to be read while the primary is away;
// and that it lives.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// Outbox takes events; *hosted.Outbox has it. An event may be published again.
type Outbox interface {
	Publish(ctx context.Context, e hosted.Event) (hosted.EventReceipt, error)
}

// Snapshots takes snapshots; *hosted.Snapshots has it. An older version never
// replaces a newer one, and Put tells.
type Snapshots interface {
	Put(ctx context.Context, key string, payload json.RawMessage, version int64) (bool, error)
	Read(ctx context.Context, key string) (hosted.Snapshot, error)
}

// LeaseName is the lease under which one process publishes at a time.
const LeaseName = "continuity-publish"

const (
	// batch is how many events are read at once.
	batch = 200
	// parallel is how many aggregates, or snapshots, are told of at the same time.
	parallel = 8
	// DefaultRefresh is how often the lists of open orders are published although
	// nothing has changed, so that their age says how fresh they are.
	DefaultRefresh = time.Minute
)

// Options of a publisher; all but Refresh are required.
type Options struct {
	Outbox    Outbox
	Snapshots Snapshots
	Primary   *primary.Primary
	Pool      *pgxpool.Pool
	Leases    *fence.Leases
	Metrics   prometheus.Registerer
	Logger    *slog.Logger
	Refresh   time.Duration
}

// Publisher publishes. RunOnce may be called by several processes; one of them
// works.
type Publisher struct {
	Options
	metrics *metrics
	began   time.Time
	// refreshed is when the lists were last published, after began; nil for never.
	refreshed *time.Duration
	// wasBlocked are the aggregates of which the last run had an event refused.
	wasBlocked map[aggregate]bool
}

// New returns a publisher.
func New(opts Options) (*Publisher, error) {
	if opts.Outbox == nil || opts.Snapshots == nil || opts.Primary == nil || opts.Pool == nil ||
		opts.Leases == nil || opts.Metrics == nil || opts.Logger == nil {
		return nil, errors.New("a publisher needs outbox, snapshots, primary, pool, leases, metrics and logger")
	}
	if opts.Refresh == 0 {
		opts.Refresh = DefaultRefresh
	}
	began := time.Now()
	return &Publisher{Options: opts, metrics: newMetrics(opts.Metrics), began: began}, nil
}

// Result is what a run has done.
type Result struct {
	Events    int
	Snapshots int
	// Blocked are aggregates of which an event is refused. What follows it waits.
	Blocked int
	// Elsewhere: another process publishes.
	Elsewhere bool
}

// RunOnce publishes what is not published:
//
//  1. the events, those of an aggregate one after the other
//  2. the snapshots that they make stale
//  3. the events are marked
//
// A crash before 3 repeats 1 and 2, which change nothing then: an event is known
// by its id, and a snapshot has a higher version and the same content. A run that
// was paused past its lease cannot mark, and what it writes of a snapshot is
// older than what its successor has written.
func (p *Publisher) RunOnce(ctx context.Context) (Result, error) {
	var r Result
	err := p.Leases.Hold(ctx, LeaseName, func(ctx context.Context, lease fence.Lease) error {
		w := &work{Publisher: p, lease: lease, result: &r, blocked: make(map[aggregate]bool)}
		return w.run(ctx)
	})
	if errors.Is(err, fence.ErrHeld) {
		return Result{Elsewhere: true}, nil
	}
	p.metrics.observe(r)
	if err != nil {
		return r, fmt.Errorf("publish: %w", err)
	}
	return r, nil
}

// work is one run under one lease.
type work struct {
	*Publisher
	lease   fence.Lease
	result  *Result
	blocked map[aggregate]bool
}

type aggregate struct{ kind, id string }

func (w *work) run(ctx context.Context) error {
	for after := int64(0); ; {
		events, err := w.unpublished(ctx, after)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			break
		}
		after = events[len(events)-1].Position
		told, err := w.events(ctx, events)
		w.result.Events += len(told)
		if err == nil {
			err = w.snapshots(ctx, keys(told))
		}
		if err != nil {
			return err
		}
		if err := w.mark(ctx, told); err != nil {
			return err
		}
	}
	w.result.Blocked, w.wasBlocked = len(w.blocked), w.blocked
	return w.refresh(ctx)
}

// event is a line of the primary's outbox.
type event struct {
	Position      int64
	EventID       uuid.UUID
	EventType     string
	AggregateType string
	AggregateID   string
	CompanyID     string
	RestaurantID  string
	Payload       json.RawMessage
	Epoch         continuity.Epoch
}

func (e event) aggregate() aggregate { return aggregate{e.AggregateType, e.AggregateID} }

// unpublished reads on behind a position. It looks for the mark, not only for the
// position: a number that was drawn early may be committed late, and is found by
// the next run.
func (w *work) unpublished(ctx context.Context, after int64) ([]event, error) {
	rows, err := w.Pool.Query(ctx, `
		select
		  position,
		  event_id,
		  event_type,
		  aggregate_type,
		  aggregate_id,
		  company_id,
		  restaurant_id,
		  payload,
		  epoch
		from primary_outbox
		where published_at is null
		  and position > $1
		order by position
		limit $2`, after, batch)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", pg.Translate(err))
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil {
		return nil, fmt.Errorf("read events: %w", pg.Translate(err))
	}
	return events, nil
}

func (w *work) mark(ctx context.Context, events []event) error {
	positions := make([]int64, len(events))
	for i, e := range events {
		positions[i] = e.Position
	}
	err := pg.WithTx(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := w.lease.Check(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update primary_outbox set published_at = now() where position = any($1)`, positions)
		return err
	})
	if err != nil {
		return fmt.Errorf("mark events: %w", err)
	}
	return nil
}
