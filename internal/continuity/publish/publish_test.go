package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type world struct {
	*testing.T
	primary, hosted *pgxpool.Pool
	p               *primary.Primary
	outbox          *hosted.Outbox
	snapshots       *hosted.Snapshots
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, primary: pgtest.New(t), hosted: pgtest.NewHosted(t)}
	transport := hosted.NewPostgres(w.hosted)
	w.outbox, w.snapshots = hosted.NewOutbox(transport), hosted.NewSnapshots(transport)
	var err error
	if w.p, err = primary.New(primary.Options{Pool: w.primary, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	w.adopt(1, continuity.Direct)
	return w
}

func (w *world) adopt(epoch continuity.Epoch, mode continuity.Mode) {
	w.Helper()
	now, err := w.p.Clock(w.Context())
	if err == nil {
		err = w.p.Adopt(w.Context(), continuity.Fence{Epoch: epoch, Mode: mode}, now, "test")
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) apply(kind, id, payload string) {
	w.Helper()
	c := continuity.Command{
		CommandID: uuid.New(), IdempotencyKey: uuid.NewString(), CommandType: kind,
		AggregateType: "order", AggregateID: id, Payload: json.RawMessage(payload),
	}
	if _, err := w.p.Apply(w.Context(), c, 1); err != nil {
		w.Fatal(err)
	}
}

// day applies what makes ten events of four aggregates.
func (w *world) day() {
	w.Helper()
	for _, id := range []string{"o1", "o2"} {
		w.apply("order.create", id, `{"companyId":"acme","restaurantId":"north","total":12990}`)
	}
	for _, id := range []string{"o1", "o2"} {
		w.apply("order.confirm_payment", id, `{"transactionId":"t`+id+`","amount":"5.10"}`)
	}
	w.apply("order.update_status", "o1", `{"status":"preparing"}`)
	w.apply("order.update_status", "o1", `{"status":"delivered"}`)
	w.apply("order.cancel", "o2", `{}`)
}

const dayEvents = 9

type transport struct {
	whole hosted.Transport
	n     atomic.Int64
	// call may break the n-th call; whole passes it on.
	call func(n int64, function string, whole func() error) error
}

func (tr *transport) Call(ctx context.Context, function string, args map[string]any, into any) error {
	n := tr.n.Add(1)
	whole := func() error { return tr.whole.Call(ctx, function, args, into) }
	if tr.call == nil {
		return whole()
	}
	return tr.call(n, function, whole)
}

func (w *world) publisher(tr *transport) *Publisher {
	w.Helper()
	if tr == nil {
		tr = &transport{}
	}
	tr.whole = hosted.NewPostgres(w.hosted)
	p, err := New(Options{
		Outbox: hosted.NewOutbox(tr), Snapshots: hosted.NewSnapshots(tr), Primary: w.p, Pool: w.primary,
		Leases: fence.New(w.primary, uuid.NewString(), time.Minute), Metrics: prometheus.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler), Refresh: time.Hour,
	})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) run(p *Publisher) Result {
	w.Helper()
	r, err := p.RunOnce(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// check compares the hosted database with the primary.
func (w *world) check() {
	w.Helper()
	const books = `
		select coalesce(string_agg(concat_ws(' ', aggregate_type, aggregate_id, ids), e'\n' order by aggregate_type, aggregate_id), '')
		from (select aggregate_type, aggregate_id, string_agg(event_id || ' ' || event_type || ' ' || payload, ' ' order by %s) ids from %s group by 1, 2) a`
	ours, theirs := scalar[string](w, w.primary, fmt.Sprintf(books, "position", "primary_outbox")), scalar[string](w, w.hosted, fmt.Sprintf(books, "outbox_sequence", "continuity_outbox"))
	if ours != theirs {
		w.Errorf("events\n%s\nwere published as\n%s", ours, theirs)
	}
	if n := scalar[int](w, w.primary, `select count(*) from primary_outbox where published_at is null`); n != 0 {
		w.Errorf("%d events are not marked", n)
	}
	for _, key := range []string{"order:o1", "order:o2", "payment:to1", "payment:to2", "orders:acme/north"} {
		state, err := w.p.Read(w.Context(), key)
		if err != nil {
			w.Fatal(err)
		}
		snapshot, err := w.snapshots.Read(w.Context(), key)
		if err != nil {
			w.Errorf("%s: %v", key, err)
		} else if !bytes.Equal(snapshot.Payload, state) {
			w.Errorf("%s: the snapshot is %s, the state %s", key, snapshot.Payload, state)
		}
	}
}

func scalar[T any](w *world, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	w.Helper()
	if err := pool.QueryRow(w.Context(), sql, args...).Scan(&v); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (w *world) exec(pool *pgxpool.Pool, sql string, args ...any) {
	w.Helper()
	if _, err := pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.day()
	p := w.publisher(nil)
	if r := w.run(p); r.Events != dayEvents || r.Snapshots != 5 || r.Blocked != 0 {
		t.Errorf("%+v", r)
	}
	w.check()
	if r := w.run(p); r != (Result{}) {
		t.Errorf("again: %+v", r)
	}
	w.apply("order.create", "o3", `{"companyId":"acme","restaurantId":"north"}`)
	if r := w.run(p); r.Events != 1 || r.Snapshots != 2 {
		t.Errorf("one more: %+v", r)
	}
	w.check()
}

// TestLateCommit commits an event whose position was drawn before others that
// are published already.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx, err := w.primary.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `insert into primary_outbox (event_type, aggregate_type, aggregate_id, company_id, restaurant_id, payload, epoch) values ('x', 'x', 'x', 'acme', 'north', '{}', 1)`)
	if err != nil {
		t.Fatal(err)
	}
	w.day()
	p := w.publisher(nil)
	w.run(p)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := w.run(p); r.Events != 1 {
		t.Errorf("%+v", r)
	}
	w.check()
}

// TestFaults breaks each call: not sent, done but not answered, killed on either
// side. What is published in the end is the same.
func TestFaults(t *testing.T) {
	t.Parallel()
	counted := &transport{}
	w := newWorld(t)
	w.day()
	w.run(w.publisher(counted))
	for _, kind := range []string{"not sent", "unanswered", "killed"} {
		for n := int64(1); n <= counted.n.Load(); n++ {
			t.Run(fmt.Sprintf("%s/%02d", kind, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.day()
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				broken := w.publisher(&transport{call: func(i int64, _ string, whole func() error) error {
					switch {
					case i != n:
						return whole()
					case kind == "not sent":
						return continuity.ErrUnavailable
					case kind == "killed":
						defer kill()
					}
					return errors.Join(whole(), continuity.ErrOutcomeUnknown)
				}})
				if _, err := broken.RunOnce(ctx); err == nil {
					t.Error("nothing was broken")
				}
				w.run(w.publisher(nil))
				w.check()
			})
		}
	}
}

// TestPaused has a publisher stop at each call, past its lease, while the world
// goes on and another publishes. What it writes afterwards replaces nothing.
func TestPaused(t *testing.T) {
	t.Parallel()
	counted := &transport{}
	w := newWorld(t)
	w.day()
	w.run(w.publisher(counted))
	for n := int64(1); n <= counted.n.Load(); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.day()
			paused := w.publisher(&transport{call: func(i int64, _ string, whole func() error) error {
				if i == n {
					w.exec(w.primary, `update leases set expires_at = now() - interval '1 second'`)
					w.apply("order.create", "o3", `{"companyId":"acme","restaurantId":"north"}`)
					w.apply("order.update_status", "o1", `{"status":"refunded"}`)
					w.run(w.publisher(nil))
				}
				return whole()
			}})
			_, _ = paused.RunOnce(t.Context())
			w.check()
		})
	}
}

// TestBlocked has the hosted outbox refuse one event: the aggregate waits, the
// others go on.
func TestBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.day()
	refused := scalar[uuid.UUID](w, w.primary, `select event_id from primary_outbox where aggregate_id = 'o1' order by position offset 1 limit 1`)
	_, err := w.outbox.Publish(t.Context(), hosted.Event{EventID: refused, EventType: "x", AggregateType: "x", AggregateID: "x", Payload: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	p := w.publisher(nil)
	var log strings.Builder
	p.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if r := w.run(p); r.Events != dayEvents-3 || r.Blocked != 1 {
		t.Errorf("%+v", r)
	}
	w.run(p) // A second later.
	if n := strings.Count(log.String(), "event refused"); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, &log)
	}
	w.exec(w.hosted, `delete from continuity_outbox where event_type = 'x'`)
	w.run(p)
	w.check()
}

// TestRestored has the primary count its versions from the start again.
func TestRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.day()
	w.exec(w.primary, `select setval('primary_snapshot_versions', 1000)`)
	w.run(w.publisher(nil))
	w.exec(w.primary, `select setval('primary_snapshot_versions', 1)`)
	w.apply("order.update_status", "o1", `{"status":"refunded"}`)
	p := w.publisher(nil)
	if _, err := p.RunOnce(t.Context()); !errors.Is(err, errBehind) {
		t.Errorf("%v", err)
	}
	for range 8 { // Each list or order may be ahead of the one before.
		if _, err := p.RunOnce(t.Context()); err == nil {
			break
		}
	}
	w.check()
}
