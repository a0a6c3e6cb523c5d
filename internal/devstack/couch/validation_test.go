package couch_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

const sealDesign = `{"validate_doc_update":"function(n,o,u,s){throw({forbidden:'day sealed'})}"}`

func design(source string) string {
	doc, err := json.Marshal(map[string]string{"validate_doc_update": source})
	if err != nil {
		panic(err)
	}
	return string(doc)
}

func TestValidationSealsEverybody(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/_security", openToPos)
		created := c.put(db+"/_design/seal", sealDesign)
		expect(t, "design document", created, 201)
		expect(t, "an administrator", c.put(db+"/d", "{}"), 403, `{"error":"forbidden","reason":"day sealed"}`)
		expect(t, "a member", c.pos(t).put(db+"/d", "{}"), 403, "day sealed")
		bulk := c.post(db+"/_bulk_docs", `{"new_edits":false,"docs":[{"_id":"z","_rev":"1-a"}]}`)
		expect(t, "replicated", bulk, 201, `[{"id":"z","rev":"1-a","error":"forbidden","reason":"day sealed"}]`)
		expect(t, "attachment", c.do("PUT", db+"/d/a", "x", "Content-Type: text/plain"), 403, "day sealed")
		expect(t, "not local documents", c.pos(t).put(db+"/_local/x", "{}"), 201)
		expect(t, "not the security object", c.put(db+"/_security", openToPos), 200)
		expect(t, "a member may not touch it", c.pos(t).put(db+"/_design/other", "{}"), 403, "You are not a db or server admin.")
		expect(t, "it counts as a document", c.get(db), 200, `"doc_count":1`)
		expect(t, "and shows in the feed", c.get(db+"/_changes"), 200, `"id":"_design/seal"`)
		expect(t, "remove it", c.do("DELETE", db+"/_design/seal?rev="+created.str(t, "rev"), ""), 200)
		expect(t, "and writes pass", c.putUnvalidated(t, db+"/d"), 201)
	})
}

func TestValidationArguments(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/_security", openToPos)
		old := c.put(db+"/old", `{"n":1}`).str(t, "rev")
		source := `function(newDoc, oldDoc, userCtx, secObj) {
			if (newDoc.show) throw({forbidden: JSON.stringify([newDoc, oldDoc, userCtx, secObj])});
			if (newDoc.who) throw({unauthorized: 'sign in'});
			if (oldDoc && oldDoc.generation > newDoc.generation) throw({forbidden: 'older generation'});
			if (newDoc.type === 'day_manifest' && userCtx.roles.indexOf('_admin') < 0) throw({forbidden: 'server only'});
			if (newDoc.broken) nothing();
		}`
		expect(t, "design document", c.put(db+"/_design/v", design(source)), 201)
		shown := c.pos(t).put(db+"/new", `{"show":true}`)
		expect(t, "new document", shown, 403, `[{\"_id\":\"new\",\"show\":true},null,{\"db\":\"`, `\"name\":\"`+posUser+`\",\"roles\":[\"pos\"]}`, `\"members\":{\"names\":[],\"roles\":[\"pos\"]}`)
		edited := c.put(db+"/old", `{"_rev":"`+old+`","show":true}`)
		expect(t, "edit", edited, 403, `[{\"_id\":\"old\",\"_rev\":\"`+old+`\",\"show\":true,\"_revisions\":{\"start\":1,\"ids\":[`, `{\"_id\":\"old\",\"_rev\":\"`+old+`\",\"n\":1`, `\"roles\":[\"_admin\"]`)
		expect(t, "unauthorized", c.put(db+"/w", `{"who":true}`), 401, `{"error":"unauthorized","reason":"sign in"}`)
		expect(t, "any other exception", c.put(db+"/b", `{"broken":true}`), 500, "ReferenceError")
		rev := c.put(db+"/m", `{"type":"day_manifest","generation":5}`).str(t, "rev")
		expect(t, "older generation", c.put(db+"/m", `{"_rev":"`+rev+`","type":"day_manifest","generation":4}`), 403, "older generation")
		expect(t, "by a member", c.pos(t).put(db+"/m", `{"_rev":"`+rev+`","type":"day_manifest","generation":6}`), 403, "server only")
		expect(t, "newer generation", c.put(db+"/m", `{"_rev":"`+rev+`","type":"day_manifest","generation":6}`), 201)
		mixed := c.post(db+"/_bulk_docs", `{"docs":[{"_id":"b1","show":true},{"_id":"b2"}]}`)
		expect(t, "in bulk one by one", mixed, 201, `{"id":"b1","error":"forbidden"`, `{"ok":true,"id":"b2"`)
		expect(t, "deep documents too", c.put(db+"/deep", `{"v":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`), 201)
	})
}

func TestBrokenValidationRefusesEverything(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		rev := c.put(db+"/_design/bad", design("function(n{")).str(t, "rev")
		expect(t, "does not compile", c.put(db+"/d", "{}"), 500, "compilation_error")
		expect(t, "design documents can be removed", c.do("DELETE", db+"/_design/bad?rev="+rev, ""), 200)
		expect(t, "and writes pass", c.putUnvalidated(t, db+"/d"), 201)
		expect(t, "no text", c.put(db+"/_design/number", `{"validate_doc_update":5}`), 400, "invalid_design_doc")
	})
}

// putUnvalidated writes a document of a database whose validation was removed. A
// busy CouchDB applies it for a moment more, out of its cache.
func (c target) putUnvalidated(t *testing.T, path string) answer {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	start := time.Now()
	a := c.put(path, "{}")
	for c.isReal && a.status != 201 && time.Since(start) < 10*time.Second {
		<-ticker.C
		a = c.put(path, "{}")
	}
	return a
}
