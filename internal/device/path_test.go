package device

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path, want string
		writes, feed       bool
	}{
		{"GET", "/db/core", "/DB", false, false},
		{"GET", "/db/core/", "/DB", false, false},
		{"HEAD", "/db/daily_20261130", "/DB", false, false},
		{"GET", "/db/legacy/_changes", "/DB/_changes", false, true},
		{"POST", "/db/core/_changes", "/DB/_changes", false, true},
		{"GET", "/db/core/_all_docs", "/DB/_all_docs", false, false},
		{"POST", "/db/core/_bulk_docs", "/DB/_bulk_docs", true, false},
		{"POST", "/db/core/_bulk_get", "/DB/_bulk_get", false, false},
		{"POST", "/db/core/_revs_diff", "/DB/_revs_diff", false, false},
		{"POST", "/db/core/_find", "/DB/_find", false, false},
		{"GET", "/db/core/_local/a.b_c%3D%3D", "/DB/_local/a.b_c==", false, false},
		{"PUT", "/db/core/_local/abc", "/DB/_local/abc", true, false},
		{"GET", "/db/core/_design/x", "/DB/_design/x", false, false},
		{"GET", "/db/core/day_manifest", "/DB/day_manifest", false, false},
		{"PUT", "/db/core/product%3A1", "/DB/product:1", true, false},
		{"DELETE", "/db/core/a%2Fb", "/DB/a%2Fb", true, false},
		{"GET", "/db/core/a+b%2Bc%20d", "/DB/a%2Bb%2Bc%20d", false, false},
		{"GET", "/db/core/100%25", "/DB/100%25", false, false},
		{"GET", "/db/core/%C3%A9%F0%9F%98%80", "/DB/%C3%A9%F0%9F%98%80", false, false},
		{"GET", "/db/core/a%00b", "/DB/a%00b", false, false},
		{"GET", "/db/core/a%3Fb%23c", "/DB/a%3Fb%23c", false, false},
		{"PUT", "/db/core/doc/receipts/one.png", "/DB/doc/receipts/one.png", true, false},
		{"GET", "/db/core/doc/_odd", "/DB/doc/_odd", false, false},
		{"PUT", "/db/daily_20261130/day_manifest", "/DB/day_manifest", true, false},
		{"GET", "/db/core/a..b", "/DB/a..b", false, false},
	} {
		r, refused := parseRoute(c.method, c.path)
		if refused != nil {
			t.Errorf("%s %s: %+v", c.method, c.path, refused)
			continue
		}
		if got := r.path("DB"); got != c.want || r.writes != c.writes || r.feed != c.feed {
			t.Errorf("%s %s: %s, writes %t, feed %t; want %+v", c.method, c.path, got, r.writes, r.feed, c)
		}
	}
}

// escapes are the ways to another database, to the server, or to what
// administrators do.
var escapes = []string{
	"GET /db/", "GET /db", "GET /", "GET /db//", "GET /db//core", "GET //db/core", "GET /DB/core",
	"GET /db/CORE", "GET /db/Core", "GET /db/c%6Fre", "GET /db/%63ore", "GET /db/core%00", "GET /db/core%20", "GET /db/core.",
	"GET /db/daily_2026113", "GET /db/daily_20260230", "GET /db/daily_２０２６１１３０", "GET /db/daily_%EF%BC%92%EF%BC%90%EF%BC%92%EF%BC%961130",
	"GET /db/daily_٢٠٢٦١١٣٠", "GET /db/Daily_20261130", "GET /db/daily_20261130_", "GET /db/daily_2026-11-30",
	"GET /db/prod_beta_south_core", "GET /db/beta_south_core", "GET /db/core_beta", "GET /db/_users", "GET /db/_all_dbs", "GET /db/_session", "POST /db/_replicate",
	"GET /db/..%2Fprod_beta_south_core", "GET /db/core%2F..%2Fprod_beta_south_core", "GET /db/core%2f_security", "GET /db/core;x/_changes",
	"GET /db/core/..", "GET /db/core/../prod_beta_south_core", "GET /db/core/%2e%2e/prod_beta_south_core", "GET /db/core/%2E%2E", "GET /db/core/.%2e/x",
	"GET /db/core/%2e%2e%2fprod_beta_south_core", "GET /db/core/..%2fprod_beta_south_core", "GET /db/core/x%2F..%2F..%2Fprod_beta_south_core",
	"GET /db/core/%252e%252e/prod_beta_south_core", "GET /db/core/%252e%252e%252fprod_beta_south_core", "GET /db/core/%25252e%25252e/x", "GET /db/core/%2525252525252e%2525252525252e/x", "GET /db/core/%2525252525252525252525252e/x",
	"GET /db/core/..%5Cprod_beta_south_core", "GET /db/core/./_security", "GET /db/core/doc/../../prod_beta_south_core", "GET /db/core/doc/%2e%2e/x",
	"GET /db/core//_security", "GET /db/core/_changes/", "GET /db/core/_all_docs/queries", "GET /db/core/doc//x", "GET /db/core/doc/", "GET /db/core/%",
	"GET /db/core/%zz", "GET /db/core/%ff", "GET /db/core/%c0%ae%c0%ae/x",
	"PUT /db/core", "DELETE /db/core", "POST /db/core", "PUT /db/daily_20261130/", "OPTIONS /db/core", "CONNECT /db/core", "PATCH /db/core/doc", "COPY /db/core/doc", "get /db/core", "MOVE /db/core/doc",
	"GET /db/core/_security", "PUT /db/core/_security", "PUT /db/core/%5Fsecurity", "PUT /db/core/%5fsecurity", "POST /db/core/_purge", "POST /db/core/_compact", "POST /db/core/_compact/x",
	"POST /db/core/_view_cleanup", "PUT /db/core/_revs_limit", "GET /db/core/_revs_limit", "PUT /db/core/_purged_infos_limit", "POST /db/core/_index", "GET /db/core/_index", "DELETE /db/core/_index/x/json/y", "POST /db/core/_replicate",
	"POST /db/core/_missing_revs", "GET /db/core/_local_docs", "GET /db/core/_design_docs", "GET /db/core/_shards", "POST /db/core/_sync_shards", "GET /db/core/_partition/x", "POST /db/core/_explain",
	"PUT /db/core/_design/x", "DELETE /db/core/_design/x", "PUT /db/core/_design%2Fx", "PUT /db/core/%5Fdesign/x", "PUT /db/core/_design/x/att", "GET /db/core/_design/x/_view/y", "POST /db/core/_design/x/_update/y", "GET /db/core/_design",
	"GET /db/core/_local", "GET /db/core/_local/", "GET /db/core/_local/a/b", "DELETE /db/core/_local/a", "PUT /db/core/_local%2Fa", "GET /db/core/_utils", "GET /db/core/_node/_local/_config",
	"PUT /db/core/day_manifest", "DELETE /db/core/day_manifest", "PUT /db/core/day%5Fmanifest", "PUT /db/core/day_manifest/att", "PUT /db/core/%64ay_manifest",
	"POST /db/core/doc", "GET /db/core/_bulk_docs", "PUT /db/core/_bulk_docs", "DELETE /db/core/_all_docs", "GET /db/core/_Changes", "GET /db/core/_changes%20",
}

func TestRoutesRefused(t *testing.T) {
	t.Parallel()
	for _, e := range escapes {
		method, path, _ := strings.Cut(e, " ")
		r, refused := parseRoute(method, path)
		if refused == nil {
			t.Errorf("%s is let through to %s", e, r.path("DB"))
			continue
		}
		if refused.status != http.StatusForbidden && refused.status != http.StatusBadRequest {
			t.Errorf("%s: %+v; a 404 makes PouchDB create the database", e, refused)
		}
	}
}

// FuzzRoute holds what is let through to the database that was named: the path
// that CouchDB reads, however often it is unescaped and cleaned on the way, stays
// below it, and names no endpoint that is not in the grammar.
func FuzzRoute(f *testing.F) {
	for _, e := range escapes {
		method, path, _ := strings.Cut(e, " ")
		f.Add(method, path)
	}
	f.Add("GET", "/db/core/a%2Fb/c")
	f.Add("PUT", "/db/daily_20261130/order%3A1/receipt.png")
	f.Fuzz(func(t *testing.T, method, path string) {
		r, refused := parseRoute(method, path)
		if refused != nil {
			return
		}
		composed := r.path("prod_acme_north_core")
		rest, ok := strings.CutPrefix(composed, "/prod_acme_north_core")
		if !ok || rest != "" && rest[0] != '/' {
			t.Fatalf("%s %q leads to %q", method, path, composed)
		}
		if strings.ContainsAny(composed, "?#+\\ \r\n") || !utf8.ValidString(composed) {
			t.Fatalf("%s %q leads to %q", method, path, composed)
		}
		// As CouchDB reads it: split, each part unescaped once.
		var parts []string
		for _, p := range strings.Split(composed, "/")[2:] {
			once, err := url.PathUnescape(p)
			if err != nil || once == "" {
				t.Fatalf("%s %q leads to %q", method, path, composed)
			}
			parts = append(parts, once)
		}
		if len(parts) > 0 && parts[0][0] == '_' {
			_, known := endpoints[parts[0]]
			ofDocument := (parts[0] == localEndpoint || parts[0] == designEndpoint && !r.writes) && len(parts) == 2
			if !ofDocument && (!known || len(parts) > 1) {
				t.Fatalf("%s %q leads to %q", method, path, composed)
			}
		}
		// As a careless proxy might read it.
		for read := composed; ; {
			for _, p := range strings.FieldsFunc(read, func(c rune) bool { return c == '/' || c == '\\' }) {
				if p == ".." || p == "." {
					t.Fatalf("%s %q leads to %q", method, path, read)
				}
			}
			again, err := url.PathUnescape(read)
			if err != nil || again == read {
				break
			}
			read = again
		}
		again, refused := parseRoute(method, Prefix+r.suffix+rest)
		if refused != nil || again.path("prod_acme_north_core") != composed {
			t.Fatalf("%s %q leads to %q, which reads differently: %+v", method, path, composed, refused)
		}
	})
}
