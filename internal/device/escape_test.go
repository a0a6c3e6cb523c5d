package device

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// secretOfSouth is in each database of the other company.
const secretOfSouth = "recipe-of-the-other-company"

// raw sends a request line as it is, with headers, over a connection of its own.
func (s *shop) raw(line, token string, headers ...string) (status int, body string) {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	request := line + " HTTP/1.1\r\nAuthorization: Bearer " + token + "\r\nConnection: close\r\n" + strings.Join(headers, "\r\n")
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		request += "\r\nHost: shop.example"
	}
	fmt.Fprint(conn, strings.ReplaceAll(request, "\r\n\r\n", "\r\n")+"\r\n\r\n")
	method, _, _ := strings.Cut(line, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	defer res.Body.Close()
	var b strings.Builder
	if _, err := bufio.NewReader(res.Body).WriteTo(&b); err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return res.StatusCode, b.String()
}

// TestNothingLeadsToAnotherCompany is a till of one company that tries its way to
// the databases of another, over the wire and on real stores.
func TestNothingLeadsToAnotherCompany(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	for _, suffix := range []string{"core", "daily_" + today} {
		if err := s.couch.Put(t.Context(), s.db(south, suffix), "theirs", map[string]string{"type": "order", "secret": secretOfSouth}); err != nil {
			t.Fatal(err)
		}
	}
	theirCore, theirDay := s.db(south, "core"), s.db(south, "daily_"+today)
	token := s.token(north, "till-1")
	try := func(line string, headers ...string) {
		t.Helper()
		status, body := s.raw(line, token, headers...)
		if status < 400 || status == http.StatusNotFound && strings.HasSuffix(line, "core") || strings.Contains(body, secretOfSouth) || strings.Contains(body, theirCore) {
			t.Errorf("%s %q: %d %s", line, headers, status, body)
		}
	}
	for _, e := range escapes {
		if e == "GET /db/" || e == "GET /db" {
			continue // Says who the server is, and needs no token.
		}
		for _, name := range []string{theirCore, theirDay} {
			try(strings.ReplaceAll(strings.ReplaceAll(e, "prod_beta_south_core", name), " /db/beta_south", " /db/"+s.env+"_beta_south"))
		}
	}
	for _, name := range []string{theirCore, theirDay, "_users", "_all_dbs", "_replicator"} {
		for _, path := range []string{
			"/db/" + name, "/" + name, "/db/../" + name, "/db/core/../../" + name, "/db/%2e%2e/" + name, "/db/..%2f" + name, "//" + name,
			"/db/core%2f..%2f" + name, "/db/core/..%2f" + name + "/theirs", "/db/core/%252e%252e%252f" + name, "/db/" + strings.ToUpper(name), "/db/core%00" + name,
			"/db/core/" + name + "/theirs", "/db/core/theirs", "/db/core?db=" + name + "&batch=ok", "/db/core;" + name,
			"http://couch.example/" + name, "http://couch.example/db/" + name,
		} {
			try("GET " + path)
		}
	}
	// Another identity, in every way in which one might be told.
	for _, headers := range [][]string{
		{"Host: " + theirCore + ".example"},
		{"X-Forwarded-Host: " + theirCore, "X-Forwarded-Path: /" + theirCore, "X-Original-URL: /" + theirCore + "/theirs", "X-Rewrite-URL: /" + theirCore + "/theirs"},
		{"X-Auth-CouchDB-UserName: admin", "X-Auth-CouchDB-Roles: _admin," + south.Role(), "X-Auth-CouchDB-Token: 00"},
		{"x-auth-couchdb-username: admin", "x-auth-couchdb-roles: _admin"},
		{"Cookie: AuthSession=YWRtaW46NjU2"},
		{"X-HTTP-Method-Override: DELETE"},
		{"X-CouchDB-WWW-Authenticate: Cookie", "X-CouchDB-Vhost-Path: /" + theirCore},
	} {
		try("GET /db/core/theirs", headers...)
	}
	try("GET /db/core", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13")
	try("GET /db/core", "Authorization: Basic YWRtaW46c2VjcmV0")
	try("PUT /db/core/doc?batch=ok")
	try("PUT /db/core/doc?a=1;batch=ok")
	try("PUT /db/core/doc?%62atch=ok")

	// Ids of the other company's documents, in what takes ids.
	for path, body := range map[string]string{
		"/_bulk_get":      `{"docs":[{"id":"theirs"},{"id":"../` + theirCore + `/theirs"},{"id":"/` + theirCore + `/theirs"}]}`,
		"/_all_docs":      `{"keys":["theirs","../` + theirCore + `/theirs"]}`,
		"/_find":          `{"selector":{"secret":{"$gt":null}}}`,
		"/_revs_diff":     `{"theirs":["1-a"]}`,
		"/_changes":       `{"doc_ids":["theirs"]}`,
		"/_changes?x=y":   `{}`,
		"/_bulk_docs":     `{"docs":[{"_id":"../` + theirCore + `/mine"},{"_id":"` + theirCore + `"}]}`,
		"/_bulk_docs?w=1": `{"docs":[{"_id":"_design/theirs","views":{}}]}`,
	} {
		got := s.do("POST", "/db/core"+path, token, body)
		if strings.Contains(got.body, secretOfSouth) || got.status >= 500 {
			t.Errorf("POST %s: %d %s", path, got.status, got.body)
		}
	}
	if _, err := s.couch.Doc(t.Context(), s.db(north, "core"), "_design/theirs", ""); err == nil {
		t.Error("a till has written a design document")
	}
	for _, name := range []string{theirCore, theirDay} {
		info, err := s.couch.Info(t.Context(), name)
		if err != nil || info.DocCount != 1 {
			t.Errorf("%s: %+v, %v; it should hold one document, untouched", name, info, err)
		}
		security, err := s.couch.Security(t.Context(), name)
		if err != nil || !slices.Equal(security.Members.Roles, couch.OpenTo(south.Role(), uuidOf(t)).Members.Roles) {
			t.Errorf("%s: %+v, %v", name, security, err)
		}
	}
}

// TestClaimsNeverReachAName: a token that is signed, with claims out of form.
func TestClaimsNeverReachAName(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	for _, change := range []jwt.MapClaims{
		{"companyId": "beta_south_core", "restaurantId": "x"},
		{"companyId": "acme/../beta"},
		{"restaurantId": "north_core/../" + s.db(south, "core")},
		{"companyId": "ACME"},
		{"companyId": "acme", "restaurantId": "north", "deviceId": "x,_admin"},
	} {
		c := claimsOf(change)
		c["exp"] = s.view.Now().Unix() + 3600
		got := s.do("GET", "/db/core", sign(t, jwt.SigningMethodHS256, []byte(testSecret), c, ""), "")
		if got.status != 401 || got.code(t) != refusedToken {
			t.Errorf("%v: %d %s", change, got.status, got.body)
		}
	}
	stranger := s.do("GET", "/db/core", s.token(daydb.Restaurant{CompanyID: "acme", RestaurantID: "unheard-of"}, "till-1"), "")
	if stranger.status != 403 || stranger.code(t) != refusedUnknown {
		t.Errorf("a restaurant that is not registered: %d %s", stranger.status, stranger.body)
	}
}

// TestWhatCouchDBGets is the request as it leaves the proxy.
func TestWhatCouchDBGets(t *testing.T) {
	t.Parallel()
	var (
		mu  sync.Mutex
		got []*http.Request
	)
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r)
		w.Header().Set("Set-Cookie", "AuthSession=stolen")
		w.Header().Set("Location", "http://couch.internal/"+r.URL.Path)
		w.Header().Set("ETag", `"1-a"`)
		fmt.Fprint(w, `{"ok":true}`)
	}))
	t.Cleanup(fake.Close)
	s := newShop(t, shopOptions{couchURL: strings.Replace(fake.URL, "http://", "http://admin:hush@", 1)})
	answered := s.do("PUT", "/db/legacy/a%2Fb?rev=1-a&new_edits=false", s.token(north, "till-1"), `{}`,
		"Host", "evil.example", "Cookie", "AuthSession=x", "X-Auth-CouchDB-UserName", "admin", "X-Auth-CouchDB-Roles", "_admin", "X-Auth-CouchDB-Token", "x",
		"X-HTTP-Method-Override", "DELETE", "X-Forwarded-For", "10.0.0.1", "X-Forwarded-Host", "evil.example", "Forwarded", "host=evil.example", "Proxy-Authorization", "Basic x",
		"X-Auth-Roles", "_admin", "If-Match", "1-a", "Accept-Encoding", "gzip", "Expect", "")
	if answered.status != 200 || answered.header.Get("Set-Cookie") != "" || answered.header.Get("Location") != "" || answered.header.Get("ETag") != `"1-a"` {
		t.Errorf("the device gets %d %v", answered.status, answered.header)
	}
	if len(got) != 1 {
		t.Fatalf("CouchDB got %d requests", len(got))
	}
	r := got[0]
	if r.Method != "PUT" || r.RequestURI != "/tables-"+s.env+"/a%2Fb?rev=1-a&new_edits=false" || r.Host != strings.TrimPrefix(fake.URL, "http://") {
		t.Errorf("%s %s of %s", r.Method, r.RequestURI, r.Host)
	}
	want := map[string]string{
		"X-Auth-Couchdb-Username": "device:acme/north/till-1",
		"X-Auth-Couchdb-Roles":    LegacyRole + "," + north.Role(),
		"Content-Type":            "application/json",
		"If-Match":                "1-a",
		"Accept-Encoding":         "gzip",
		"Content-Length":          "2",
	}
	for name, values := range r.Header {
		if name == "X-Auth-Couchdb-Token" || name == "User-Agent" {
			continue
		}
		if len(values) != 1 || values[0] != want[name] {
			t.Errorf("%s: %q, want %q", name, values, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("CouchDB did not get %v", want)
	}
}
