package rotation_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/run"
)

func (w *world) wantLeaves(id string, dbs ...string) {
	w.Helper()
	want := w.leaves(w.legacy, id)
	if len(want) == 0 {
		w.Fatalf("%s is not in the legacy database", id)
	}
	for _, db := range dbs {
		if got := w.leaves(db, id); !slices.Equal(got, want) {
			w.Errorf("%s in %s: leaves %v, want %v", id, db, got, want)
		}
	}
}

func (w *world) wantAbsent(id string, dbs ...string) {
	w.Helper()
	for _, db := range dbs {
		if got := w.leaves(db, id); len(got) > 0 {
			w.Errorf("%s in %s: leaves %v, want none", id, db, got)
		}
	}
}

// The catalogue is copied under its revisions, whatever its ids and contents,
// and brought up to date by each later run.
func TestWarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	core := w.core(r1)
	deep := strings.Repeat(`{"a":`, 12000) + "1" + strings.Repeat("}", 12000)
	ids := []string{"plain", "a/b", "a%2Fb", "é😀", " lead", "nul\x00", "<&>", "plus+", strings.Repeat("x", 5000)}
	for _, id := range ids {
		w.put(w.legacy, id, product("r1"))
	}
	for range 3 {
		w.put(w.legacy, "edited", product("r1"))
	}
	raw := `{"_id":"exact","_rev":"1-e","companyId":"acme","restaurantId":"r1","type":"menu",` +
		`"big":9007199254740993,"nul":"a\u0000b","z":1,"a":2,"deep":` + deep + `}`
	if refusals, err := w.couch.Insert(t.Context(), w.legacy, [][]byte{[]byte(raw)}); err != nil || len(refusals) > 0 {
		t.Fatal(err, refusals)
	}
	w.insert(w.legacy,
		map[string]any{"_id": "forked", "_rev": "1-a", "type": "table", "companyId": "acme", "restaurantId": "r1"},
		map[string]any{"_id": "forked", "_rev": "1-b", "type": "table", "companyId": "acme", "restaurantId": "r1"},
		map[string]any{"_id": "forked", "_rev": "2-c", "type": "table", "companyId": "acme", "restaurantId": "r1", "_deleted": true},
		map[string]any{"_id": "untyped", "_rev": "1-a", "companyId": "acme", "restaurantId": "r1"},
		map[string]any{"_id": "shared", "_rev": "1-a", "companyId": "acme", "type": "company"},
		map[string]any{"_id": "theirs", "_rev": "1-a", "companyId": "other", "restaurantId": "r1", "type": "menu"},
		map[string]any{"_id": "nobodys", "_rev": "1-a", "type": "menu"},
		map[string]any{"_id": "day_manifest", "_rev": "1-a", "companyId": "acme", "restaurantId": "r1", "type": "menu"},
	)
	w.put(w.legacy, "_design/views", map[string]any{"companyId": "acme", "restaurantId": "r1"})
	photo := product("r1")
	photo["_attachments"] = map[string]any{
		"photo.jpg": map[string]any{"content_type": "image/jpeg", "data": base64.StdEncoding.EncodeToString([]byte("jpeg"))},
	}
	w.put(w.legacy, "photo", photo)

	report := w.rotated(run.Scope{})
	for _, id := range append(ids, "edited", "exact", "forked", "untyped", "shared", "photo") {
		w.wantLeaves(id, core)
	}
	w.wantLeaves("shared", w.core(r2))
	w.wantAbsent("theirs", core)
	w.wantAbsent("nobodys", core)
	w.wantAbsent("_design/views", core)
	if n := report.Counters()["warmed_documents"]; n != int64(len(ids)+7) {
		t.Errorf("%d documents counted", n)
	}
	if w.manifest(r1).CurrentBusinessDay == nil {
		t.Error("the legacy database's day_manifest replaced core's")
	}
	for _, db := range []string{w.legacy, core} {
		got, err := w.couch.Doc(t.Context(), db, "exact", "")
		if err != nil || string(got) != raw {
			t.Errorf("exact in %s: %.200s, %v", db, got, err)
		}
	}
	history, err := w.couch.Revisions(t.Context(), core, []couch.Ref{{ID: "edited"}}, true)
	if err != nil || len(history) != 1 || gjson.GetBytes(history[0].Body, "_revisions.start").Int() != 3 ||
		len(gjson.GetBytes(history[0].Body, "_revisions.ids").Array()) != 3 {
		t.Errorf("history %s, %v", history[0].Body, err)
	}
	body, err := w.couch.Attachment(t.Context(), core, "photo", w.rev(core, "photo"), "photo.jpg")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if content, err := io.ReadAll(body); err != nil || string(content) != "jpeg" {
		t.Errorf("attachment %q, %v", content, err)
	}

	w.put(w.legacy, "plain", product("r1"))
	w.put(w.legacy, "new", product("r1"))
	w.remove(w.legacy, "edited")
	w.put(w.legacy, "gone", product("r1"))
	w.remove(w.legacy, "gone")
	report = w.rotated(run.Scope{})
	w.wantLeaves("plain", core)
	w.wantLeaves("new", core)
	w.wantLeaves("edited", core)
	w.wantAbsent("gone", core)
	w.wantAbsent("edited", w.core(r2))
	if n := report.Counters()["warmed_documents"]; n != 3 {
		t.Errorf("%d documents counted, want 3", n)
	}
}

// A pass that died has copied documents and saved nothing; what was deleted in
// the legacy database meanwhile is deleted in core.
func TestDeletionBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	ids := make([]string, 600)
	docs := make([]map[string]any, len(ids))
	for i := range ids {
		ids[i] = fmt.Sprintf("p%03d", i)
		docs[i] = product("r1")
		docs[i]["_id"], docs[i]["_rev"] = ids[i], "1-a"
	}
	w.insert(w.legacy, docs...)
	inserts := 0
	w.runBroken(&breaker{fault: killed, match: func(request string) bool {
		if request == "POST /"+w.core(r1)+"/_bulk_docs" {
			inserts++
		}
		return inserts == 2
	}}, run.Scope{})
	copied := slices.IndexFunc(ids, func(id string) bool { return w.rev(w.core(r1), id) != "" })
	if copied < 0 {
		t.Fatal("nothing was copied before the crash")
	}
	w.remove(w.legacy, ids[copied])
	w.rotated(run.Scope{})
	for _, id := range []string{ids[0], ids[copied], ids[len(ids)-1]} {
		w.wantLeaves(id, w.core(r1))
	}
}

// A document that core will not take is named by every run and keeps the company
// on its legacy database. All others arrive.
func TestRefusedDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.rotated(run.Scope{RestaurantID: "r1"})
	const refuse = `function (newDoc) { if (newDoc._id === 'bad') { throw ({ forbidden: 'too spicy' }); } }`
	if err := w.couch.PutDesign(t.Context(), w.core(r1), "_design/refuse", refuse); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "bad", "c"} {
		w.put(w.legacy, id, product("r1"))
	}
	for range 2 {
		report := w.rotate(run.Scope{})
		w.wantFailure(report, r1, "warm", `document "bad": forbidden too spicy`)
		w.wantLeaves("a", w.core(r1))
		w.wantLeaves("c", w.core(r1))
		w.checkRotated(w.today(), r1, r2)
		if w.flags("acme").DeviceRouted {
			t.Fatal("the company was routed without a document of its catalogue")
		}
	}
	if err := w.couch.DropDesign(t.Context(), w.core(r1), "_design/refuse"); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	w.wantLeaves("bad", w.core(r1))
	if !w.flags("acme").DeviceRouted {
		t.Error("the company is not routed")
	}
}

// A legacy database that was deleted and created again under its name is
// another one: it is read from the start.
func TestLegacyIncarnation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.put(w.legacy, "old", product("r1"))
	w.rotated(run.Scope{RestaurantID: "r1"})
	if err := w.couch.Delete(t.Context(), w.legacy); err != nil {
		t.Fatal(err)
	}
	report := w.rotate(run.Scope{RestaurantID: "r1"})
	w.wantFailure(report, r1, "warm", "is gone")

	w.createLegacy()
	w.put(w.legacy, "new", product("r1"))
	// Two databases that are created within a second look the same to CouchDB.
	if _, err := w.pool.Exec(t.Context(), `update legacy_copies set incarnation = 'another'`); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	w.wantLeaves("new", w.core(r1))
	if w.rev(w.core(r1), "old") == "" {
		t.Error("core lost what only it has")
	}
}

func TestAbsentLegacyIsAnEmptyCatalogue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	if err := w.couch.Delete(t.Context(), w.legacy); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	if !w.flags("acme").DeviceRouted {
		t.Error("a restaurant that never had a legacy database was not routed")
	}
	w.createLegacy()
	w.put(w.legacy, "late", product("r1"))
	w.put(w.legacy, "order", order("r1", "closed"))
	w.rotated(run.Scope{})
	w.wantLeaves("late", w.core(r1))
	w.wantLeaves("order", w.dayDB(r1, w.today()))
}

// Restaurants that joined at different times share one pass from then on.
func TestOnePassForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.put(w.legacy, "p1", product("r1"))
	w.rotated(run.Scope{RestaurantID: "r1"})
	w.put(w.legacy, "p2", product("r2"))
	w.rotated(run.Scope{})
	w.put(w.legacy, "p1", product("r1"))
	w.put(w.legacy, "p2", product("r2"))
	b := &breaker{}
	w.clean(w.runBroken(b, run.Scope{}))
	w.wantLeaves("p1", w.core(r1))
	w.wantLeaves("p2", w.core(r2))
	feeds := 0
	for _, request := range b.requests {
		if request == "GET /"+w.legacy+"/_changes" {
			feeds++
		}
	}
	if feeds != 1 {
		t.Errorf("the feed was read %d times", feeds)
	}
}

// At the cutover goes along what is open, and what is final and in conflict. All
// else is left to the archive.
func TestCutoverCarries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	today := w.dayDB(r1, w.today())
	w.put(w.legacy, "open", order("r1", "open"))
	w.put(w.legacy, "no-status", map[string]any{"type": "payment", "companyId": "acme", "restaurantId": "r1"})
	w.put(w.legacy, "final", order("r1", "closed"))
	w.put(w.legacy, "stock", map[string]any{"type": "inventory_movement", "companyId": "acme", "restaurantId": "r1"})
	// Final, with a conflict that no archive holds.
	forked := order("r1", "closed")
	forked["_id"], forked["_rev"] = "forked", "2-b"
	w.insert(w.legacy, forked)
	forked["_rev"] = "1-a"
	w.insert(w.legacy, forked)
	// Final, with a conflict that was settled.
	settled := order("r1", "closed")
	settled["_id"], settled["_rev"] = "settled", "1-b"
	w.insert(w.legacy, settled)
	settled["_rev"], settled["_deleted"] = "2-a", true
	w.insert(w.legacy, settled)
	w.put(w.legacy, "void", order("r1", "closed"))
	w.archived(nil)
	w.remove(w.legacy, "void")
	w.put(w.legacy, "mistake", order("r1", "open"))
	w.remove(w.legacy, "mistake")

	report := w.rotated(run.Scope{})
	for _, id := range []string{"open", "no-status", "forked"} {
		w.wantLeaves(id, today)
	}
	for _, id := range []string{"final", "stock", "settled", "void", "mistake"} {
		w.wantAbsent(id, today)
	}
	if n := report.Counters()["carried_documents"]; n != 3 {
		t.Errorf("%d documents carried, want 3", n)
	}
	if !w.flags("acme").DeviceRouted {
		t.Error("the company is not routed")
	}
}

// What a till brings late goes to the day that has the document, and otherwise
// to the current one, final or not.
func TestLateDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	cutover := w.today().Add(-2)
	w.put(w.legacy, "open", order("r1", "open"))
	w.put(w.legacy, "deleted", order("r1", "open"))
	w.rotated(run.Scope{BusinessDay: cutover})
	w.rotated(run.Scope{BusinessDay: cutover.Add(1)})

	w.put(w.legacy, "open", order("r1", "closed"))
	w.remove(w.legacy, "deleted")
	w.put(w.legacy, "late-closed", order("r1", "closed"))
	w.put(w.legacy, "late-open", order("r1", "open"))
	w.put(w.legacy, "late-product", product("r1"))
	w.rotated(run.Scope{})
	w.wantLeaves("open", w.dayDB(r1, cutover))
	w.wantLeaves("deleted", w.dayDB(r1, cutover))
	w.wantLeaves("late-closed", w.dayDB(r1, w.today()))
	w.wantLeaves("late-open", w.dayDB(r1, w.today()))
	w.wantLeaves("late-product", w.core(r1))
	for _, id := range []string{"open", "deleted"} {
		w.wantAbsent(id, w.dayDB(r1, w.today()), w.dayDB(r1, cutover.Add(1)))
	}
}

// Tills write on while the cutover is made; what they wrote before they
// switched is there when the run ends.
func TestWritesDuringTheCutover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.put(w.legacy, "before", order("r1", "open"))
	n := 0
	c := hooked{w.couch, func(call, db string) {
		// Just behind every sequence that was read so far, up to the last pass.
		if call == "Insert" && db == w.dayDB(r1, w.today()) {
			n++
			w.put(w.legacy, fmt.Sprintf("during-%d", n), order("r1", "open"))
		}
	}}
	report := &run.Report{}
	if err := w.rotator(c).Run(t.Context(), run.Run{Actor: "test", Report: report}); err != nil {
		t.Fatal(err)
	}
	w.clean(report)
	if !w.flags("acme").DeviceRouted {
		t.Fatal("the company is not routed")
	}
	w.wantLeaves("before", w.dayDB(r1, w.today()))
	w.wantLeaves("during-1", w.dayDB(r1, w.today()))
	w.rotated(run.Scope{})
	w.wantLeaves(fmt.Sprintf("during-%d", n), w.dayDB(r1, w.today()))
}

// A company is routed as a whole, also across time zones, and only once each of
// its active restaurants is ready.
func TestCompanyIsRoutedAsAWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.register(r2, "Pacific/Easter")
	w.put(w.legacy, "o1", order("r1", "open"))
	for _, zone := range []string{"America/Santiago", "Pacific/Easter"} {
		if w.flags("acme").DeviceRouted {
			t.Fatalf("routed before %s", zone)
		}
		report := &run.Report{}
		r := run.Run{Actor: "test", Zone: zone, Report: report}
		if err := w.rotator(w.couch).Run(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		w.clean(report)
	}
	if !w.flags("acme").DeviceRouted {
		t.Error("not routed once both restaurants were ready")
	}
	w.wantLeaves("o1", w.dayDB(r1, w.today()))
}
