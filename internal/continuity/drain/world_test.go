package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/history"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { childOr(m, pgtest.Main) }

// world is a primary and a hosted database.
type world struct {
	*testing.T
	dsn, hostedDSN string

	primary *pgxpool.Pool
	hosted  *pgxpool.Pool
	// proxy stands before the primary of the drainers.
	proxy *pgtest.Proxy
	pool  *pgxpool.Pool
	queue *hosted.Queue
	fence *hosted.Fence
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dsn := pgtest.DSN(t)
	proxy, through := pgtest.NewProxy(t, dsn)
	w := &world{T: t, dsn: dsn, hostedDSN: pgtest.HostedDSN(t), proxy: proxy, primary: pgtest.Open(t, dsn), pool: pgtest.Open(t, through)}
	w.hosted = pgtest.Open(t, w.hostedDSN)
	whole := hosted.NewPostgres(w.hosted)
	w.queue, w.fence = hosted.NewQueue(whole), hosted.NewFence(whole)
	return w
}

// transport passes calls on, but breaks the one of the test's choice.
type transport struct {
	whole hosted.Transport
	n     atomic.Int64
	// before and after see the n-th call, counted from 1, and may break it: an
	// error of before keeps it from being sent.
	before func(n int64, function string) error
	after  func(n int64, function string) error
}

func (tr *transport) Call(ctx context.Context, function string, args map[string]any, into any) error {
	n := tr.n.Add(1)
	if tr.before != nil {
		if err := tr.before(n, function); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", continuity.ErrUnavailable, ctx.Err())
	}
	err := tr.whole.Call(ctx, function, args, into)
	if tr.after != nil {
		if broken := tr.after(n, function); broken != nil {
			return broken
		}
	}
	return err
}

var (
	errNotSent    = fmt.Errorf("broken by the test: %w", continuity.ErrUnavailable)
	errUnanswered = fmt.Errorf("broken by the test: %w", continuity.ErrOutcomeUnknown)
)

// drainer is one of another process. It drains one command at a time, so that its
// calls come in the same order in every run.
func (w *world) drainer(tr *transport) *Drainer {
	w.Helper()
	if tr == nil {
		tr = &transport{}
	}
	tr.whole = hosted.NewPostgres(w.hosted)
	instance := uuid.NewString()
	p, err := primary.New(primary.Options{Pool: w.pool, Lease: time.Hour, Instance: instance})
	if err != nil {
		w.Fatal(err)
	}
	d, err := New(Options{
		Queue: hosted.NewQueue(tr), Fence: hosted.NewFence(tr), Primary: p,
		Leases:  fence.New(w.primary, instance, time.Minute),
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		Instance: instance, Workers: 1, Batch: 5,
	})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

func (w *world) run(d *Drainer) Result {
	w.Helper()
	r, err := d.RunOnce(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) exec(pool *pgxpool.Pool, sql string, args ...any) {
	w.Helper()
	if _, err := pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func scalar[T any](w *world, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	w.Helper()
	if err := pool.QueryRow(w.Context(), sql, args...).Scan(&v); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return v
}

const ofNorth = `{"companyId":"acme","restaurantId":"north","total":12990}`

func command(key, kind, id, payload string) continuity.Command {
	c := continuity.Command{
		CommandID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(key)), IdempotencyKey: key, CommandType: kind,
		AggregateType: "order", AggregateID: id, Payload: json.RawMessage(payload),
	}
	switch kind {
	case "payment.record":
		c.AggregateType = "payment"
	case "cashflow.record":
		c.AggregateType = "cashflow"
	}
	return c
}

func (w *world) enqueue(commands ...continuity.Command) {
	w.Helper()
	for _, c := range commands {
		if _, err := w.queue.Enqueue(w.Context(), c, 0); err != nil {
			w.Fatalf("enqueue %s: %v", c.IdempotencyKey, err)
		}
	}
}

// openQueue is what edges do when the primary is away.
func (w *world) openQueue(epoch continuity.Epoch) {
	w.Helper()
	if _, err := w.fence.ForceQueue(w.Context(), epoch, "test", "outage"); err != nil {
		w.Fatal(err)
	}
}

// outage has direct writes, then an outage with a queue of every kind.
func (w *world) outage() {
	w.Helper()
	d := w.drainer(nil)
	if r := w.run(d); r.Fence.Mode != continuity.Direct || r.Fence.Epoch != 1 {
		w.Fatalf("at first: %+v", r)
	}
	late := command("late", "order.confirm_payment", "o1", `{"transactionId":"t1"}`)
	for _, c := range []continuity.Command{command("o1", "order.create", "o1", ofNorth), command("o2", "order.create", "o2", ofNorth), late} {
		if _, err := d.Primary.Apply(w.Context(), c, 1); err != nil {
			w.Fatal(err)
		}
	}
	w.openQueue(1)
	w.enqueue(
		late, // Its direct write came through after all.
		command("prepare", "order.update_status", "o1", `{"status":"preparing"}`),
		command("cancel", "order.cancel", "o2", `{}`),
		command("o3", "order.create", "o3", ofNorth),
		command("deliver", "order.update_status", "o1", `{"status":"delivered"}`),
		command("too late", "order.confirm_payment", "o2", `{"transactionId":"t2"}`),
		command("jump", "order.update_status", "o3", `{"status":"delivered"}`), // Dies.
		command("deliver", "order.update_status", "o1", `{"status":"delivered"}`),
		command("p1", "payment.record", "p1", `{"companyId":"acme","restaurantId":"north","status":"approved","amount":5}`),
		command("c1", "cashflow.record", "c1", `{"companyId":"acme","restaurantId":"north","kind":"income","amount":5}`),
	)
}

// heal lets time pass: leases and waits are over.
func (w *world) heal() {
	w.Helper()
	w.exec(w.hosted, `update continuity_commands set claimed_until = now() - interval '1 second' where status = 'claimed'`)
	w.exec(w.hosted, `update continuity_commands set available_at = now() where status = 'pending'`)
	w.exec(w.primary, `update leases set expires_at = now() - interval '1 second'`)
}

// finish lets a whole drainer bring everything to its end, and checks the world.
func (w *world) finish(epoch continuity.Epoch) {
	w.Helper()
	d := w.drainer(nil)
	var r Result
	for range 6 {
		w.heal()
		r = w.run(d)
		w.checkHistory(false)
		if r.Fence.Mode == continuity.Direct {
			break
		}
	}
	w.checkDirect(d, epoch)
	w.checkHistory(true)
}

// checkDirect checks that direct writes are open on both sides.
func (w *world) checkDirect(d *Drainer, epoch continuity.Epoch) {
	w.Helper()
	state, err := w.fence.State(w.Context())
	if err != nil || state.Mode != continuity.Direct || state.Epoch != epoch {
		w.Fatalf("hosted: %+v, %v", state.Fence, err)
	}
	local, err := d.Primary.State(w.Context())
	if err != nil || !local.Direct(primary.Available) || local.Epoch != epoch {
		w.Fatalf("primary: %+v, %v", local, err)
	}
}

func (w *world) checkHistory(settled bool) {
	w.Helper()
	report, err := history.Verify(w.Context(), history.Options{Queue: w.queue, Fence: w.fence, Primary: w.primary, Settled: settled, Strict: true})
	if err != nil {
		w.Fatal(err)
	}
	for _, v := range append(report.Violations, report.Warnings...) {
		w.Errorf("history: %s %s: %s", v.Code, v.CommandID, v.Detail)
	}
}

// checkOutage checks what is to come of outage, however it came about.
func (w *world) checkOutage() {
	w.Helper()
	orders := scalar[string](w, w.primary, `select string_agg(concat_ws(' ', order_id, status, version), ', ' order by order_id) from orders`)
	if orders != "o1 delivered 4, o2 cancelled 2, o3 pending 1" {
		w.Errorf("orders: %s", orders)
	}
	for sql, want := range map[string]int64{
		`select count(*) from payments`:         2,
		`select count(*) from cashflow_entries`: 1,
		`select count(*) from continuity_inbox`: 10,
		`select count(*) from primary_drained`:  8,
		`select count(*) from primary_outbox`:   10,
		`select count(*) from primary_notices where code = 'payment_after_end' and aggregate_id = 'o2'`: 1,
		`select count(*) from primary_notices`:                                                          1,
	} {
		if n := scalar[int64](w, w.primary, sql); n != want {
			w.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	rows := scalar[string](w, w.hosted, `select string_agg(concat_ws(' ', n, status), ', ' order by status) from (select count(*) n, status from continuity_commands group by status) s`)
	if rows != "8 acked, 1 dead" {
		w.Errorf("queue: %s", rows)
	}
}

var errStopped = errors.New("stopped by the test")
