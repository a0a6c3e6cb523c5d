package couch_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

func TestServerEndpoints(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		nobody := c.as("", "")
		expect(t, "welcome", nobody.get("/"), 200, `"couchdb":"Welcome"`, `"version":"3.5.`)
		expect(t, "up", nobody.get("/_up"), 200, `"status":"ok"`)
		expect(t, "uuids", c.get("/_uuids?count=3"), 200, `"uuids":["`)
		expect(t, "membership", c.get("/_membership"), 200, `"cluster_nodes"`)
		expect(t, "list of databases is for administrators", nobody.get("/_all_dbs"), 401, "You are not a server admin.")
		expect(t, "wrong password", c.as("nobody", "wrong").get("/_all_dbs"), 401, "Name or password is incorrect.")
		expect(t, "unknown endpoint", c.get("/_nothing"), 404)
		session := c.get("/_session").json(t)
		if user := session["userCtx"].(map[string]any); user["name"] != c.user {
			t.Errorf("session of %v", user)
		}
	})
}

func TestCreateAndDelete(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		expect(t, "again", c.put(db, ""), 412, "file_exists")
		expect(t, "info", c.get(db), 200, `"doc_count":0`, `"doc_del_count":0`, `"instance_start_time":"`, `"purge_seq":"0`, `"q":2`)
		expect(t, "head", c.do("HEAD", db, ""), 200)
		expect(t, "by anonymous", c.as("", "").put("/"+c.prefix+"y", ""), 401, "You are not a server admin.")
		expect(t, "by an ordinary user", c.pos(t).put("/"+c.prefix+"y", ""), 401, "You are not a server admin.")
		for _, bad := range []string{"Upper", "1digit", "dots.not"} {
			expect(t, "name "+bad, c.put("/"+bad, ""), 400, "illegal_database_name")
		}
		expect(t, "with rev", c.do("DELETE", db+"?rev=1-a", ""), 400)
		expect(t, "DELETE has no precondition", c.do("DELETE", db, "", `If-Match: "1-bogus"`), 200, `"ok":true`)
		expect(t, "gone", c.get(db), 404, "not_found", "Database does not exist.")
		expect(t, "delete again", c.do("DELETE", db, ""), 404)
		expect(t, "document of a missing database", c.put(db+"/doc", "{}"), 404)

		slashed := "/" + c.prefix + "a%2Fb"
		expect(t, "name with a slash", c.put(slashed+"?q=1", ""), 201)
		expect(t, "its info", c.get(slashed), 200, `"db_name":"`+c.prefix+`a/b"`, `"q":1`)
		expect(t, "drop it", c.do("DELETE", slashed, ""), 200)
	})
}

func TestAllDBsRange(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		for _, name := range []string{"a", "b", "c"} {
			c.newDB(t, name)
		}
		all := c.get(`/_all_dbs?startkey="` + c.prefix + `"&endkey="` + c.prefix + `z"`)
		expect(t, "range", all, 200, `["`+c.prefix+`a","`+c.prefix+`b","`+c.prefix+`c"]`)
		one := c.get(`/_all_dbs?startkey="` + c.prefix + `b"&limit=1`)
		expect(t, "limit", one, 200, `["`+c.prefix+`b"]`)
		infos := c.post("/_dbs_info", `{"keys":["`+c.prefix+`b","`+c.prefix+`none"]}`)
		expect(t, "infos", infos, 200, `"db_name":"`+c.prefix+`b"`, `{"key":"`+c.prefix+`none","error":"not_found"}`)
		keys := `"x"`
		for range 100 {
			keys += `,"x"`
		}
		expect(t, "101 keys", c.post("/_dbs_info", `{"keys":[`+keys+`]}`), 400, "too_many_keys")
		ranged := c.get(`/_dbs_info?startkey="` + c.prefix + `a"&limit=2`)
		expect(t, "ranged infos", ranged, 200, `"db_name":"`+c.prefix+`a"`, `"db_name":"`+c.prefix+`b"`)
		expect(t, "no global changes", c.get("/_db_updates"), 404, "Database does not exist.")
	})
}

func TestSecurity(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		pos, nobody := c.pos(t), c.as("", "")
		expect(t, "default", c.get(db+"/_security"), 200, `{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}`)
		expect(t, "a new database is closed to users", pos.get(db), 403, "forbidden", "You are not allowed to access this db.")
		expect(t, "and to anonymous", nobody.get(db), 401, "unauthorized", "You are not authorized to access this db.")
		marked := `{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":["pos"]},"rollingd":{"generation":"a","n":1.0}}`
		expect(t, "put", c.put(db+"/_security", marked), 200, `{"ok":true}`)
		expect(t, "kept word for word", c.get(db+"/_security"), 200, marked)
		expect(t, "a member reads it", pos.get(db+"/_security"), 200, marked)
		expect(t, "a member writes", pos.put(db+"/doc", `{}`), 201)
		expect(t, "a member may not put it", pos.put(db+"/_security", openToPos), 500, "no_majority")
		expect(t, "wrong shape", c.put(db+"/_security", `{"members":{"roles":"pos"}}`), 500, `{"error":"error","reason":"no_majority"}`)
		expect(t, "not in the feed", c.get(db+"/_changes"), 200, `"pending":0`)

		expect(t, "seal", c.put(db+"/_security", sealed), 200)
		for _, path := range []string{"/doc", "/_changes", "/_local/x", "/_all_docs", "", "/_security"} {
			expect(t, "sealed "+path, pos.get(db+path), 403, "You are not allowed to access this db.")
		}
		expect(t, "sealed bulk", pos.post(db+"/_bulk_docs", `{"new_edits":false,"docs":[{"_id":"a","_rev":"1-a"}]}`), 403)
		expect(t, "administrators are not bound", c.put(db+"/admin", "{}"), 201)
	})
}

// An empty member list does not close a database, it opens it to everybody.
func TestEmptyMembersAreTheWholeWorld(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		for i, public := range []string{
			`{}`, `{"members":{}}`, `{"admins":{"names":[],"roles":["_admin"]}}`,
			`{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":[]}}`,
		} {
			db := c.newDB(t, "x"+string(rune('a'+i)))
			expect(t, "put "+public, c.put(db+"/_security", public), 200)
			expect(t, "anonymous write under "+public, c.as("", "").put(db+"/anon", "{}"), 201)
		}
	})
}

func TestUpdateSeqCountsMoreThanDocuments(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		db := c.newDB(t, "x")
		c.put(db+"/doc", "{}")
		before := c.get(db).str(t, "update_seq")
		if again := c.get(db).str(t, "update_seq"); again != before {
			t.Errorf("update_seq changed by itself: %s, %s", before, again)
		}
		c.put(db+"/_security", openToPos)
		after := c.get(db).str(t, "update_seq")
		if seqNumber(after) <= seqNumber(before) {
			t.Errorf("update_seq before and after _security: %s, %s", before, after)
		}
		expect(t, "revs limit", c.put(db+"/_revs_limit", "500"), 200)
		expect(t, "revs limit", c.get(db+"/_revs_limit"), 200, "500")
		if now := c.get(db).str(t, "update_seq"); seqNumber(now) <= seqNumber(after) {
			t.Errorf("update_seq before and after _revs_limit: %s, %s", after, now)
		}
		last := c.get(db+"/_changes").str(t, "last_seq")
		if seqNumber(last) >= seqNumber(after) {
			t.Errorf("a complete read ends at %s, although update_seq was %s", last, after)
		}
		expect(t, "nothing is pending all the same", c.get(db+"/_changes?limit=0&since="+last), 200, `"pending":0`)
	})
}

func TestConfig(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		const key = "/_node/_local/_config/couchdb/enable_database_recovery"
		before := c.get(key)
		t.Cleanup(func() {
			if before.status == 200 {
				c.put(key, before.body)
			} else {
				c.do("DELETE", key, "")
			}
		})
		expect(t, "put", c.put(key, `"true"`), 200)
		expect(t, "get", c.get(key), 200, `"true"`)
		expect(t, "unknown", c.get("/_node/_local/_config/couchdb/rollingd_none"), 404, "unknown_config_value")
		expect(t, "not for anonymous", c.as("", "").get(key), 401)
		expect(t, "section", c.get("/_node/_local/_config/couchdb"), 200, `"enable_database_recovery":"true"`)
	})
}

// With recovery enabled a dropped database is renamed, and comes back when an
// operator undoes the rename.
func TestDatabaseRecovery(t *testing.T) {
	dir := t.TempDir()
	s, err := couch.Start(couch.Options{Dir: dir, AdminUser: "admin", AdminPassword: "secret", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c := newTarget(t, s.URL(), false)
	expect(t, "enable", c.put("/_node/_local/_config/couchdb/enable_database_recovery", `"true"`), 200)
	expect(t, "create", c.put("/day", ""), 201)
	expect(t, "write", c.put("/day/doc", `{"n":1}`), 201)
	expect(t, "drop", c.do("DELETE", "/day", ""), 200)
	expect(t, "gone", c.get("/day"), 404)
	kept, err := filepath.Glob(filepath.Join(dir, "day.*.deleted.couch"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept files %v, %v", kept, err)
	}
	if err := os.Rename(kept[0], filepath.Join(dir, "day.couch")); err != nil {
		t.Fatal(err)
	}
	expect(t, "back", c.get("/day/doc"), 200, `"n":1`)
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]couch.Options{
		"no folder":   {AdminUser: "a", AdminPassword: "b"},
		"no password": {Dir: t.TempDir(), AdminUser: "a"},
		"bad address": {Dir: t.TempDir(), AdminUser: "a", AdminPassword: "b", Addr: "nowhere:x"},
	} {
		if s, err := couch.Start(opts); err == nil {
			_ = s.Close()
			t.Errorf("%s: started", name)
		}
	}
}

// What was acknowledged is there after a restart, with the same sequences.
func TestRestart(t *testing.T) {
	opts := couch.Options{Dir: t.TempDir(), AdminUser: "admin", AdminPassword: "secret"}
	s, err := couch.Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	c := newTarget(t, s.URL(), false)
	expect(t, "create", c.put("/day?q=1", ""), 201)
	expect(t, "write", c.put("/day/doc", `{"n":1}`), 201)
	info, last := c.get("/day"), c.get("/day/_changes").str(t, "last_seq")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = couch.Start(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c = newTarget(t, s.URL(), false)
	for _, member := range []string{"update_seq", "purge_seq", "instance_start_time", "doc_count"} {
		if before, after := info.str(t, member), c.get("/day").str(t, member); before != after {
			t.Errorf("%s was %s and is %s", member, before, after)
		}
	}
	expect(t, "nothing new", c.get("/day/_changes?limit=0&since="+last), 200, `"pending":0`)
}
