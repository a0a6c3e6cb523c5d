package api_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/guard"
)

func TestCronsOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var list struct{ Crons []cron.Entry }
	s.do("GET", "/admin/crons", viewer, "").into(t, &list)
	if len(list.Crons) != 3 {
		t.Fatalf("crons are %+v", list.Crons)
	}
	if e := list.Crons[0]; e.Name != "rolling-db-rotate" || e.Zone != "America/Santiago" || e.NextRunAt == nil || e.NextRunAt.Location() != time.UTC {
		t.Errorf("entry is %+v", e)
	}

	started := s.do("POST", "/admin/crons/slow/run", operator, "")
	var id struct{ RunID int64 }
	started.into(t, &id)
	if started.status != http.StatusAccepted || id.RunID == 0 {
		t.Fatalf("start: %d %s", started.status, started.body)
	}
	overlap := s.do("POST", "/admin/crons/slow/run", operator, "")
	var p api.Problem
	overlap.into(t, &p)
	if overlap.status != http.StatusConflict || p.Code != "running" || p.RunID != id.RunID {
		t.Errorf("overlap: %d %s", overlap.status, overlap.body)
	}
	close(s.gate)

	waited := s.do("POST", "/admin/crons/rolling-db-rotate/run", operator, `{"companyId":"acme","restaurantId":"north","dryRun":true,"wait":true}`)
	var run cron.Run
	waited.into(t, &run)
	if waited.status != http.StatusOK || run.State != cron.Succeeded || run.Actor != "otto" || run.Scope.RestaurantID != "north" || !run.DryRun {
		t.Errorf("run: %d %s", waited.status, waited.body)
	}
	for _, want := range []string{`"trigger":"manual"`, `"scope":{"companyId":"acme","restaurantId":"north"}`, `"counters":{}`, `"failures":[]`} {
		if !strings.Contains(string(waited.body), want) {
			t.Errorf("run lacks %s: %s", want, waited.body)
		}
	}
	var runs struct{ Runs []cron.Run }
	s.do("GET", "/admin/runs?cron=rolling-db-rotate", viewer, "").into(t, &runs)
	if len(runs.Runs) != 1 || runs.Runs[0].ID != run.ID {
		t.Errorf("runs are %+v", runs)
	}

	paused := s.do("POST", "/admin/crons/rolling-db-rotate/pause", operator, `{"reason":"audit"}`)
	paused.into(t, &list)
	if paused.status != http.StatusOK || !list.Crons[0].Paused || list.Crons[0].Pause.Actor != "otto" {
		t.Errorf("pause: %d %s", paused.status, paused.body)
	}
	refused := s.do("POST", "/admin/crons/rolling-db-rotate/run", operator, "")
	refused.into(t, &p)
	if refused.status != http.StatusConflict || p.Code != "paused" || !strings.Contains(p.Detail, "audit") {
		t.Errorf("run of a paused cron: %d %s", refused.status, refused.body)
	}
	if resumed := s.do("POST", "/admin/crons/rolling-db-rotate/resume", operator, ""); resumed.status != http.StatusOK {
		t.Errorf("resume: %d %s", resumed.status, resumed.body)
	}
}

func TestHoldOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	day := "/admin/day-dbs/" + s.day
	var x guard.Explanation
	s.do("PUT", day+"/hold", operator, `{"reason":"  audit 2026-31 "}`).into(t, &x)
	if x.Hold == nil || x.Hold.Reason != "audit 2026-31" || x.Hold.Actor != "otto" || x.DBName != s.day {
		t.Errorf("held: %+v", x)
	}
	if x.Documents != nil || x.Archived != nil {
		t.Errorf("a day that was never looked at holds %d documents, %d archived", *x.Documents, *x.Archived)
	}
	x = guard.Explanation{}
	s.do("DELETE", day+"/hold", destroyer, `{"reason":"audit is over"}`).into(t, &x)
	if x.Hold != nil {
		t.Errorf("released: %+v", x)
	}
	s.do("DELETE", day+"/hold", destroyer, "")
	var events []string
	for _, line := range x.History {
		events = append(events, string(line.Event)+" by "+line.Actor)
	}
	if got := strings.Join(events, ", "); got != "prewarm by test, hold by otto, release by dora" {
		t.Errorf("history is %s", got)
	}
}

func TestWaiverOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, err := daydb.Load(t.Context(), s.pool, s.day)
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		return daydb.ReportUnsynced(t.Context(), tx, d.Restaurant, "till-3", 1, map[daydb.Day]int64{d.BusinessDay: 2})
	})
	if err != nil {
		t.Fatal(err)
	}
	waiver := "/admin/day-dbs/" + s.day + "/devices/till-3/waiver"
	var x guard.Explanation
	s.do("PUT", waiver, destroyer, `{"reason":" drowned "}`).into(t, &x)
	if len(x.Unsynced) != 1 || x.Unsynced[0].Waited || x.Unsynced[0].Waiver == nil || x.Unsynced[0].Waiver.Reason != "drowned" || x.Unsynced[0].Waiver.Actor != "dora" {
		t.Errorf("waived: %+v", x.Unsynced)
	}
	if said := strings.Join(x.Summary, "\n"); !strings.Contains(said, "Device till-3 says that it still holds 2 documents of this day") || !strings.Contains(said, "waived by dora") {
		t.Errorf("the summary says\n%s", said)
	}
	x = guard.Explanation{}
	s.do("DELETE", waiver, operator, "").into(t, &x)
	if len(x.Unsynced) != 1 || !x.Unsynced[0].Waited || x.Unsynced[0].Waiver != nil {
		t.Errorf("waited for again: %+v", x.Unsynced)
	}
	last := x.History[len(x.History)-2:]
	if last[0].Event != "waive" || last[0].Actor != "dora" || last[1].Event != "end_waiver" || last[1].Actor != "otto" {
		t.Errorf("the history ends with %+v", last)
	}
}

func TestDayDBsInPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			with days as (
			  insert into day_databases (company_id, restaurant_id, business_day, db_name, fencing_token)
			  select 'acme', 'north', d::date, $1 || '_acme_north_daily_' || to_char(d, 'YYYYMMDD'), 1
			  from generate_series('2026-11-02'::date, '2026-11-24', '1 day') d
			  returning id)
			insert into day_database_transitions (day_database_id, to_state, event, actor, token)
			select id, 'PREWARMED', 'prewarm', 'test', 1 from days`, s.env)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for cursor, pages := "", 0; ; pages++ {
		var page struct {
			DayDBs     []guard.Explanation `json:"dayDbs"`
			NextCursor *string
		}
		s.do("GET", "/admin/day-dbs?companyId=acme&limit=8&cursor="+cursor, viewer, "").into(t, &page)
		for _, d := range page.DayDBs {
			names = append(names, d.DBName)
		}
		if page.NextCursor == nil {
			if pages != 2 {
				t.Errorf("24 days made %d pages of 8", pages+1)
			}
			break
		}
		cursor = *page.NextCursor
	}
	seen := make(map[string]bool)
	for _, name := range names {
		seen[name] = true
	}
	if len(names) != 24 || len(seen) != 24 {
		t.Errorf("%d names, %d of them different", len(names), len(seen))
	}
	var one struct {
		DayDBs []guard.Explanation `json:"dayDbs"`
	}
	s.do("GET", "/admin/day-dbs?businessDay=20261105&state=PREWARMED,ACTIVE", viewer, "").into(t, &one)
	if len(one.DayDBs) != 1 || one.DayDBs[0].BusinessDay.String() != "20261105" {
		t.Errorf("one day is %+v", one)
	}
	if none := s.do("GET", "/admin/day-dbs?state=DROPPED", viewer, ""); !strings.Contains(string(none.body), `"dayDbs":[]`) {
		t.Errorf("none is %s", none.body)
	}
}

func TestFlagsOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, c := range []struct{ method, body, want string }{
		{"GET", "", `{"companyId":"acme","rollingDb":false,"rollingDbDrop":false,"deviceRouted":false}`},
		{"PUT", `{"rollingDb":true}`, `{"companyId":"acme","rollingDb":true,"rollingDbDrop":false,"deviceRouted":false}`},
		{"PUT", `{"rollingDbDrop":true}`, `{"companyId":"acme","rollingDb":true,"rollingDbDrop":true,"deviceRouted":false}`},
		{"PUT", `{"rollingDb":true}`, `{"companyId":"acme","rollingDb":true,"rollingDbDrop":true,"deviceRouted":false}`},
		{"PUT", `{"rollingDb":false}`, `{"companyId":"acme","rollingDb":false,"rollingDbDrop":false,"deviceRouted":false}`},
		{"PUT", `{"rollingDb":true}`, `{"companyId":"acme","rollingDb":true,"rollingDbDrop":false,"deviceRouted":false}`},
		{"GET", "", `{"companyId":"acme","rollingDb":true,"rollingDbDrop":false,"deviceRouted":false}`},
	} {
		got := s.do(c.method, "/admin/flags/acme", destroyer, c.body)
		if got.status != http.StatusOK || strings.TrimSpace(string(got.body)) != c.want {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.body, got.status, got.body, c.want)
		}
	}
}

func TestRestaurantsOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, c := range []struct{ body, want string }{
		{``, `"timezone":"America/Santiago","legacyDb":"tables-` + s.env + `","active":true,"coreWarmedAt":null}`},
		{`{"timezone":"Pacific/Easter"}`, `"timezone":"Pacific/Easter","legacyDb":"tables-` + s.env + `","active":true,"coreWarmedAt":null}`},
		{`{"active":false,"legacyDb":"tables-old+1"}`, `"timezone":"Pacific/Easter","legacyDb":"tables-old+1","active":false,"coreWarmedAt":null}`},
	} {
		got := s.do("PUT", "/admin/restaurants/acme/island", operator, c.body)
		if got.status != http.StatusOK || strings.TrimSpace(string(got.body)) != `{"companyId":"acme","restaurantId":"island",`+c.want {
			t.Errorf("%s: %d %s", c.body, got.status, got.body)
		}
	}
	var list struct {
		Restaurants []struct{ RestaurantID string }
	}
	s.do("GET", "/admin/restaurants?companyId=acme", viewer, "").into(t, &list)
	if len(list.Restaurants) != 2 || list.Restaurants[0].RestaurantID != "island" {
		t.Errorf("restaurants are %+v", list)
	}
	if none := s.do("GET", "/admin/restaurants?companyId=other", viewer, ""); !strings.Contains(string(none.body), `"restaurants":[]`) {
		t.Errorf("none is %s", none.body)
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if alive := s.do("GET", "/healthz", "", ""); alive.status != http.StatusOK {
		t.Errorf("healthz: %d %s", alive.status, alive.body)
	}
	type readiness struct {
		Ready  bool
		Checks []struct{ Name, Status, Detail, Advice string }
	}
	var ready readiness
	if got := s.do("GET", "/readyz", "", ""); got.status != http.StatusOK {
		t.Errorf("readyz: %d %s", got.status, got.body)
	} else {
		got.into(t, &ready)
	}
	if !ready.Ready || len(ready.Checks) != 3 {
		t.Errorf("readyz: %+v", ready)
	}
	if _, err := s.pool.Exec(t.Context(), `delete from rollingd_migrations where version_id = (select max(version_id) from rollingd_migrations)`); err != nil {
		t.Fatal(err)
	}
	got := s.do("GET", "/readyz", "", "")
	got.into(t, &ready)
	if got.status != http.StatusServiceUnavailable || ready.Ready || !strings.Contains(string(got.body), "rollingd migrate") {
		t.Errorf("readyz with a pending migration: %d %s", got.status, got.body)
	}
	s.do("GET", "/wp-login.php", "", "")
	s.do("GET", "/admin/wp-login.php", viewer, "")
	metrics := s.do("GET", "/metrics", "", "")
	for _, want := range []string{
		`rollingd_api_requests_total{method="GET",route="/healthz",status="200"} 1`,
		`rollingd_api_requests_total{method="GET",route="/readyz",status="503"} 1`,
		`rollingd_api_requests_total{method="GET",route="none",status="404"} 2`,
	} {
		if !strings.Contains(string(metrics.body), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if _, err := s.couch.Create(t.Context(), s.env+"_acme_north_daily_20200101"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `insert into restaurants (company_id, restaurant_id, timezone, legacy_db) values ('acme', 'nowhere', 'America/Nowhere', 'x')`); err != nil {
		t.Fatal(err)
	}
	s.do("POST", "/admin/crons/slow/pause", operator, `{"reason":"audit"}`)
	var report struct {
		Status string
		Checks []struct{ Name, Status, Detail, Advice string }
	}
	got := s.do("GET", "/admin/doctor", viewer, "")
	got.into(t, &report)
	found := make(map[string]string)
	for _, c := range report.Checks {
		found[c.Name] = c.Status
		if c.Detail == "" || c.Status != "ok" && c.Advice == "" {
			t.Errorf("check says too little: %+v", c)
		}
	}
	for name, want := range map[string]string{
		"postgres":        "ok",
		"couchdb":         "ok",
		"couchdb version": "ok",
		"ghost databases": "warn",
		"time zones":      "fail",
		"cron slow (UTC)": "warn",
		"cron rolling-db-rotate (America/Santiago)": "ok",
	} {
		if found[name] != want {
			t.Errorf("%s is %q, want %q", name, found[name], want)
		}
	}
	if report.Status != "fail" {
		t.Errorf("the whole is %s: %s", report.Status, got.body)
	}
}

// TestProofThatBreaksOff: the client must not take a part of the list for the whole.
func TestProofThatBreaksOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, err := s.pool.Exec(t.Context(), `
		update day_databases set proof_sha256 = '\x00', proof_documents = 1, proof_at = now(), proof_state = '{}'`)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/admin/day-dbs/"+s.day+"/proof", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+viewer)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a list ended with %v", err)
	}
}

// TestProbes: who only asks whether the process lives needs no token and no body.
func TestProbes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		for _, method := range []string{"GET", "HEAD"} {
			got := s.do(method, path, "", "")
			if got.status != http.StatusOK || (len(got.body) == 0) != (method == "HEAD") {
				t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			}
		}
	}
}
