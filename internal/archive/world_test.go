package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// acme is the restaurant of most tests.
var acme = daydb.Restaurant{CompanyID: "acme", RestaurantID: "centro"}

// world is a Postgres, a CouchDB and an archiver between them.
type world struct {
	t      *testing.T
	dsn    string
	pool   *pgxpool.Pool
	url    string
	env    string
	couch  *couch.Client
	leases *fence.Leases
	*archive.Archiver
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dsn: pgtest.DSN(t), url: couchtest.New(t), env: couchtest.Env(t)}
	w.pool = pgtest.Open(t, w.dsn)
	w.connect(nil)
	return w
}

// connect makes the archiver speak to CouchDB through a transport; nil is none.
func (w *world) connect(transport http.RoundTripper) {
	w.t.Helper()
	w.couch = must(couch.New(couch.Options{URL: w.url, Transport: transport}))(w.t)
	w.t.Cleanup(func() { _ = w.couch.Close() })
	w.leases = fence.New(w.pool, "test", time.Minute)
	w.Archiver = w.archiver(w.pool)
}

// archiver returns an archiver on another pool.
func (w *world) archiver(pool *pgxpool.Pool) *archive.Archiver {
	return archive.New(archive.Options{
		Pool:   pool,
		Couch:  w.couch,
		Leases: fence.New(pool, "test", time.Minute),
		Log:    slog.New(slog.DiscardHandler),
		Env:    w.env,
	})
}

// must takes a result and an error, and fails the test for the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// scalar returns one value of Postgres as text.
func (w *world) scalar(sql string, args ...any) string {
	w.t.Helper()
	var v any
	if err := w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return fmt.Sprint(v)
}

func (w *world) expect(want, sql string, args ...any) {
	w.t.Helper()
	if got := w.scalar(sql, args...); got != want {
		w.t.Errorf("%s gives %s, not %s", strings.Join(strings.Fields(sql), " "), got, want)
	}
}

// request sends a request as administrator, outside of what is tested.
func (w *world) request(method, path string, body []byte) (status int, answer []byte) {
	w.t.Helper()
	req := must(http.NewRequestWithContext(context.WithoutCancel(w.t.Context()), method, w.url+path, bytes.NewReader(body)))(w.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	res := must(http.DefaultClient.Do(req))(w.t)
	defer res.Body.Close()
	return res.StatusCode, must(io.ReadAll(res.Body))(w.t)
}

func (w *world) do(method, path, body string) []byte {
	w.t.Helper()
	status, answer := w.request(method, path, []byte(body))
	if status >= http.StatusBadRequest {
		w.t.Fatalf("%s %.200s: %d %.300s", method, path, status, answer)
	}
	return answer
}

// put writes documents, given as JSON, as a client does.
func (w *world) put(db string, docs ...string) {
	w.t.Helper()
	answer := w.do(http.MethodPost, "/"+db+"/_bulk_docs", `{"docs":[`+strings.Join(docs, ",")+`]}`)
	if bytes.Contains(answer, []byte(`"error"`)) {
		w.t.Fatalf("documents refused: %.500s", answer)
	}
}

// replicate writes revisions as a replicating device does.
func (w *world) replicate(db string, docs ...string) {
	w.t.Helper()
	answer := w.do(http.MethodPost, "/"+db+"/_bulk_docs", `{"new_edits":false,"docs":[`+strings.Join(docs, ",")+`]}`)
	if strings.TrimSpace(string(answer)) != "[]" {
		w.t.Fatalf("revisions refused: %.500s", answer)
	}
}

func (w *world) rev(db, id string) string {
	w.t.Helper()
	return gjson.GetBytes(w.do(http.MethodGet, "/"+db+"/"+url.PathEscape(id), ""), "_rev").String()
}

func (w *world) register(r daydb.Restaurant, zone, legacyDB string) {
	w.t.Helper()
	reg := daydb.Registration{Restaurant: r, Timezone: zone, LegacyDB: legacyDB, Active: true}
	err := pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error { return daydb.Register(w.t.Context(), tx, reg) })
	if err != nil {
		w.t.Fatal(err)
	}
}

// newDay enters a day of acme and creates its database, secured and ACTIVE.
func (w *world) newDay(businessDay string) daydb.DayDB {
	return w.newDayOf(acme, businessDay)
}

func (w *world) newDayOf(r daydb.Restaurant, businessDay string) daydb.DayDB {
	w.t.Helper()
	ctx := w.t.Context()
	w.register(r, daydb.DefaultTimezone, "tables-"+w.env)
	name := must(contracts.DailyName(w.env, r.CompanyID, r.RestaurantID, businessDay))(w.t)
	day := must(daydb.ParseDay(businessDay))(w.t)
	var d daydb.DayDB
	w.leased("test setup", func(lease fence.Lease) error {
		mark := daydb.Mark{Actor: "test", Token: lease.Token}
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			var err error
			if d, err = daydb.Insert(ctx, tx, r, day, name, mark); err != nil {
				return err
			}
			w.create(name, d.Generation.String())
			info := w.do(http.MethodGet, "/"+name, "")
			err = daydb.Update(ctx, tx, d, lease.Token, `instance_start_time = @start`,
				pgx.NamedArgs{"start": gjson.GetBytes(info, "instance_start_time").String()})
			if err != nil {
				return err
			}
			d, err = daydb.Move(ctx, tx, d, daydb.Activate, mark, nil)
			return err
		})
	})
	return d
}

// create makes a database with a marker in its _security.
func (w *world) create(name, generation string) {
	w.t.Helper()
	w.do(http.MethodPut, "/"+name+"?q=1", "")
	w.do(http.MethodPut, "/"+name+"/_security", `{"admins":{"names":[],"roles":["_admin"]},`+
		`"members":{"names":[],"roles":["pos"]},"rollingd":{"generation":"`+generation+`"}}`)
}

// leased runs fn under a lease that is given back whatever happens.
func (w *world) leased(name string, fn func(fence.Lease) error) {
	w.t.Helper()
	err := w.leases.Hold(w.t.Context(), name, func(_ context.Context, lease fence.Lease) error { return fn(lease) })
	if err != nil {
		w.t.Fatal(err)
	}
}

// tryCatchUp archives a day under its lease.
func (w *world) tryCatchUp(d daydb.DayDB) (archive.Position, error) {
	w.t.Helper()
	lease := must(w.leases.Acquire(w.t.Context(), archive.LeaseName(d.Name)))(w.t)
	defer func() { _ = w.leases.Release(context.WithoutCancel(w.t.Context()), lease) }()
	return w.CatchUp(w.t.Context(), d, lease)
}

func (w *world) catchUp(d daydb.DayDB) archive.Position {
	w.t.Helper()
	return must(w.tryCatchUp(d))(w.t)
}

func (w *world) reconcile(d daydb.DayDB, pos archive.Position) archive.Reconciliation {
	w.t.Helper()
	return must(w.Reconcile(w.t.Context(), d, pos))(w.t)
}

// checkEqual checks that the archive holds of a day what CouchDB does, by
// Reconcile, by Prove, and by reading both sides here.
func (w *world) checkEqual(d daydb.DayDB, pos archive.Position) {
	w.t.Helper()
	if rec := w.reconcile(d, pos); !rec.Green() {
		w.t.Errorf("not reconciled: %+v", rec)
	}
	if _, err := w.Prove(w.t.Context(), d, pos); err != nil {
		w.t.Errorf("not proven: %v", err)
	}
	rows := must(w.pool.Query(w.t.Context(), `
		select doc_id, rev, case when deleted then tombstone else body end, deleted
		from archived_docs
		where source_id = $1
		  and (deleted or body_sha256 = sha256(convert_to(body, 'UTF8')) and body_rev = rev)`, pos.SourceID))(w.t)
	archived := make(map[string]feedRow)
	var id []byte
	var row feedRow
	_, err := pgx.ForEachRow(rows, []any{&id, &row.rev, &row.doc, &row.deleted}, func() error {
		row.id = string(id)
		archived[row.id] = row
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	live := 0
	for _, row := range w.changes(d.Name) {
		if strings.HasPrefix(row.id, "_design/") {
			continue
		}
		live++
		if archived[row.id] != row {
			w.t.Errorf("%.100q was archived as %.300q, not as %.300q", row.id, fmt.Sprint(archived[row.id]), fmt.Sprint(row))
		}
	}
	w.expect(fmt.Sprint(live), `select count(*) from archived_docs where source_id = $1`, pos.SourceID)
}

type feedRow struct {
	id, rev, doc string
	deleted      bool
}

// changes reads a feed in another way than the product does.
func (w *world) changes(db string) []feedRow {
	w.t.Helper()
	var rows []feedRow
	gjson.GetBytes(w.do(http.MethodGet, "/"+db+"/_changes?include_docs=true", ""), "results").ForEach(func(_, r gjson.Result) bool {
		rows = append(rows, feedRow{
			id:      r.Get("id").String(),
			rev:     r.Get("changes.0.rev").String(),
			doc:     r.Get("doc").Raw,
			deleted: r.Get("deleted").Bool(),
		})
		return true
	})
	return rows
}

// run executes the job and returns its report.
func (w *world) run(scope run.Scope) *run.Report {
	w.t.Helper()
	report := &run.Report{}
	if err := w.Run(w.t.Context(), run.Run{ID: 1, Actor: "test", Scope: scope, Report: report}); err != nil {
		w.t.Fatal(err)
	}
	return report
}

// blockers returns the blockers as code to ids.
func (w *world) blockers(pos archive.Position) map[string]string {
	w.t.Helper()
	found := make(map[string]string)
	for _, b := range must(w.Blockers(w.t.Context(), pos.SourceID))(w.t) {
		if b.Count != int64(len(b.IDs)) {
			w.t.Errorf("%s counts %d of %v", b.Code, b.Count, b.IDs)
		}
		found[b.Code] = strings.Join(b.IDs, " ")
	}
	return found
}

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// transport hands each request to a function.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
