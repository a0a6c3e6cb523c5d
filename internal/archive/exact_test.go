package archive_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestBytesSurvive takes what Postgres, Go or JSON libraries are known to
// change through archive, proof and restore.
func TestBytesSurvive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	for i, members := range []string{
		`"v":[1.0,9007199254740993,1e308,1e22,-0.0,1.10]`,
		`"z":1,"a":2,"m":{"z":1,"a":2}`,
		`"v":"a\u0000b","\u0000":1`,
		`"v":` + strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000),
		`"v":"\uffff\u2028<>&\/\u001f\"\\"`,
		`"v":"{\"_attachments\":{\"x\":{\"digest\":\"no\"}}}"`,
		`"v":{"_attachments":{"x":{"digest":"no","length":7}},"type":"menu","status":"open","_deleted":true}`,
		`"v":"` + strings.Repeat("m", 5<<20) + `"`,
		`"v":"}},\r\n{\"seq\":\"1-x\",\"id\":\"y\"}\n],\n\"last_seq\":\"1\""`,
	} {
		w.put(d.Name, fmt.Sprintf(`{"_id":"doc%d","type":"order","status":"closed",%s}`, i, members))
	}
	for _, id := range []string{"a/b", "a%2Fb", "é😀", " lead", "a\nb", "A", "a", "i\x00d", "a+b?c#d&e", `"q"\`, "e\u0301", "\u00e9", strings.Repeat("long", 25000)} {
		w.put(d.Name, fmt.Sprintf(`{"_id":%s,"type":"payment","status":"approved"}`, quoted(id)))
	}
	w.put(d.Name,
		`{"_id":"movement","type":"inventory_movement","status":"any\u0000thing"}`,
		`{"_id":"gone","_deleted":true,"type":"menu\u0000","status":"v\u0000"}`)

	pos := w.catchUp(d)
	w.checkEqual(d, pos)
	if found := w.blockers(pos); len(found) > 0 {
		t.Errorf("blocked by %v", found)
	}
	proof := must(w.Prove(t.Context(), d, pos))(t)

	restored := must(w.Restore(t.Context(), d, "a test", "tester"))(t)
	if want := w.env + "_acme_centro_restored_20261130_1"; restored.DBName != want {
		t.Errorf("restored into %s, not %s", restored.DBName, want)
	}
	before, after := w.changes(d.Name), w.changes(restored.DBName)
	if len(before) != len(after) || restored.Documents != int64(len(before)) {
		t.Errorf("%d documents, %d restored, reported as %d", len(before), len(after), restored.Documents)
	}
	original := make(map[string]feedRow)
	for _, row := range before {
		original[row.id] = row
	}
	for _, row := range after {
		if row != original[row.id] {
			t.Errorf("%.100q was restored as %.300s, not as %.300s", row.id, row.doc, original[row.id].doc)
		}
	}

	// The database may be gone by the time somebody wants to see the list.
	w.do(http.MethodDelete, "/"+d.Name, "")
	var list bytes.Buffer
	for range 2 {
		list.Reset()
		if err := w.WriteProofList(t.Context(), d, &list); err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(list.Bytes()); sum != proof.SHA256 {
			t.Errorf("sha256 of the list is %x, the proof says %x", sum, proof.SHA256)
		}
	}
	if lines := bytes.Count(list.Bytes(), []byte("\n")); int64(lines) != proof.Documents || proof.Documents != int64(len(before)) {
		t.Errorf("%d lines for %d documents, proven %d", lines, len(before), proof.Documents)
	}
	sum := sha256.Sum256([]byte(original["a/b"].doc))
	if want := hex.EncodeToString(sum[:]) + "\tdocument\t"; !strings.Contains(list.String(), want) {
		t.Errorf("the list has no line %s", want)
	}
}

// TestLeaves takes the ways in which revisions branch through the archive.
func TestLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	const closed = `"type":"order","status":"closed"`
	w.replicate(d.Name,
		`{"_id":"o2","_rev":"1-aaa",`+closed+`,"n":"live"}`,
		`{"_id":"o2","_rev":"3-ccc","_deleted":true,`+closed+`,"n":"deleted, but higher"}`,
		`{"_id":"o3","_rev":"2-xxx","_deleted":true,"n":"x"}`,
		`{"_id":"o3","_rev":"2-yyy","_deleted":true,"n":"y"}`,
		`{"_id":"o5","_rev":"1-a",`+closed+`}`)
	w.do(http.MethodDelete, "/"+d.Name+"/o5?rev=1-a", "")

	pos := w.catchUp(d)
	w.checkEqual(d, pos)
	w.expect("3-ccc 2-xxx", `select string_agg(rev, ' ' order by doc_id) from archived_leaves`)
	w.expect("true", `select bool_and(body_sha256 = sha256(convert_to(body, 'UTF8'))) from archived_leaves`)

	// A restored database has the same leaves.
	restored := must(w.Restore(t.Context(), d, "a test", "tester"))(t)
	for _, id := range []string{"o2", "o3", "o5"} {
		path := "/" + id + "?open_revs=all"
		if was, is := w.do(http.MethodGet, "/"+d.Name+path, ""), w.do(http.MethodGet, "/"+restored.DBName+path, ""); !bytes.Equal(was, is) {
			t.Errorf("leaves of %s were restored as %s, not as %s", id, is, was)
		}
	}

	// A leaf that is none any more is taken out.
	w.replicate(d.Name, `{"_id":"o2","_rev":"4-ddd","_revisions":{"start":4,"ids":["ddd","ccc"]},`+closed+`,"n":"revived"}`,
		`{"_id":"o2","_rev":"2-bbb","_revisions":{"start":2,"ids":["bbb","aaa"]},"_deleted":true}`)
	w.checkEqual(d, w.catchUp(d))
	w.expect("2-bbb 2-xxx", `select string_agg(rev, ' ' order by doc_id) from archived_leaves`)

	// A leaf that is lost from the archive turns both comparisons red.
	pos = w.catchUp(d)
	w.exec(`delete from archived_leaves where rev = '2-xxx'`)
	if rec := w.reconcile(d, pos); rec.Green() || rec.Missing.Count != 1 || rec.Missing.IDs[0] != "o3" {
		t.Errorf("a lost leaf gives %+v", rec)
	}
	if _, err := w.Prove(t.Context(), d, pos); err == nil {
		t.Error("proven without a leaf")
	}
}

// TestDeletionKeepsTheLastBody deletes and revives an archived document.
func TestDeletionKeepsTheLastBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed","total":1.0}`)
	w.catchUp(d)
	first := w.rev(d.Name, "a")
	w.do(http.MethodDelete, "/"+d.Name+"/a?rev="+first, "")
	w.checkEqual(d, w.catchUp(d))
	w.expect(first, `select body_rev from archived_docs where deleted and doc_type = 'order' and status = 'closed'
		and body like '%"total":1.0}' and tombstone like '%"_deleted":true}'`)

	w.put(d.Name, `{"_id":"a","type":"payment","status":"approved"}`)
	w.checkEqual(d, w.catchUp(d))
	w.expect("payment", `select doc_type from archived_docs where not deleted and tombstone is null`)

	// One that was never finished has no body to keep.
	w.put(d.Name, `{"_id":"b","type":"order","status":"open"}`)
	w.catchUp(d)
	w.do(http.MethodDelete, "/"+d.Name+"/b?rev="+w.rev(d.Name, "b"), "")
	pos := w.catchUp(d)
	w.checkEqual(d, pos)
	if found := w.blockers(pos); len(found) > 0 {
		t.Errorf("a deleted document blocks: %v", found)
	}
}

// TestBlockersHeal follows what lock 1 reads.
func TestBlockersHeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name,
		`{"_id":"open","type":"order","status":"open"}`,
		`{"_id":"no status","type":"payment"}`,
		`{"_id":"core","type":"menu","status":"closed"}`,
		`{"_id":"none","status":"closed"}`,
		`{"_id":"number","type":7,"status":"closed"}`,
		`{"_id":"nul\u0000","type":"x\u0000y","status":"\u0000"}`,
		`{"_id":"_design/x","language":"query"}`)
	w.replicate(d.Name,
		`{"_id":"conflict","_rev":"1-a","type":"order","status":"closed","n":1}`,
		`{"_id":"conflict","_rev":"1-b","type":"order","status":"closed","n":2}`)
	pos := w.catchUp(d)
	found := w.blockers(pos)
	for code, want := range map[string][]string{
		"non_terminal": {"open", "no status"},
		"core_type":    {"core", `nul\x00`},
		"no_type":      {"none", "number"},
		"conflict":     {"conflict"},
	} {
		for _, id := range want {
			if !strings.Contains(found[code], id) {
				t.Errorf("%s is not among the %s: %q", id, code, found[code])
			}
		}
		delete(found, code)
	}
	if len(found) > 0 {
		t.Errorf("too many blockers: %v", found)
	}
	if rec := w.reconcile(d, pos); rec.Missing.Count != 7 || rec.Documents != 7 || rec.Archived != 1 {
		t.Errorf("open documents are reconciled as %+v", rec)
	}

	for _, id := range []string{"open", "no status", "core", "none", "number", "nul\x00"} {
		w.put(d.Name, fmt.Sprintf(`{"_id":%s,"_rev":%q,"type":"payment","status":"approved"}`, quoted(id), w.rev(d.Name, id)))
	}
	w.do(http.MethodDelete, "/"+d.Name+"/conflict?rev=1-a", "")
	pos = w.catchUp(d)
	if found := w.blockers(pos); len(found) > 0 {
		t.Errorf("blockers are not healed: %v", found)
	}
	w.checkEqual(d, pos)

	// An archived document that is opened again stays archived as it was.
	was := w.rev(d.Name, "open")
	w.put(d.Name, fmt.Sprintf(`{"_id":"open","_rev":%q,"type":"order","status":"open"}`, was))
	pos = w.catchUp(d)
	if found := w.blockers(pos); found["non_terminal"] != "open" || len(found) != 1 {
		t.Errorf("an order that was opened again gives %v", found)
	}
	if rec := w.reconcile(d, pos); rec.Changed.Count != 1 || rec.Missing.Count+rec.Extra.Count != 0 {
		t.Errorf("an order that was opened again is reconciled as %+v", rec)
	}
	w.expect(was, `select rev from archived_docs where doc_id = 'open'`)
}

// TestEmptyDay archives, reconciles and proves nothing.
func TestEmptyDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"_design/x","language":"query"}`)
	pos := w.catchUp(d)
	w.checkEqual(d, pos)
	proof := must(w.Prove(t.Context(), d, pos))(t)
	if proof.SHA256 != sha256.Sum256(nil) || proof.Documents != 0 || proof.State.DocCount != 1 {
		t.Errorf("nothing is proven as %+v", proof)
	}
}
