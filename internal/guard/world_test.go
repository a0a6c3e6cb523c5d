package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

func TestMain(m *testing.M) { childOr(m, pgtest.Main) }

// stores are real ones, which many worlds may share.
type stores struct {
	dsn      string
	pool     *pgxpool.Pool
	couchURL string
	couch    *couch.Client
	env      string
	worlds   atomic.Int64
}

func newStores(t testing.TB) *stores {
	t.Helper()
	dsn := pgtest.DSN(t)
	s := &stores{dsn: dsn, pool: pgtest.Open(t, dsn), couchURL: couchtest.New(t), env: couchtest.Env(t)}
	s.couch = newClient(t, s.couchURL, nil)
	return s
}

// world is one restaurant of a company of its own, and the truth about what was
// acknowledged to its tills.
type world struct {
	*stores
	t testing.TB
	r daydb.Restaurant

	mu    sync.Mutex
	acked map[string]string // document id -> revision
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newStores(t).world(t)
}

func (s *stores) world(t testing.TB) *world {
	t.Helper()
	w := &world{
		stores: s,
		t:      t,
		r:      daydb.Restaurant{CompanyID: fmt.Sprintf("acme-%d", s.worlds.Add(1)), RestaurantID: "centro"},
		acked:  make(map[string]string),
	}
	w.tx(func(tx pgx.Tx) error {
		err := daydb.Register(t.Context(), tx, daydb.Registration{
			Restaurant: w.r, Timezone: daydb.DefaultTimezone, LegacyDB: "tables-" + w.env, Active: true,
		})
		if err != nil {
			return err
		}
		_, err = flags.Set(t.Context(), tx, w.r.CompanyID, true, true, "test")
		return err
	})
	return w
}

func newClient(t testing.TB, url string, transport http.RoundTripper) *couch.Client {
	t.Helper()
	c, err := couch.New(couch.Options{URL: url, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) tx(fn func(pgx.Tx) error) {
	w.t.Helper()
	if err := pg.WithTx(w.t.Context(), w.pool, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setFlags(rolling, drop bool) {
	w.t.Helper()
	w.tx(func(tx pgx.Tx) error {
		_, err := flags.Set(w.t.Context(), tx, w.r.CompanyID, rolling, drop, "test")
		return err
	})
}

// today is the restaurant's business day.
func (w *world) today() daydb.Day {
	w.t.Helper()
	today, err := daydb.Today(w.t.Context(), w.pool, daydb.DefaultTimezone)
	if err != nil {
		w.t.Fatal(err)
	}
	return today
}

// draining makes a day of so many days ago, created, secured and rotated out as
// rotation does it.
func (w *world) draining(daysAgo int) daydb.DayDB {
	w.t.Helper()
	ctx := w.t.Context()
	business := w.today().Add(-daysAgo)
	name, err := daydb.ComposeName(w.env, w.r, business)
	if err != nil {
		w.t.Fatal(err)
	}
	mark := daydb.Mark{Actor: "test", Token: w.token()}
	var d daydb.DayDB
	w.tx(func(tx pgx.Tx) error {
		d, err = daydb.Insert(ctx, tx, w.r, business, name, mark)
		return err
	})
	if _, err := w.couch.Create(ctx, name); err != nil {
		w.t.Fatal(err)
	}
	if err := w.couch.PutSecurity(ctx, name, couch.OpenTo(w.r.Role(), d.Generation)); err != nil {
		w.t.Fatal(err)
	}
	info, err := w.couch.Info(ctx, name)
	if err != nil {
		w.t.Fatal(err)
	}
	w.tx(func(tx pgx.Tx) error {
		err := daydb.Update(ctx, tx, d, mark.Token, `instance_start_time = @ist`, pgx.NamedArgs{"ist": info.InstanceStartTime})
		if err != nil {
			return err
		}
		if d, err = daydb.Move(ctx, tx, d, daydb.Activate, mark, nil); err != nil {
			return err
		}
		d, err = daydb.Move(ctx, tx, d, daydb.Drain, mark, nil)
		return err
	})
	return d
}

func (w *world) token() (token int64) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), `select nextval('fencing_tokens_seq')`).Scan(&token); err != nil {
		w.t.Fatal(err)
	}
	return token
}

// put writes a document as a till does, and remembers what was acknowledged.
func (w *world) put(db, id string, fields map[string]any) {
	w.t.Helper()
	status, body := w.request(http.MethodPut, db+"/"+id, fields)
	if status != http.StatusCreated {
		w.t.Fatalf("put %s: %d %s", id, status, body)
	}
	w.ack(body)
}

func (w *world) ack(answer []byte) {
	var a struct{ ID, Rev string }
	if err := json.Unmarshal(answer, &a); err != nil || a.Rev == "" {
		w.t.Errorf("answer %s", answer)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked[a.ID] = a.Rev
}

// request speaks to CouchDB as its administrator, past the client under test.
func (w *world) request(method, target string, body any) (int, []byte) {
	payload, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.requestRaw(method, target, payload)
}

func (w *world) requestRaw(method, target string, payload []byte) (int, []byte) {
	w.t.Helper()
	req, err := http.NewRequest(method, w.couchURL+"/"+target, bytes.NewReader(payload))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, answer
}

// sales writes n finished documents.
func (w *world) sales(db string, n int) {
	w.t.Helper()
	for i := range n {
		w.put(db, fmt.Sprintf("order-%d", i), map[string]any{"type": "order", "status": "closed", "total": 1990 + i})
	}
}

// parts are what a guard is made of; a test replaces some.
type parts struct {
	transport http.RoundTripper
	dsn       string
	couch     func(*couch.Client) Couch
	settle    time.Duration
	// undelivered is what the continuity plane says of each day.
	undelivered *Undelivered
	leaseTTL    time.Duration
	unsealPause time.Duration
}

func (w *world) guard(p parts) *Guard {
	w.t.Helper()
	pool := w.pool
	if p.dsn != "" {
		pool = pgtest.Open(w.t, p.dsn)
	}
	if p.leaseTTL == 0 {
		p.leaseTTL = 30 * time.Second
	}
	client := newClient(w.t, w.couchURL, p.transport)
	leases := fence.New(pool, "test", p.leaseTTL)
	log := slog.New(slog.DiscardHandler)
	opts := Options{
		Pool:        pool,
		Couch:       client,
		Archive:     archive.New(archive.Options{Pool: pool, Couch: client, Leases: leases, Log: log, Env: w.env, Workers: 1}),
		Leases:      leases,
		Log:         log,
		Env:         w.env,
		TTLDays:     30,
		Settle:      p.settle,
		Silence:     7 * 24 * time.Hour,
		UnsealPause: p.unsealPause,
		Workers:     1,
	}
	if p.undelivered != nil {
		opts.Undelivered = func(_ context.Context, _ daydb.Querier, ids []int64) (map[int64]Undelivered, error) {
			all := make(map[int64]Undelivered)
			for _, id := range ids {
				all[id] = *p.undelivered
			}
			return all, nil
		}
	}
	if p.couch != nil {
		opts.Couch = p.couch(client)
	}
	g := New(opts)
	g.deleteWithin = patience
	return g
}

// patience is how long a decision to drop is good for in a test: a machine that stands still for a few seconds is no
// reason for a night to fail.
const patience = time.Minute

// night runs the guard once, for this company unless the scope is changed.
func (w *world) night(g *Guard, change ...func(*run.Run)) (*run.Report, error) {
	r := run.Run{Actor: "test", Report: &run.Report{}, Scope: run.Scope{CompanyID: w.r.CompanyID}}
	for _, c := range change {
		c(&r)
	}
	err := g.Run(context.Background(), r)
	return r.Report, err
}

// mustNight runs the guard once, without a failure.
func (w *world) mustNight(g *Guard, change ...func(*run.Run)) *run.Report {
	w.t.Helper()
	report, err := w.night(g, change...)
	if err != nil {
		w.t.Fatal(err)
	}
	if failures := report.Failures(); len(failures) > 0 {
		w.t.Fatalf("the night failed: %+v", failures)
	}
	return report
}

// nights runs the guard until the day is in a state, and checks the world after
// each night.
func (w *world) nights(g *Guard, name string, until daydb.State) daydb.DayDB {
	w.t.Helper()
	const enough = 8
	for range enough {
		if d := w.day(name); d.State == until {
			return d
		}
		w.mustNight(g)
		w.check()
	}
	w.t.Fatalf("%s is %s after %d nights, not %s", name, w.day(name).State, enough, until)
	return daydb.DayDB{}
}

func (w *world) day(name string) daydb.DayDB {
	w.t.Helper()
	d, err := daydb.Load(w.t.Context(), w.pool, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// check is what must hold at any time, whatever was broken before:
//   - each acknowledged document is in CouchDB or, byte for byte, in Postgres
//   - a database is absent only if its row is DROPPED or its drop was committed
//   - a DROPPED day has a proof of as many documents as the archive holds
//   - tokens in the history of a day only rise
func (w *world) check() {
	w.t.Helper()
	ctx := w.t.Context()
	days, err := daydb.List(ctx, w.pool, daydb.Filter{CompanyID: w.r.CompanyID})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range days {
		_, err := w.couch.Info(ctx, d.Name)
		absent := errors.Is(err, couch.ErrNotFound)
		if err != nil && !absent {
			w.t.Fatal(err)
		}
		switch {
		case absent && d.State != daydb.Dropped && d.DropIntendedAt == nil:
			w.t.Errorf("%s is gone and its row is %s", d.Name, d.State)
		case !absent && d.State == daydb.Dropped:
			w.t.Errorf("%s is there and its row is DROPPED", d.Name)
		case d.State == daydb.Dropped && (d.Proof == nil || d.Proof.Documents != w.archived(d)):
			w.t.Errorf("%s was dropped with the proof %+v, and %d documents are archived", d.Name, d.Proof, w.archived(d))
		}
		history, err := daydb.History(ctx, w.pool, d.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		for i := 1; i < len(history); i++ {
			if history[i].Token < history[i-1].Token {
				w.t.Errorf("%s: token %d follows %d", d.Name, history[i].Token, history[i-1].Token)
			}
		}
		if absent {
			w.checkArchived(d)
		} else {
			w.checkInCouch(d)
		}
	}
}

func (w *world) archived(d daydb.DayDB) (n int64) {
	w.t.Helper()
	err := w.pool.QueryRow(w.t.Context(), `
		select count(*)
		from archived_docs a
		join archive_checkpoints c on c.id = a.source_id
		where c.day_database_id = $1`, d.ID).Scan(&n)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// checkArchived looks for every acknowledged document in Postgres.
func (w *world) checkArchived(d daydb.DayDB) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, rev := range w.acked {
		var body string
		err := w.pool.QueryRow(w.t.Context(), `
			select coalesce(a.tombstone, a.body)
			from archived_docs a
			join archive_checkpoints c on c.id = a.source_id
			where c.day_database_id = $1 and a.id_hash = sha256($2) and a.rev = $3`, d.ID, []byte(id), rev).Scan(&body)
		if err != nil {
			w.t.Errorf("LOST: %s %s was acknowledged, and is not in the archive: %v", id, rev, err)
			continue
		}
		if !strings.Contains(body, `"_rev":"`+rev+`"`) {
			w.t.Errorf("LOST: %s is archived as %s", id, body)
		}
	}
}

// checkInCouch looks for every acknowledged document in CouchDB.
func (w *world) checkInCouch(d daydb.DayDB) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, rev := range w.acked {
		if _, err := w.couch.Doc(w.t.Context(), d.Name, id, rev); err != nil {
			w.t.Errorf("LOST: %s %s was acknowledged, and is not in %s: %v", id, rev, d.Name, err)
		}
	}
}
