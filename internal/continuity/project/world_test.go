package project

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	north = daydb.Restaurant{CompanyID: "acme", RestaurantID: "north"}
	south = daydb.Restaurant{CompanyID: "acme", RestaurantID: "south"}
)

const (
	yesterday = "20261129"
	today     = "20261130"
)

// world is a primary with restaurants that have day databases.
type world struct {
	*testing.T
	pool     *pgxpool.Pool
	couch    *couch.Client
	couchURL string
	env      string
	p        *primary.Primary
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, pgtest.New(t), couchtest.New(t))
}

func worldOn(t *testing.T, pool *pgxpool.Pool, couchURL string) *world {
	t.Helper()
	w := &world{T: t, pool: pool, couchURL: couchURL, env: couchtest.Env(t)}
	w.couch = w.client(nil)
	var err error
	if w.p, err = primary.New(primary.Options{Pool: w.pool, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	now, err := w.p.Clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.p.Adopt(t.Context(), continuity.Fence{Epoch: 1, Mode: continuity.Direct}, now, "test"); err != nil {
		t.Fatal(err)
	}
	w.day(north, yesterday, daydb.Active)
	return w
}

func (w *world) client(transport http.RoundTripper) *couch.Client {
	w.Helper()
	c, err := couch.New(couch.Options{URL: w.couchURL, Transport: transport})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) projector(c CouchDB, pool *pgxpool.Pool) *Projector {
	w.Helper()
	p, err := New(Options{
		Pool: pool, Couch: c, Leases: fence.New(w.pool, uuid.NewString(), time.Minute),
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) whole() *Projector { return w.projector(w.couch, w.pool) }

func (w *world) run() Result {
	w.Helper()
	r, err := w.whole().RunOnce(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) name(r daydb.Restaurant, day string) string {
	return w.env + "_" + r.CompanyID + "_" + r.RestaurantID + "_daily_" + day
}

// day enters a day of a state and creates its database.
func (w *world) day(r daydb.Restaurant, text string, state daydb.State) daydb.DayDB {
	w.Helper()
	ctx, name := w.Context(), w.name(r, text)
	business, err := daydb.ParseDay(text)
	if err != nil {
		w.Fatal(err)
	}
	var d daydb.DayDB
	err = pg.WithTx(ctx, w.pool, func(tx pgx.Tx) error {
		err := daydb.Register(ctx, tx, daydb.Registration{Restaurant: r, Timezone: daydb.DefaultTimezone, LegacyDB: "tables", Active: true})
		if err == nil {
			d, err = daydb.Insert(ctx, tx, r, business, name, daydb.Mark{Actor: "test", Token: 1})
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.couch.Create(ctx, name); err != nil {
		w.Fatal(err)
	}
	if err := w.couch.PutSecurity(ctx, name, couch.OpenTo(r.Role(), d.Generation)); err != nil {
		w.Fatal(err)
	}
	w.set(name, state)
	return d
}

// set puts a day into a state without asking for the way to it.
func (w *world) set(name string, state daydb.State) {
	w.Helper()
	w.exec(`begin; set local session_replication_role = replica; update day_databases set state = '` + string(state) + `' where db_name = '` + name + `'; commit`)
}

// rotate makes today the ACTIVE day.
func (w *world) rotate(r daydb.Restaurant) {
	w.Helper()
	w.set(w.name(r, yesterday), daydb.Draining)
	w.day(r, today, daydb.Active)
}

const sealDesign = "_design/rollingd_seal"

// seal refuses writes as the guard does; the day's state is the caller's.
func (w *world) seal(name string) {
	w.Helper()
	d, err := daydb.Load(w.Context(), w.pool, name)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.couch.PutSecurity(w.Context(), name, couch.Sealed(d.Generation)); err != nil {
		w.Fatal(err)
	}
	if err := w.couch.PutDesign(w.Context(), name, sealDesign, `function () { throw({forbidden: "this business day is sealed"}); }`); err != nil {
		w.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) apply(r daydb.Restaurant, kind, id, payload string) {
	w.Helper()
	c := continuity.Command{
		CommandID: uuid.New(), IdempotencyKey: uuid.NewString(), CommandType: kind,
		AggregateType: "order", AggregateID: id, Payload: json.RawMessage(payload),
	}
	if kind == "order.create" {
		c.Payload = json.RawMessage(`{"companyId":"` + r.CompanyID + `","restaurantId":"` + r.RestaurantID + `",` + payload[1:])
	}
	if _, err := w.p.Apply(w.Context(), c, 1); err != nil {
		w.Fatal(err)
	}
}

func (w *world) status(id, status string) {
	w.Helper()
	w.apply(north, "order.update_status", id, `{"status":"`+status+`"}`)
}

// doc returns a document, or nil.
func (w *world) doc(db, id string) []byte {
	w.Helper()
	raw, err := w.couch.Doc(w.Context(), db, id, "")
	if errors.Is(err, couch.ErrNotFound) {
		return nil
	}
	if err != nil {
		w.Fatal(err)
	}
	return raw
}

// expect compares fields of a document, written as "name value …".
func (w *world) expect(db, id, fields string) {
	w.Helper()
	raw := w.doc(db, id)
	if raw == nil {
		w.Errorf("%s is not in %s", id, db)
		return
	}
	words := strings.Fields(fields)
	for i := 0; i < len(words); i += 2 {
		if got := gjson.GetBytes(raw, words[i]).Raw; strings.Trim(got, `"`) != words[i+1] {
			w.Errorf("%s in %s: %s is %s, want %s", id, db, words[i], got, words[i+1])
		}
	}
}

// absent fails unless the document is not there.
func (w *world) absent(db, id string) {
	w.Helper()
	if raw := w.doc(db, id); raw != nil {
		w.Errorf("%s is in %s: %s", id, db, raw)
	}
}

type broken int

const (
	passes broken = iota
	fails
	unanswered
	answers500
)

var errBroken = errors.New("broken by the test")

// faulty breaks the request of the test's choice.
type faulty struct {
	n      atomic.Int64
	decide func(n int64, req *http.Request) broken
}

func (f *faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	how := f.decide(f.n.Add(1), req)
	switch how {
	case fails:
		return nil, errBroken
	case answers500:
		return &http.Response{StatusCode: 500, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: req}, nil
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if how == unanswered && err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return nil, errBroken
	}
	return res, err
}

// hooked calls a hook before each write.
type hooked struct {
	*couch.Client
	before func(db, id string)
}

func (h hooked) Put(ctx context.Context, db, id string, doc any) error {
	h.before(db, id)
	return h.Client.Put(ctx, db, id, doc)
}
