package rotation_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/rotation"
	"github.com/rollingd/rollingd/internal/run"
)

var (
	r1 = daydb.Restaurant{CompanyID: "acme", RestaurantID: "r1"}
	r2 = daydb.Restaurant{CompanyID: "acme", RestaurantID: "r2"}
	r9 = daydb.Restaurant{CompanyID: "other", RestaurantID: "r9"}
)

// world is a fleet on real stores, on one legacy database: restaurants of acme,
// which is rolling, and r9 of other, which is not.
type world struct {
	testing.TB
	pool   *pgxpool.Pool
	couch  *couch.Client
	url    string
	env    string
	legacy string
}

func newWorld(t testing.TB, rolling ...daydb.Restaurant) *world {
	t.Helper()
	w := &world{TB: t, pool: pgtest.New(t), url: couchtest.New(t), env: couchtest.Env(t)}
	w.legacy = contracts.LegacyName(w.env)
	w.couch = w.client(nil)
	w.createLegacy()
	for _, r := range append(rolling, r9) {
		w.register(r, "America/Santiago")
	}
	w.setFlags("acme", true)
	return w
}

func (w *world) client(transport http.RoundTripper) *couch.Client {
	w.Helper()
	c, err := couch.New(couch.Options{URL: w.url, Transport: transport})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) createLegacy() {
	w.Helper()
	if _, err := w.couch.Create(w.Context(), w.legacy); err != nil {
		w.Fatal(err)
	}
}

func (w *world) tx(fn func(tx pgx.Tx) error) {
	w.Helper()
	if err := pgx.BeginFunc(w.Context(), w.pool, fn); err != nil {
		w.Fatal(err)
	}
}

func (w *world) register(r daydb.Restaurant, timezone string) {
	w.Helper()
	w.tx(func(tx pgx.Tx) error {
		return daydb.Register(w.Context(), tx, daydb.Registration{
			Restaurant: r, Timezone: timezone, LegacyDB: w.legacy, Active: true,
		})
	})
}

func (w *world) setFlags(company string, rolling bool) {
	w.Helper()
	w.tx(func(tx pgx.Tx) error {
		_, err := flags.Set(w.Context(), tx, company, rolling, false, "test")
		return err
	})
}

func (w *world) flags(company string) flags.Flags {
	w.Helper()
	f, err := flags.Load(w.Context(), w.pool, company)
	if err != nil {
		w.Fatal(err)
	}
	return f
}

func (w *world) rotator(c rotation.CouchDB) *rotation.Rotator {
	w.Helper()
	ro, err := rotation.New(rotation.Options{
		Pool:   w.pool,
		Couch:  c,
		Leases: fence.New(w.pool, "test", time.Minute),
		Env:    w.env,
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	return ro
}

// rotate runs the cron once and returns its report.
func (w *world) rotate(scope run.Scope) *run.Report {
	w.Helper()
	report := &run.Report{}
	if err := w.rotator(w.couch).Run(w.Context(), run.Run{ID: 1, Actor: "test", Scope: scope, Report: report}); err != nil {
		w.Fatal(err)
	}
	return report
}

// rotated is rotate that fails the test on any failure in the report.
func (w *world) rotated(scope run.Scope) *run.Report {
	w.Helper()
	report := w.rotate(scope)
	w.clean(report)
	return report
}

func (w *world) clean(report *run.Report) {
	w.Helper()
	for _, f := range report.Failures() {
		w.Errorf("failure: %+v", f)
	}
}

func (w *world) today() daydb.Day { return w.todayIn("America/Santiago") }

func (w *world) todayIn(zone string) daydb.Day {
	w.Helper()
	day, err := daydb.Today(w.Context(), w.pool, zone)
	if err != nil {
		w.Fatal(err)
	}
	return day
}

func (w *world) dayDB(r daydb.Restaurant, day daydb.Day) string {
	w.Helper()
	name, err := contracts.DailyName(w.env, r.CompanyID, r.RestaurantID, day.String())
	if err != nil {
		w.Fatal(err)
	}
	return name
}

func (w *world) core(r daydb.Restaurant) string {
	w.Helper()
	name, err := contracts.CoreName(w.env, r.CompanyID, r.RestaurantID)
	if err != nil {
		w.Fatal(err)
	}
	return name
}

func (w *world) days(r daydb.Restaurant) []daydb.DayDB {
	w.Helper()
	days, err := daydb.List(w.Context(), w.pool, daydb.Filter{CompanyID: r.CompanyID, RestaurantID: r.RestaurantID})
	if err != nil {
		w.Fatal(err)
	}
	return days
}

// states returns the ledger of a restaurant as "20261130 ACTIVE", in the order of
// the days.
func (w *world) states(r daydb.Restaurant) []string {
	w.Helper()
	var states []string
	for _, d := range w.days(r) {
		states = append(states, d.BusinessDay.String()+" "+string(d.State))
	}
	slices.Sort(states)
	return states
}

func (w *world) manifest(r daydb.Restaurant) contracts.DayManifest {
	w.Helper()
	raw, err := w.couch.Doc(w.Context(), w.core(r), contracts.ManifestID, "")
	if err != nil {
		w.Fatal(err)
	}
	m, err := contracts.ParseDayManifest(raw)
	if err != nil {
		w.Fatalf("%v: %s", err, raw)
	}
	return m
}

// put writes a document with new_edits, and returns its revision.
func (w *world) put(db, id string, fields map[string]any) string {
	w.Helper()
	if raw, err := w.couch.Doc(w.Context(), db, id, ""); err == nil {
		fields["_rev"] = gjson.GetBytes(raw, "_rev").String()
	}
	if err := w.couch.Put(w.Context(), db, id, fields); err != nil {
		w.Fatal(err)
	}
	return w.rev(db, id)
}

func (w *world) remove(db, id string) {
	w.Helper()
	if err := w.couch.DeleteDoc(w.Context(), db, id, w.rev(db, id)); err != nil {
		w.Fatal(err)
	}
}

// insert writes revisions as replication does.
func (w *world) insert(db string, docs ...map[string]any) {
	w.Helper()
	raw := make([][]byte, len(docs))
	for i, doc := range docs {
		raw[i], _ = json.Marshal(doc)
	}
	refusals, err := w.couch.Insert(w.Context(), db, raw)
	if err != nil || len(refusals) > 0 {
		w.Fatal(err, refusals)
	}
}

// rev returns the winning revision of a live document, and "" for none.
func (w *world) rev(db, id string) string {
	w.Helper()
	raw, err := w.couch.Doc(w.Context(), db, id, "")
	if errors.Is(err, couch.ErrNotFound) {
		return ""
	}
	if err != nil {
		w.Fatal(err)
	}
	return gjson.GetBytes(raw, "_rev").String()
}

// leaves returns all leaves of a document, deleted ones too, sorted.
func (w *world) leaves(db, id string) []string {
	w.Helper()
	revisions, err := w.couch.Revisions(w.Context(), db, []couch.Ref{{ID: id}}, false)
	if err != nil {
		w.Fatal(err)
	}
	var leaves []string
	for _, r := range revisions {
		if r.Body != nil {
			leaves = append(leaves, r.Rev)
		}
	}
	slices.Sort(leaves)
	return leaves
}

func (w *world) names() []string {
	w.Helper()
	names, err := w.couch.Names(w.Context(), w.env+"_")
	if err != nil {
		w.Fatal(err)
	}
	return names
}

func (w *world) exists(db string) bool {
	w.Helper()
	_, err := w.couch.Info(w.Context(), db)
	if err != nil && !errors.Is(err, couch.ErrNotFound) {
		w.Fatal(err)
	}
	return err == nil
}

// check holds what is true between any two requests of a rotation, whatever
// failed: at most one ACTIVE day, a ledger that is ahead of CouchDB, manifests
// that name existing databases of their restaurant only, open to its role alone,
// and tokens that only rise.
func (w *world) check() {
	w.Helper()
	ctx := w.Context()
	active := make(map[daydb.Restaurant]int)
	ledger := make(map[string]daydb.DayDB)
	all, err := daydb.List(ctx, w.pool, daydb.Filter{})
	if err != nil {
		w.Fatal(err)
	}
	for _, d := range all {
		ledger[d.Name] = d
		if d.State == daydb.Active {
			active[d.Restaurant]++
		}
		lines, err := daydb.History(ctx, w.pool, d.ID)
		if err != nil {
			w.Fatal(err)
		}
		for i, line := range lines {
			if i > 0 && line.Token < lines[i-1].Token {
				w.Errorf("%s: token %d after %d", d.Name, line.Token, lines[i-1].Token)
			}
			if line.Token > d.Token {
				w.Errorf("%s: the row holds token %d, its history %d", d.Name, d.Token, line.Token)
			}
		}
	}
	for r, n := range active {
		if n > 1 {
			w.Errorf("%s has %d ACTIVE days", r, n)
		}
	}
	for _, name := range w.names() {
		if strings.HasSuffix(name, "_core") {
			continue
		}
		if _, ok := ledger[name]; !ok {
			w.Errorf("%s exists and is not in the ledger", name)
		}
	}
	for _, r := range []daydb.Restaurant{r1, r2} {
		raw, err := w.couch.Doc(ctx, w.core(r), contracts.ManifestID, "")
		if errors.Is(err, couch.ErrNotFound) {
			continue
		}
		if err != nil {
			w.Fatal(err)
		}
		m, err := contracts.ParseDayManifest(raw)
		if err != nil {
			w.Errorf("manifest of %s: %v", r, err)
			continue
		}
		named := m.Overlays
		if m.CurrentBusinessDay != nil {
			named = append(named, contracts.Overlay{BusinessDay: *m.CurrentBusinessDay, DBName: *m.CurrentDayDB})
		}
		for _, o := range named {
			day, err := daydb.ParseDay(o.BusinessDay)
			if err != nil {
				w.Fatal(err)
			}
			name := w.dayDB(r, day)
			security, err := w.couch.Security(ctx, name)
			if err != nil {
				w.Errorf("manifest of %s names %s: %v", r, name, err)
				continue
			}
			if !security.Marked(ledger[name].Generation) || !slices.Equal(security.Members.Roles, []string{r.Role()}) {
				w.Errorf("manifest of %s names %s, which is not secured: %+v", r, name, security)
			}
		}
	}
}

// checkRotated is check, and that restaurants stand where a run without failures
// leaves them on this day.
func (w *world) checkRotated(day daydb.Day, restaurants ...daydb.Restaurant) {
	w.Helper()
	w.check()
	for _, r := range restaurants {
		states := w.states(r)
		for _, want := range []string{day.String() + " ACTIVE", day.Add(1).String() + " PREWARMED"} {
			if !slices.Contains(states, want) {
				w.Errorf("%s: no %s in %v", r, want, states)
			}
		}
		for _, d := range w.days(r) {
			if d.InstanceStartTime == nil {
				w.Errorf("%s was never created", d.Name)
			}
			if d.State == daydb.Prewarmed && d.BusinessDay != day.Add(1) {
				w.Errorf("%s is left PREWARMED", d.Name)
			}
		}
		m := w.manifest(r)
		if m.CurrentBusinessDay == nil || *m.CurrentBusinessDay != day.String() {
			w.Errorf("manifest of %s: %+v", r, m)
		}
		var draining []string
		for _, d := range w.days(r) {
			if d.State == daydb.Draining {
				draining = append(draining, d.BusinessDay.String())
			}
		}
		slices.Sort(draining)
		slices.Reverse(draining)
		var overlays []string
		for _, o := range m.Overlays {
			overlays = append(overlays, o.BusinessDay)
		}
		if !slices.Equal(draining, overlays) {
			w.Errorf("manifest of %s: overlays %v, draining %v", r, overlays, draining)
		}
		reg, err := daydb.LoadRestaurant(w.Context(), w.pool, r)
		if err != nil {
			w.Fatal(err)
		}
		if reg.ManifestGeneration == nil || *reg.ManifestGeneration != m.Generation {
			w.Errorf("manifest of %s: recorded generation %v, written %d", r, reg.ManifestGeneration, m.Generation)
		}
		security, err := w.couch.Security(w.Context(), w.core(r))
		if err != nil || !security.Marked(reg.CoreGeneration) || !slices.Equal(security.Members.Roles, []string{r.Role()}) {
			w.Errorf("core of %s: %+v, %v", r, security, err)
		}
	}
}
