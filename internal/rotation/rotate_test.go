package rotation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/rotation"
	"github.com/rollingd/rollingd/internal/run"
)

func order(r string, status string) map[string]any {
	return map[string]any{"type": "order", "companyId": "acme", "restaurantId": r, "status": status}
}

func product(r string) map[string]any {
	return map[string]any{"type": "product", "companyId": "acme", "restaurantId": r, "name": "cazuela"}
}

func (w *world) wantStates(r daydb.Restaurant, want ...string) {
	w.Helper()
	if got := w.states(r); !slices.Equal(got, want) {
		w.Errorf("%s: %v, want %v", r, got, want)
	}
}

// wantFailure holds that the only failure is this one, of this step.
func (w *world) wantFailure(report *run.Report, r daydb.Restaurant, step, part string) {
	w.Helper()
	failures := report.Failures()
	if len(failures) != 1 || failures[0].RestaurantID != r.RestaurantID || failures[0].Step != step ||
		!strings.Contains(failures[0].Error, part) {
		w.Errorf("failures %+v, want one of %s in step %s with %q", failures, r, step, part)
	}
}

func TestFirstRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	p1 := w.put(w.legacy, "p1", product("r1"))
	w.put(w.legacy, "p2", product("r2"))
	w.put(w.legacy, "p9", map[string]any{"type": "product", "companyId": "other", "restaurantId": "r9"})
	o1 := w.put(w.legacy, "o1", order("r1", "open"))

	report := w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1, r2)
	want := map[string]int64{
		"restaurants": 2, "created": 6, "activated": 2, "prewarmed": 2, "manifests": 2,
		"warmed_documents": 2, "carried_documents": 1, "routed": 1,
	}
	if got := report.Counters(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counters %v, want %v", got, want)
	}
	if got := w.rev(w.core(r1), "p1"); got != p1 {
		t.Errorf("p1 in core: %q, want %q", got, p1)
	}
	if w.rev(w.core(r1), "p2") != "" || w.rev(w.core(r1), "p9") != "" || w.rev(w.core(r1), "o1") != "" {
		t.Error("core of r1 has documents that are not its own")
	}
	if got := w.rev(w.dayDB(r1, w.today()), "o1"); got != o1 {
		t.Errorf("o1 in today's database: %q, want %q", got, o1)
	}
	if !w.flags("acme").DeviceRouted {
		t.Error("devices are not routed")
	}
}

// A restaurant that stands where it should costs two requests, and nothing is
// written for it.
func TestQuietRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.put(w.legacy, "p1", product("r1"))
	w.rotated(run.Scope{})
	before := w.fingerprint()

	b := &breaker{}
	report := w.runBroken(b, run.Scope{})
	w.clean(report)
	if got := fmt.Sprint(report.Counters()); got != "map[restaurants:2]" {
		t.Errorf("counters %s", got)
	}
	// Two of each restaurant, three of the legacy database.
	if len(b.requests) > 7 {
		t.Errorf("%d requests: %v", len(b.requests), b.requests)
	}
	if after := w.fingerprint(); after != before {
		t.Errorf("a quiet run changed\n%s\nto\n%s", before, after)
	}
}

// fingerprint is everything that a rotation could change.
func (w *world) fingerprint() string {
	w.Helper()
	var b strings.Builder
	for _, table := range []string{
		"day_databases", "day_database_transitions", "legacy_copies", "restaurants", "company_feature_flags",
	} {
		rows, err := w.pool.Query(w.Context(), `select t::text from `+table+` t order by 1`)
		if err != nil {
			w.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			w.Fatal(err)
		}
		fmt.Fprintln(&b, table, strings.Join(lines, "\n"))
	}
	for _, name := range append(w.names(), w.legacy) {
		info, err := w.couch.Info(w.Context(), name)
		if err != nil {
			w.Fatal(err)
		}
		security, err := w.couch.Security(w.Context(), name)
		if err != nil {
			w.Fatal(err)
		}
		fmt.Fprintln(&b, name, info.DocCount, info.DocDelCount, security.Members, security.Marker)
		if strings.HasSuffix(name, "_core") {
			fmt.Fprintln(&b, w.leaves(name, "day_manifest"), w.leaves(name, "_design/rollingd"))
		}
	}
	return b.String()
}

// A fleet that stood still for some days goes on with today; the day that was
// prepared and never came is closed in passing.
func TestSkippedDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	start := w.today().Add(-5)
	w.rotated(run.Scope{BusinessDay: start})
	w.wantStates(r1, start.String()+" ACTIVE", start.Add(1).String()+" PREWARMED")
	w.rotated(run.Scope{BusinessDay: start.Add(1)})
	w.rotated(run.Scope{})
	w.wantStates(r1,
		start.String()+" DRAINING",
		start.Add(1).String()+" DRAINING",
		start.Add(2).String()+" DRAINING",
		w.today().String()+" ACTIVE",
		w.today().Add(1).String()+" PREWARMED")
	w.checkRotated(w.today(), r1)

	unused, err := daydb.Load(t.Context(), w.pool, w.dayDB(r1, start.Add(2)))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := daydb.History(t.Context(), w.pool, unused.ID)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, line := range lines {
		events = append(events, string(line.Event))
	}
	if !slices.Equal(events, []string{"prewarm", "activate", "drain"}) {
		t.Errorf("history of the unused day: %v", events)
	}
}

func TestBusinessDayOnlyMovesForwardUpToToday(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	start := w.today().Add(-5)
	w.rotated(run.Scope{BusinessDay: start})
	// r2 is ahead: a day that only r1 may move to moves neither.
	w.rotated(run.Scope{RestaurantID: "r2", BusinessDay: start.Add(2)})
	before := w.fingerprint()
	for _, day := range []daydb.Day{w.today().Add(1), start.Add(-1), start.Add(1)} {
		scope := run.Scope{BusinessDay: day}
		ro := w.rotator(w.couch)
		if err := ro.CheckScope(t.Context(), scope); !errors.Is(err, rotation.ErrBusinessDay) {
			t.Errorf("CheckScope(%s) = %v", day, err)
		}
		err := ro.Run(t.Context(), run.Run{Actor: "test", Scope: scope, Report: &run.Report{}})
		if !errors.Is(err, rotation.ErrBusinessDay) {
			t.Errorf("Run for %s = %v", day, err)
		}
	}
	if after := w.fingerprint(); after != before {
		t.Errorf("refused days changed\n%s\nto\n%s", before, after)
	}
	w.rotated(run.Scope{BusinessDay: start.Add(2)})
	w.checkRotated(start.Add(2), r1, r2)
}

// A clock that goes back, or a zone that does, leaves the ledger where it is.
func TestNeverBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	// Kiritimati is 25 hours ahead of Midway, so it is never the same date.
	w.register(r1, "Pacific/Kiritimati")
	w.register(r2, "Pacific/Kiritimati")
	w.rotated(run.Scope{})
	w.register(r1, "Pacific/Midway")
	before := w.states(r1)
	report := w.rotate(run.Scope{})
	w.wantFailure(report, r1, "plan", "never goes back")
	w.wantStates(r1, before...)
	w.checkRotated(w.todayIn("Pacific/Kiritimati"), r2)
}

func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.setFlags("acme", false)
	w.put(w.legacy, "p1", product("r1"))
	b := &breaker{}
	w.clean(w.runBroken(b, run.Scope{}))
	if len(b.requests) > 0 || len(w.names()) > 0 || len(w.days(r1)) > 0 {
		t.Errorf("requests %v, databases %v, days %v", b.requests, w.names(), w.days(r1))
	}

	w.setFlags("acme", true)
	b = &breaker{}
	w.clean(w.runBroken(b, run.Scope{}))
	for _, request := range b.requests {
		if strings.Contains(request, "_other_") {
			t.Errorf("a company that is off was asked about: %s", request)
		}
	}
	if len(w.days(r9)) > 0 {
		t.Errorf("days of a company that is off: %v", w.days(r9))
	}
}

// The flag is read again before a database is made: switched off while the run
// is under way, it ends the run without a failure.
func TestSwitchedOffUnderway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.rotated(run.Scope{BusinessDay: w.today().Add(-1)})
	off := sync.OnceFunc(func() { w.setFlags("acme", false) })
	c := hooked{w.couch, func(call, db string) {
		if call == "Security" && strings.HasSuffix(db, "_core") {
			off()
		}
	}}
	report := &run.Report{}
	if err := w.rotator(c).Run(t.Context(), run.Run{Actor: "test", Report: report}); err != nil {
		t.Fatal(err)
	}
	w.clean(report)
	w.wantStates(r1, w.today().Add(-1).String()+" ACTIVE", w.today().String()+" PREWARMED", w.today().Add(1).String()+" PREWARMED")
	if w.exists(w.dayDB(r1, w.today().Add(1))) {
		t.Error("tomorrow's database was created after the switch")
	}
}

// hooked calls a function before some calls to CouchDB.
type hooked struct {
	*couch.Client
	before func(call, db string)
}

func (h hooked) Security(ctx context.Context, db string) (couch.Security, error) {
	h.before("Security", db)
	return h.Client.Security(ctx, db)
}

func (h hooked) Create(ctx context.Context, db string) (bool, error) {
	h.before("Create", db)
	return h.Client.Create(ctx, db)
}

func (h hooked) Changes(ctx context.Context, db string, opts couch.ChangesOptions) (*couch.Feed, error) {
	h.before("Changes", db)
	return h.Client.Changes(ctx, db, opts)
}

func (h hooked) Insert(ctx context.Context, db string, docs [][]byte) ([]couch.Refusal, error) {
	h.before("Insert", db)
	return h.Client.Insert(ctx, db, docs)
}

func TestScopeAndZoneAndInactive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.rotated(run.Scope{CompanyID: "acme", RestaurantID: "r1"})
	if len(w.days(r2)) > 0 || w.exists(w.core(r2)) || w.flags("acme").DeviceRouted {
		t.Error("a canary run of r1 touched r2, or routed the company")
	}
	report := &run.Report{}
	r := run.Run{Actor: "test", Zone: "Pacific/Easter", Report: report}
	if err := w.rotator(w.couch).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if n := report.Counters()["restaurants"]; n != 0 {
		t.Errorf("%d restaurants on Easter Island", n)
	}
	w.tx(func(tx pgx.Tx) error {
		return daydb.Register(t.Context(), tx, daydb.Registration{
			Restaurant: r2, Timezone: "America/Santiago", LegacyDB: w.legacy, Active: false,
		})
	})
	w.rotated(run.Scope{})
	if len(w.days(r2)) > 0 {
		t.Error("an inactive restaurant was rotated")
	}
	if !w.flags("acme").DeviceRouted {
		t.Error("an inactive restaurant kept its company from being routed")
	}
}

func TestTwoRotatorsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.stock(r1)
	w.stock(r2)
	reports := make([]*run.Report, 4)
	var group sync.WaitGroup
	for i := range reports {
		reports[i] = &run.Report{}
		ro := w.rotator(w.client(nil))
		group.Go(func() {
			if err := ro.Run(t.Context(), run.Run{ID: int64(i), Actor: "test", Report: reports[i]}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	total := make(map[string]int64)
	for _, report := range reports {
		w.clean(report)
		for counter, n := range report.Counters() {
			total[counter] += n
		}
	}
	if total["created"] != 6 || total["activated"] != 2 || total["prewarmed"] != 2 || total["manifests"] != 2 {
		t.Errorf("the work was done more than once: %v", total)
	}
	w.checkRotated(w.today(), r1, r2)
	w.checkStock(r1, w.today())
	w.checkStock(r2, w.today())
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.stock(r1)
	dry := func() map[string]int64 {
		t.Helper()
		before := w.fingerprint()
		report := &run.Report{}
		r := run.Run{Actor: "test", DryRun: true, Report: report}
		if err := w.rotator(w.couch).Run(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		w.clean(report)
		if after := w.fingerprint(); after != before {
			t.Errorf("a dry run changed\n%s\nto\n%s", before, after)
		}
		var leases int
		if err := w.pool.QueryRow(t.Context(), `select count(*) from leases where expires_at > now()`).Scan(&leases); err != nil || leases > 0 {
			t.Errorf("%d leases, %v", leases, err)
		}
		return report.Counters()
	}
	want := map[string]int64{
		"restaurants": 2, "created": 6, "activated": 2, "prewarmed": 2, "manifests": 2, "warmed_documents": 2,
	}
	if got := dry(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("before the first run: %v, want %v", got, want)
	}
	w.rotated(run.Scope{BusinessDay: w.today().Add(-2)})
	want = map[string]int64{
		"restaurants": 2, "created": 4, "activated": 4, "drained": 4, "prewarmed": 2, "manifests": 2,
	}
	if got := dry(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after two days: %v, want %v", got, want)
	}
	w.rotated(run.Scope{})
	if got := dry(); fmt.Sprint(got) != "map[restaurants:2]" {
		t.Errorf("at rest: %v", got)
	}
}
