package couch_test

import (
	"strconv"
	"strings"
	"testing"
)

func seqNumber(seq string) int {
	number, _, _ := strings.Cut(seq, "-")
	n, _ := strconv.Atoi(number)
	return n
}

func TestDocumentLifecycle(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		created := c.put(db+"/d", `{"a":1}`)
		expect(t, "create", created, 201, `"ok":true`, `"id":"d"`, `"rev":"1-`)
		rev := created.str(t, "rev")
		expect(t, "create again", c.put(db+"/d", `{"a":1}`), 409, "conflict", "Document update conflict.")
		expect(t, "wrong rev", c.put(db+"/d", `{"_rev":"1-abc"}`), 409)
		expect(t, "malformed rev", c.put(db+"/d", `{"_rev":"abc"}`), 400, "Invalid rev format")
		got := c.get(db + "/d")
		expect(t, "get", got, 200, `{"_id":"d","_rev":"`+rev+`","a":1}`)
		if etag := got.header.Get("ETag"); etag != `"`+rev+`"` {
			t.Errorf("ETag = %s", etag)
		}
		updated := c.put(db+"/d?rev="+rev, `{"a":2}`)
		expect(t, "update", updated, 201, `"rev":"2-`)
		expect(t, "old revision", c.get(db+"/d?rev="+rev), 200, `"a":1`)
		expect(t, "unknown revision", c.get(db+"/d?rev=7-abc"), 404, "missing")
		deleted := c.do("DELETE", db+"/d?rev="+updated.str(t, "rev"), "")
		expect(t, "delete", deleted, 200, `"rev":"3-`)
		expect(t, "deleted", c.get(db+"/d"), 404, `{"error":"not_found","reason":"deleted"}`)
		tombstone := deleted.str(t, "rev")
		expect(t, "tombstone", c.get(db+"/d?rev="+tombstone), 200, `{"_id":"d","_rev":"`+tombstone+`","_deleted":true}`)
		expect(t, "delete of nothing", c.do("DELETE", db+"/none", ""), 404, "missing")
		expect(t, "missing", c.get(db+"/none"), 404, `{"error":"not_found","reason":"missing"}`)
		expect(t, "continue behind the deletion", c.put(db+"/d", `{"a":3}`), 201, `"rev":"4-`)
		expect(t, "tombstone with fields", c.put(db+"/o6", `{"_deleted":true,"status":"void","total":1}`), 200)
		expect(t, "info", c.get(db), 200, `"doc_count":1`, `"doc_del_count":1`)
		expect(t, "post", c.post(db, `{"_id":"posted","n":1}`), 201, `"id":"posted"`)
		revs := c.get(db + "/d?revs=true&revs_info=true")
		expect(t, "history", revs, 200, `"_revisions":{"start":4,"ids":["`, `"_revs_info":[{"rev":"4-`, `"status":"deleted"`)
	})
}

// An edit of a document that is not there is a conflict in an empty shard and
// nowhere else: otherwise CouchDB makes the history up. A revision in a PUT is
// no proof that the document exists.
func TestEditOfNothing(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x?q=1")
		db = strings.TrimSuffix(db, "?q=1")
		expect(t, "in an empty database", c.put(db+"/new", `{"_rev":"1-abc"}`), 409)
		c.put(db+"/other", "{}")
		expect(t, "beside another document", c.put(db+"/new", `{"_rev":"1-abc"}`), 201, `"rev":"2-`)
		expect(t, "history", c.get(db+"/new?revs=true"), 200, `"_revisions":{"start":2,"ids":["`, `,"abc"]`)
		expect(t, "deletion of nothing", c.do("DELETE", db+"/none?rev=1-abc", ""), 404)
	})
}

// Two documents with the same body and history have the same revision: only
// the pair of id and revision names a version.
func TestRevisionsDependOnContentAlone(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		a, b := c.put(db+"/a", `{"v":1}`).str(t, "rev"), c.put(db+"/b", `{"v": 1}`).str(t, "rev")
		other := c.put(db+"/c", `{"v":2}`).str(t, "rev")
		if a != b || a == other {
			t.Errorf("revisions %s, %s and of another body %s", a, b, other)
		}
	})
}

func TestDocumentIDs(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		long := strings.Repeat("long", 5000)
		for path, id := range map[string]string{
			"a%2Fb": "a/b", "a%252Fb": "a%2Fb", "%C3%A9%F0%9F%98%80": "é😀", "%20lead": " lead", "q%3F%23": "q?#", "A": "A", "a": "a",
			"plus+space": "plus space",
		} {
			expect(t, "put "+id, c.put(db+"/"+path, `{}`), 201, `"id":"`+id+`"`)
			expect(t, "get "+id, c.get(db+"/"+path), 200, `{"_id":"`+id+`"`)
		}
		docs := `{"docs":[{"_id":"nul\u0000"},{"_id":"line\nfeed"},{"_id":"` + long + `"},{"_id":"` + long + `2"}]}`
		if a := c.post(db+"/_bulk_docs", docs); a.status != 201 || strings.Count(a.body, `"ok":true`) != 4 {
			t.Errorf("odd ids: %d", a.status)
		}
		expect(t, "they are listed", c.get(db+"/_all_docs?limit=100"), 200, `"nul\u0000"`, `"line\nfeed"`, `"`+long+`2"`)
		for _, bad := range []string{`"_bad"`, `""`, `1`} {
			a := c.post(db+"/_bulk_docs", `{"docs":[{"_id":"fine"},{"_id":`+bad+`}]}`)
			expect(t, "id "+bad, a, 400, "illegal_docid")
		}
		expect(t, "the whole request was refused", c.get(db+"/fine"), 404)
		expect(t, "special member", c.put(db+"/s", `{"_foo":1}`), 400, "doc_validation")
		expect(t, "nested special member", c.put(db+"/n", `{"x":{"_id":1}}`), 201)
		expect(t, "not an object", c.put(db+"/n2", `[]`), 400)
	})
}

func TestBulkDocs(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		a := c.post(db+"/_bulk_docs", `{"docs":[{"_id":"a","n":1},{"_id":"b"},{"_id":"a","n":2}]}`)
		expect(t, "the same id twice", a, 201, `{"ok":true,"id":"a","rev":"1-`, `{"ok":true,"id":"b","rev":"1-`,
			`{"id":"a","error":"conflict","reason":"Document update conflict."}`)
		expect(t, "without docs", c.post(db+"/_bulk_docs", `{}`), 400, "bad_request")
		expect(t, "wrong content type", c.do("POST", db+"/_bulk_docs", `{"docs":[]}`, "Content-Type: text/plain"), 415, "bad_content_type")
		expect(t, "wrong method", c.get(db+"/_bulk_docs"), 405, "method_not_allowed")
		expect(t, "replicated", c.post(db+"/_bulk_docs", `{"new_edits":false,"docs":[{"_id":"r","_rev":"2-b","_revisions":{"start":2,"ids":["b","a"]},"v":1}]}`), 201, "[]")
		expect(t, "again", c.post(db+"/_bulk_docs", `{"new_edits":false,"docs":[{"_id":"r","_rev":"2-b","_revisions":{"start":2,"ids":["b","a"]},"v":1}]}`), 201, "[]")
		expect(t, "it is there", c.get(db+"/r?revs=true"), 200, `"_rev":"2-b"`, `"_revisions":{"start":2,"ids":["b","a"]}`)
		diff := c.post(db+"/_revs_diff", `{"r":["2-b","3-c"],"none":["1-x"],"a":["1-a"]}`)
		expect(t, "revs_diff", diff, 200, `"r":{"missing":["3-c"],"possible_ancestors":["2-b"]}`, `"none":{"missing":["1-x"]}`)
		expect(t, "missing_revs", c.post(db+"/_missing_revs", `{"none":["1-x"]}`), 200, `{"missing_revs":{"none":["1-x"]}}`)
		expect(t, "full commit", c.do("POST", db+"/_ensure_full_commit", "", "Content-Type: application/json"), 201, `"instance_start_time":"`)
	})
}

// conflictedDB holds the vectors: o1 two live leaves, o2 a live and a longer
// deleted one, o3 two deleted ones with bodies, o4 two live and one deleted,
// o5 a plain deletion, o6 a tombstone with a body.
func conflictedDB(t *testing.T, c target) string {
	t.Helper()
	db := c.newDB(t, "conflicts")
	docs := `{"new_edits":false,"docs":[
		{"_id":"o1","_rev":"1-aaa","v":1},{"_id":"o1","_rev":"1-bbb","v":2},
		{"_id":"o2","_rev":"1-aaa","v":1},{"_id":"o2","_rev":"3-ccc","_revisions":{"start":3,"ids":["ccc","bbb","aab"]},"_deleted":true},
		{"_id":"o3","_rev":"2-xxx","_deleted":true,"why":"x"},{"_id":"o3","_rev":"2-yyy","_deleted":true,"why":"y"},
		{"_id":"o4","_rev":"2-l1","v":1},{"_id":"o4","_rev":"2-l2","v":2},{"_id":"o4","_rev":"5-d1","_deleted":true,"why":"d"}]}`
	expect(t, "load conflicts", c.post(db+"/_bulk_docs", docs), 201, "[]")
	rev := c.put(db+"/o5", `{"v":1}`).str(t, "rev")
	expect(t, "delete o5", c.do("DELETE", db+"/o5?rev="+rev, ""), 200)
	expect(t, "put o6", c.put(db+"/o6", `{"_deleted":true,"status":"void","total":1}`), 200)
	return db
}

func TestConflicts(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := conflictedDB(t, c)
		expect(t, "o1: the greater id wins", c.get(db+"/o1?conflicts=true"), 200, `{"_id":"o1","_rev":"1-bbb","v":2,"_conflicts":["1-aaa"]}`)
		expect(t, "o2: live beats deleted", c.get(db+"/o2?conflicts=true&deleted_conflicts=true"), 200, `"_rev":"1-aaa"`, `"_deleted_conflicts":["3-ccc"]`)
		expect(t, "o3 is deleted", c.get(db+"/o3"), 404, "deleted")
		expect(t, "o3 by revision", c.get(db+"/o3?rev=2-xxx"), 200, `{"_id":"o3","_rev":"2-xxx","why":"x","_deleted":true}`)
		expect(t, "o4", c.get(db+"/o4?conflicts=true&deleted_conflicts=true"), 200, `"_rev":"2-l2"`, `"_conflicts":["2-l1"]`, `"_deleted_conflicts":["5-d1"]`)
		expect(t, "counts are of ids", c.get(db), 200, `"doc_count":3`, `"doc_del_count":3`)

		leaves := c.get(db + "/o4?open_revs=all")
		expect(t, "open_revs", leaves, 200, `{"ok":{"_id":"o4","_rev":"5-d1","why":"d","_deleted":true}}`, `{"ok":{"_id":"o4","_rev":"2-l2","v":2}}`, `"2-l1"`)
		some := c.get(db + `/o4?open_revs=["2-l1","9-none"]&revs=true`)
		expect(t, "open_revs by name", some, 200, `"_rev":"2-l1"`, `{"missing":"9-none"}`, `"_revisions":{"start":2,"ids":["l1"]}`)
		mixed := c.do("GET", db+"/o4?open_revs=all", "", "Accept: multipart/mixed")
		expect(t, "open_revs in parts", mixed, 200, `"_rev":"5-d1"`, "Content-Type: application/json")
		if ct := mixed.header.Get("Content-Type"); !strings.HasPrefix(ct, "multipart/mixed; boundary=") {
			t.Errorf("content type %s", ct)
		}
		expect(t, "open_revs of nothing", c.get(db+"/none?open_revs=all"), 404)

		bulk := c.post(db+"/_bulk_get?revs=true", `{"docs":[{"id":"o4"},{"id":"o1","rev":"1-aaa"},{"id":"none","rev":"1-x"},{"id":"o1","rev":"bad"}]}`)
		expect(t, "bulk_get", bulk, 200, `"_rev":"5-d1"`, `"_rev":"2-l1"`, `"_rev":"2-l2"`, `{"id":"o1","docs":[{"ok":{"_id":"o1","_rev":"1-aaa","v":1`,
			`{"id":"none","docs":[{"error":{"rev":"1-x","reason":"missing","id":"none","error":"not_found"}}]}`, `"reason":"Invalid rev format"`)

		all := c.get(db + "/_all_docs?include_docs=true&conflicts=true&deleted_conflicts=true")
		expect(t, "all_docs has live winners", all, 200, `"total_rows":3`, `"_conflicts":["2-l1"]`)
		if strings.Contains(all.body, "_deleted_conflicts") || strings.Contains(all.body, `"o3"`) {
			t.Errorf("all_docs shows deleted things: %s", all.body)
		}
		keys := c.post(db+"/_all_docs?include_docs=true", `{"keys":["o3","none","o1"]}`)
		expect(t, "all_docs by keys", keys, 200, `{"id":"o3","key":"o3","value":{"rev":"2-yyy","deleted":true},"doc":null}`, `{"key":"none","error":"not_found"}`, `"rev":"1-bbb"`)

		rev := c.get(db+"/o4").str(t, "_rev")
		expect(t, "delete the winner", c.do("DELETE", db+"/o4?rev="+rev, ""), 200)
		expect(t, "and the loser comes back", c.get(db+"/o4"), 200, `"_rev":"2-l1"`)
	})
}

func TestAllDocs(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		for _, id := range []string{"B", "a", "b", "c", "d"} {
			c.put(db+"/"+id, `{}`)
		}
		for query, want := range map[string]string{
			"":                          "B a b c d",
			"descending=true":           "d c b a B",
			`startkey="b"`:              "b c d",
			`startkey="b"&endkey="c"`:   "b c",
			`endkey="c"&limit=1&skip=1`: "a",
			`startkey="c"&descending=true&endkey="a"`:     "c b a",
			`startkey="b"&endkey="d"&inclusive_end=false`: "b c",
			`key="b"`: "b",
			`limit=0`: "",
		} {
			var ids []string
			a := c.get(db + "/_all_docs?" + query)
			for _, row := range a.json(t)["rows"].([]any) {
				ids = append(ids, row.(map[string]any)["id"].(string))
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		expect(t, "totals", c.get(db+`/_all_docs?startkey="b"`), 200, `{"total_rows":5,"offset":2,"rows":[`)
		expect(t, "not found among keys", c.get(db+`/_all_docs?keys=["zz"]`), 200, `{"key":"zz","error":"not_found"}`)
	})
}

func TestLocalDocs(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		expect(t, "put", c.put(db+"/_local/check", `{"seq":1}`), 201, `"id":"_local/check"`, `"rev":"0-1"`)
		expect(t, "get", c.get(db+"/_local/check"), 200, `{"_id":"_local/check","_rev":"0-1","seq":1}`)
		expect(t, "put with rev", c.put(db+"/_local/check", `{"_rev":"0-1","seq":2}`), 201, `"rev":"0-2"`)
		expect(t, "slash in the path", c.get(db+"/_local%2Fcheck"), 200, `"seq":2`)
		expect(t, "in bulk", c.post(db+"/_bulk_docs", `{"docs":[{"_id":"_local/bulk","n":1}]}`), 201)
		expect(t, "was stored", c.get(db+"/_local/bulk"), 200, `"n":1`)
		expect(t, "listed", c.get(db+"/_local_docs"), 200, `"_local/check"`)
		expect(t, "delete", c.do("DELETE", db+"/_local/check", ""), 200)
		expect(t, "gone", c.get(db+"/_local/check"), 404)
		expect(t, "no change", c.get(db+"/_changes?limit=0"), 200, `"pending":0`)
		expect(t, "not counted", c.get(db), 200, `"doc_count":0`)
	})
}

func TestPurge(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		rev := c.put(db+"/d", `{"v":1}`).str(t, "rev")
		c.put(db+"/e", `{"v":2}`)
		seq := c.get(db+"/_changes").str(t, "last_seq")
		before := c.get(db).str(t, "purge_seq")
		expect(t, "purge", c.post(db+"/_purge", `{"d":["`+rev+`"]}`), 201, `"purged":{"d":["`+rev+`"]}`)
		expect(t, "gone without a trace", c.get(db+"/d"), 404, "missing")
		expect(t, "the feed is silent", c.get(db+"/_changes?limit=0&since="+seq), 200, `"pending":0`)
		info := c.get(db)
		expect(t, "the counts are not", info, 200, `"doc_count":1`, `"doc_del_count":0`)
		if after := info.str(t, "purge_seq"); seqNumber(after) <= seqNumber(before) {
			t.Errorf("purge_seq %s, then %s", before, after)
		}
	})
}
