package archive_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/run"
)

// legacyWorld is a world with a legacy database that three companies share.
func legacyWorld(t *testing.T) (w *world, db string) {
	w = newWorld(t)
	db = "tables-" + w.env
	w.do(http.MethodPut, "/"+db, "")
	w.register(acme, "America/Santiago", db)
	w.register(daydb.Restaurant{CompanyID: "acme", RestaurantID: "pascua"}, "Pacific/Easter", db)
	w.register(daydb.Restaurant{CompanyID: "routed", RestaurantID: "centro"}, "America/Santiago", db)
	w.route("routed", true)
	return w, db
}

// route routes a company's devices as rotation does, which has left nothing of
// what is there to the archive.
func (w *world) route(company string, routed bool) {
	w.t.Helper()
	w.exec(`
		insert into legacy_copies (company_id, restaurant_id, kind, legacy_db, incarnation, since, completed_at, fencing_token)
		select company_id, restaurant_id, 'daily', legacy_db, 'x', '1-x', now(), 1
		from restaurants
		where company_id = $1
		on conflict do nothing`, company)
	err := pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
		if _, err := flags.Set(w.t.Context(), tx, company, routed, false, "test"); err != nil || !routed {
			return err
		}
		_, err := flags.Route(w.t.Context(), tx, company, "test")
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// legacyDoc is a finished order of a restaurant, with more members.
func legacyDoc(id, company, restaurant, members string) string {
	return fmt.Sprintf(`{"_id":%q,"companyId":%q,"restaurantId":%q,"type":"order","status":"closed"%s}`, id, company, restaurant, members)
}

func (w *world) legacyRun() *run.Report {
	w.t.Helper()
	report := w.run(run.Scope{})
	if failures := report.Failures(); len(failures) > 0 {
		w.t.Fatalf("failures: %v", failures)
	}
	return report
}

// TestLegacyDays finds the business day of legacy documents.
func TestLegacyDays(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	want := map[string]string{}
	for i, c := range []struct{ restaurant, members, day string }{
		{"centro", `,"businessDay":"20261015","createdAt":"2026-11-20T12:00:00Z"`, "2026-10-15"},
		{"centro", `,"businessDay":"20260231","createdAt":"2026-11-20T12:00:00Z"`, "2026-11-20"},
		{"centro", `,"createdAt":"2026-11-20T07:59:59.999Z"`, "2026-11-19"}, // 04:59 in Santiago
		{"centro", `,"createdAt":"2026-11-20T08:00:00Z"`, "2026-11-20"},
		{"pascua", `,"createdAt":"2026-11-20T09:59:00Z"`, "2026-11-19"}, // 04:59 on Easter Island
		{"pascua", `,"createdAt":"2026-11-20T05:00:00-05:00"`, "2026-11-20"},
		{"centro", `,"createdAt":1795161599999`, "2026-11-19"}, // 07:59:59.999Z on the 20th
		{"centro", `,"createdAt":1795161600000`, "2026-11-20"},
		{"centro", `,"createdAt":"2026-09-06T03:30:00Z"`, "2026-09-05"}, // around the midnight that is not
		{"centro", `,"createdAt":"1969-12-31T23:00:00Z"`, "1969-12-31"},
		{"centro", `,"createdAt":"yesterday"`, ""},
		{"centro", `,"createdAt":1e300`, ""},
		{"centro", `,"createdAt":"0000-01-01T00:00:00Z"`, ""},
		{"centro", `,"createdAt":{"a":1},"businessDay":20261015.5`, ""},
		{"centro", ``, ""},
	} {
		id := fmt.Sprintf("doc%02d", i)
		w.put(db, legacyDoc(id, "acme", c.restaurant, c.members))
		if want[id] = c.day; c.day == "" {
			want[id] = w.scalar(`select to_char((now() at time zone 'America/Santiago') - interval '5 hours', 'YYYY-MM-DD')`)
		}
	}
	w.legacyRun()
	for id, day := range want {
		w.expect(day, `select business_day::text from archived_docs where doc_id = $1`, []byte(id))
	}
	w.expect("archived_docs_other", `select tableoid::regclass::text from archived_docs where doc_id = 'doc09'`)
}

// TestLegacyTenants archives whom it should, in one pass.
func TestLegacyTenants(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.put(db,
		legacyDoc("mine", "acme", "centro", ""),
		legacyDoc("theirs", "routed", "centro", ""),
		legacyDoc("nobody's", "acme", "unregistered", ""),
		`{"_id":"open","companyId":"acme","restaurantId":"centro","type":"order","status":"open"}`,
		`{"_id":"menu","companyId":"acme","restaurantId":"centro","type":"menu"}`,
		`{"_id":"untyped","companyId":"acme","restaurantId":"centro"}`,
		`{"_id":"_design/x","language":"query"}`)
	seen := &recorder{}
	w.connect(seen)
	w.legacyRun()
	w.expect("mine acme/centro", `select string_agg(convert_from(doc_id, 'UTF8') || ' ' || company_id || '/' || restaurant_id, ', ') from archived_docs`)
	w.expect("0", `select count(*) from archive_blockers`)
	passes := 0
	for _, r := range seen.requests {
		if r == "GET /"+db+"/_changes" {
			passes++
		}
	}
	if passes != 3 { // What is pending, the pass, what is pending.
		t.Errorf("the feed was asked %d times: %v", passes, seen.requests)
	}
	if c := w.legacyRun().Counters(); c["quiet"] != 1 {
		t.Errorf("without news: %v", c)
	}

	// Whoever joins has documents that were passed over.
	w.register(daydb.Restaurant{CompanyID: "acme", RestaurantID: "unregistered"}, "America/Santiago", db)
	w.legacyRun()
	w.expect("mine nobody's", `select string_agg(convert_from(doc_id, 'UTF8'), ' ' order by doc_id) from archived_docs`)
	w.route("routed", false)
	w.legacyRun()
	w.expect("mine nobody's theirs", `select string_agg(convert_from(doc_id, 'UTF8'), ' ' order by doc_id) from archived_docs`)

	// Whoever leaves takes nothing along, and joins again as at first.
	w.route("routed", true)
	w.put(db, legacyDoc("late", "routed", "centro", ""))
	w.legacyRun()
	w.expect("3", `select count(*) from archived_docs`)
	w.route("routed", false)
	w.legacyRun()
	w.expect("4", `select count(*) from archived_docs`)
}

// TestLegacyRowsFollowTheirDocuments moves, keeps and marks rows.
func TestLegacyRowsFollowTheirDocuments(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.put(db,
		legacyDoc("moves", "acme", "centro", `,"businessDay":"20261015"`),
		legacyDoc("stays", "acme", "centro", ``),
		legacyDoc("goes", "acme", "centro", `,"businessDay":"20261015"`),
		`{"_id":"other","type":"menu"}`)
	w.legacyRun()
	w.exec(`update archived_docs set business_day = '2026-10-20' where doc_id = 'stays'`)
	w.put(db,
		legacyDoc("moves", "acme", "centro", `,"businessDay":"20261101","_rev":"`+w.rev(db, "moves")+`"`),
		legacyDoc("stays", "acme", "centro", `,"n":2,"_rev":"`+w.rev(db, "stays")+`"`))
	for _, id := range []string{"goes", "other"} {
		w.do(http.MethodDelete, "/"+db+"/"+id+"?rev="+w.rev(db, id), "")
	}
	w.legacyRun()
	w.expect("goes 2026-10-15 true acme, moves 2026-11-01 false acme, stays 2026-10-20 false acme", `
		select string_agg(concat_ws(' ', convert_from(doc_id, 'UTF8'), business_day, deleted::text, company_id), ', ' order by doc_id)
		from archived_docs
		where body is not null`)
	w.expect("3", `select count(*) from archived_docs`)
	w.expect("true", `select body like '%"n":2}' from archived_docs where doc_id = 'stays'`)
}

// TestLegacyIncarnation reads a legacy database that was made anew from the start.
func TestLegacyIncarnation(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.put(db, legacyDoc("a", "acme", "centro", `,"n":1`))
	w.legacyRun()
	w.exec(`update archive_checkpoints set incarnation = '1'`)
	w.put(db, legacyDoc("b", "acme", "centro", ``))
	w.legacyRun()
	w.expect("a a b", `select string_agg(convert_from(doc_id, 'UTF8'), ' ' order by doc_id) from archived_docs`)

	// Gone is a failure; never there is none.
	w.do(http.MethodDelete, "/"+db, "")
	if report := w.run(run.Scope{}); len(report.Failures()) != 1 {
		t.Errorf("a lost legacy database: %v", report.Failures())
	}
	w.exec(`update restaurants set legacy_db = 'tables-never'`)
	w.legacyRun()
}
