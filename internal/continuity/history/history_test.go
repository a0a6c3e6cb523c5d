package history_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/history"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type world struct {
	*testing.T
	primary, hosted *pgxpool.Pool
	queue           *hosted.Queue
	fence           *hosted.Fence
	drainer         *drain.Drainer
	p               *primary.Primary
}

// newWorld has direct writes, an outage, and direct writes again, all of it well.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, primary: pgtest.New(t), hosted: pgtest.NewHosted(t)}
	transport := hosted.NewPostgres(w.hosted)
	w.queue, w.fence = hosted.NewQueue(transport), hosted.NewFence(transport)
	var err error
	if w.p, err = primary.New(primary.Options{Pool: w.primary, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	w.drainer, err = drain.New(drain.Options{
		Queue: w.queue, Fence: w.fence, Primary: w.p, Leases: fence.New(w.primary, "test", time.Minute),
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler), Workers: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.drain(1)
	w.apply(1, command("o1", "order.create", "o1"))
	if _, err := w.fence.ForceQueue(t.Context(), 1, "test", "outage"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []continuity.Command{
		command("paid", "order.update_status", "o1"), command("preparing", "order.update_status", "o1"),
		command("o2", "order.create", "o2"), command("delivered", "order.update_status", "o2"), // Dies.
	} {
		if _, err := w.queue.Enqueue(t.Context(), c, 2); err != nil {
			t.Fatal(err)
		}
	}
	w.drain(3)
	w.apply(3, command("paid too", "order.cancel", "o2"))
	return w
}

func command(key, kind, id string) continuity.Command {
	c := continuity.Command{
		CommandID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(key)), IdempotencyKey: key, CommandType: kind,
		AggregateType: "order", AggregateID: id, Payload: json.RawMessage(`{"companyId":"acme","restaurantId":"north"}`),
	}
	if kind == "order.update_status" {
		c.Payload = json.RawMessage(`{"status":"` + key + `"}`)
	}
	return c
}

func (w *world) drain(epoch continuity.Epoch) {
	w.Helper()
	if r, err := w.drainer.RunOnce(w.Context()); err != nil || r.Fence.Epoch != epoch {
		w.Fatalf("%+v, %v", r, err)
	}
}

func (w *world) apply(epoch continuity.Epoch, c continuity.Command) {
	w.Helper()
	if _, err := w.p.Apply(w.Context(), c, epoch); err != nil {
		w.Fatal(err)
	}
}

func (w *world) verify(opts history.Options) history.Report {
	w.Helper()
	opts.Queue, opts.Fence, opts.Primary = w.queue, w.fence, w.primary
	report, err := history.Verify(w.Context(), opts)
	if err != nil {
		w.Fatal(err)
	}
	return report
}

func TestNothingIsFound(t *testing.T) {
	t.Parallel()
	r := newWorld(t).verify(history.Options{Settled: true, Strict: true})
	if !r.OK() || len(r.Warnings) != 0 {
		t.Errorf("found %+v, %+v", r.Violations, r.Warnings)
	}
	if r.Accepted != 4 || r.Acked != 3 || r.Dead != 1 || r.Open != 0 || r.Direct != 2 || r.Drained != 3 || r.Epoch != 3 {
		t.Errorf("%+v", r)
	}
}

// meanwhile does something once, before the first query of a table.
type meanwhile struct {
	table string
	do    func()
	once  sync.Once
}

func (m *meanwhile) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, m.table) {
		m.once.Do(m.do)
	}
	return ctx
}

func (*meanwhile) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestPrimaryAtWork has the primary go on while its books are read.
func TestPrimaryAtWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string
		work   func(w *world)
	}{
		"a direct write": {"from primary_outbox", func(w *world) { w.apply(3, command("o3", "order.create", "o3")) }},
		"another epoch": {"from continuity_inbox", func(w *world) {
			if _, err := w.fence.ForceQueue(w.Context(), 3, "test", "outage"); err != nil {
				w.Error(err)
			}
			w.drain(5)
			w.apply(5, command("o3", "order.create", "o3"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := w.primary.Config().Copy()
			config.ConnConfig.Tracer = &meanwhile{table: c.before, do: func() { c.work(w) }}
			traced, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(traced.Close)
			r, err := history.Verify(t.Context(), history.Options{Queue: w.queue, Fence: w.fence, Primary: traced, Strict: true})
			if err != nil || !r.OK() || len(r.Warnings) != 0 {
				t.Errorf("found %+v, %+v, %v", r.Violations, r.Warnings, err)
			}
		})
	}
}

// TestKeyComesBack has a client repeat a key that the queue has forgotten, in a
// later outage: it is done, and its second row is no fault.
func TestKeyComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.hosted.Exec(t.Context(), `delete from continuity_commands where idempotency_key = 'paid'`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.fence.ForceQueue(t.Context(), 3, "test", "outage"); err != nil {
		t.Fatal(err)
	}
	again := command("paid", "order.update_status", "o1")
	again.CommandID = uuid.New()
	for _, c := range []continuity.Command{again, command("refunded", "order.update_status", "o1")} {
		if _, err := w.queue.Enqueue(t.Context(), c, 4); err != nil {
			t.Fatal(err)
		}
	}
	w.drain(5)
	r := w.verify(history.Options{Settled: true, Strict: true})
	if !r.OK() || len(r.Warnings) != 1 || r.Warnings[0].Code != history.Unaccounted {
		t.Errorf("found %+v, %+v", r.Violations, r.Warnings)
	}
}

// TestFaultsAreFound plants one fault at a time, by a hand that no trigger stops.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		primary, hosted string
		options         history.Options
		want            string
		warns           bool
	}{
		"an ack was dropped":              {hosted: `update continuity_commands set status = 'pending', settled_at = null where idempotency_key = 'paid'`, want: history.DroppedAck},
		"an ack was dropped in a claim":   {hosted: `update continuity_commands set status = 'claimed', settled_at = null, claimed_until = now() where idempotency_key = 'paid'`, want: history.DroppedAck},
		"open when settled":               {hosted: `update continuity_commands set status = 'pending', settled_at = null, last_error = 'redriven by x' where idempotency_key = 'delivered'`, options: history.Options{Settled: true}, want: history.DroppedAck},
		"an effect was lost":              {primary: `delete from primary_drained where idempotency_key = 'paid'; delete from primary_outbox; delete from continuity_inbox where idempotency_key = 'paid'`, want: history.LostEffect},
		"an effect was not counted":       {primary: `delete from primary_drained where idempotency_key = 'paid'`, want: history.LostEffect},
		"an effect beside a dead row":     {hosted: `update continuity_commands set status = 'dead', last_error = 'x' where idempotency_key = 'paid'`, want: history.DoubleEffect},
		"a dead row without a reason":     {hosted: `update continuity_commands set last_error = '' where idempotency_key = 'delivered'`, want: history.NoReason},
		"an effect twice":                 {primary: `update orders set version = version + 1 where order_id = 'o1'`, want: history.DoubleEffect},
		"an event twice":                  {primary: `insert into primary_outbox (event_type, aggregate_type, aggregate_id, company_id, restaurant_id, payload, epoch) select event_type, aggregate_type, aggregate_id, company_id, restaurant_id, payload, epoch from primary_outbox where aggregate_id = 'o2' and event_type = 'order.created'`, want: history.DoubleEffect},
		"an effect of nobody":             {primary: `update primary_outbox set payload = payload || jsonb_build_object('commandId', gen_random_uuid()) where aggregate_id = 'o1'`, want: history.Unaccounted},
		"an order of nobody":              {primary: `insert into orders (order_id, company_id, restaurant_id, details) values ('o9', 'acme', 'north', '{}')`, want: history.Unaccounted},
		"a payment of nobody":             {primary: `insert into payments (payment_id, company_id, restaurant_id, status, details) values ('p9', 'acme', 'north', 'approved', '{}')`, want: history.Unaccounted},
		"money of nobody":                 {primary: `insert into cashflow_entries (entry_id, company_id, restaurant_id, kind, amount, details) values ('c9', 'acme', 'north', 'income', 5, '{}')`, want: history.Unaccounted},
		"a line without an effect":        {primary: `delete from primary_outbox where aggregate_id = 'o2'; delete from orders where order_id = 'o2'`, want: history.LostEffect},
		"an event of a no-op":             {primary: `update continuity_inbox set outcome = 'noop' where idempotency_key = 'paid'`, want: history.Unaccounted},
		"drained while the queue waited":  {primary: `update primary_fence_flips set mode = 'QUEUE' where epoch = 2`, want: history.WrongGate},
		"a version left out":              {primary: `delete from primary_outbox where payload ->> 'version' = '2' and aggregate_id = 'o1'`, want: history.Unaccounted},
		"a pair the other way round":      {hosted: `alter table continuity_commands alter column queue_sequence set generated by default; update continuity_commands set queue_sequence = case idempotency_key when 'paid' then 1002 else 1001 end where idempotency_key in ('paid', 'preparing')`, want: history.Inverted},
		"events the other way round":      {primary: `update primary_outbox set payload = payload || jsonb_build_object('version', 5 - (payload ->> 'version')::int) where aggregate_id = 'o1' and payload ->> 'version' <> '1'`, want: history.Inverted},
		"the hosted epoch falls":          {hosted: `insert into continuity_epochs (event, epoch, mode, actor, term) values ('open', 2, 'QUEUE', 'x', 0)`, want: history.FallingEpoch},
		"the primary's epoch falls":       {primary: `insert into primary_fence_flips (epoch, mode, closed, inbox_order, reason, actor, at) values (2, 'QUEUE', false, 5, '', '', now())`, want: history.FallingEpoch},
		"the inbox' epoch falls":          {primary: `update continuity_inbox set epoch = 4 where idempotency_key = 'o1'`, want: history.FallingEpoch},
		"two gates in the hosted log":     {hosted: `insert into continuity_epochs (event, epoch, mode, actor, term) values ('open', 3, 'QUEUE', 'x', 0)`, want: history.TwoGates},
		"two gates in the logs":           {primary: `update primary_fence_flips set mode = 'DIRECT' where epoch = 2 and mode = 'QUEUE'`, want: history.TwoGates},
		"queued while direct was open":    {hosted: `update continuity_commands set epoch = 1 where idempotency_key = 'paid'`, want: history.TwoGates},
		"direct while the queue was open": {primary: `update continuity_inbox set way = 'direct', queue_sequence = null where idempotency_key = 'paid'`, want: history.TwoGates},
		"opened before the cutover":       {primary: `update primary_fence_flips set at = at - interval '1 minute' where epoch = 3`, want: history.TwoGates},
		"applied when it was closed":      {primary: `update primary_fence_flips set closed = true where epoch = 3`, want: history.WrongGate},
		"applied under another epoch":     {primary: `update primary_fence_flips set inbox_order = 99 where epoch = 3`, want: history.WrongGate},
		"direct when it could not know":   {primary: `update continuity_inbox set applied_at = now() + interval '1 minute' where idempotency_key = 'o1'`, want: history.TwoGates, warns: true},
		"the same, and it is not allowed": {primary: `update continuity_inbox set applied_at = now() + interval '1 minute' where idempotency_key = 'o1'`, options: history.Options{Strict: true}, want: history.TwoGates},
		"the queue has forgotten one":     {hosted: `delete from continuity_commands where idempotency_key = 'paid'`, want: history.Unaccounted, warns: true},
		"the key is another command's":    {hosted: `update continuity_commands set command_id = gen_random_uuid() where idempotency_key = 'paid'`, want: history.Unaccounted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for pool, sql := range map[*pgxpool.Pool]string{w.primary: c.primary, w.hosted: c.hosted} {
				if sql == "" {
					continue
				}
				if _, err := pool.Exec(t.Context(), `begin; set local session_replication_role = replica; `+sql+`; commit`); err != nil {
					t.Fatal(err)
				}
			}
			r := w.verify(c.options)
			found := r.Violations
			if c.warns {
				if !r.OK() {
					t.Errorf("violations %+v", r.Violations)
				}
				found = r.Warnings
			}
			if !slices.ContainsFunc(found, func(f history.Finding) bool { return f.Code == c.want }) {
				t.Errorf("not found among %+v, %+v", r.Violations, r.Warnings)
			}
		})
	}
}
