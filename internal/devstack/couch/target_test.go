package couch_test

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

// The conformance suite speaks raw HTTP to one target after the other: the
// embedded store, and the CouchDB that ROLLINGD_TEST_COUCHDB_URL names. What
// it asserts was seen on the real one.

// target is a server under test and the credentials to use on it.
type target struct {
	base           string // without credentials
	user, password string
	isReal         bool
	prefix         string // of the databases of this test
}

const (
	posUser     = "rollingd_conformance_pos"
	posPassword = "pos-secret"
	openToPos   = `{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":["pos"]}}`
	sealed      = `{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":["sealed_nobody"]}}`
)

func forEachTarget(t *testing.T, test func(t *testing.T, c target)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := startEmbedded(t, couch.Options{})
		test(t, newTarget(t, s.URL(), false))
	})
	if real := os.Getenv("ROLLINGD_TEST_COUCHDB_URL"); real != "" {
		t.Run("real", func(t *testing.T) { test(t, newTarget(t, real, true)) })
	}
}

func startEmbedded(t testing.TB, opts couch.Options) *couch.Server {
	t.Helper()
	opts.Dir, opts.AdminUser, opts.AdminPassword, opts.NoSync = t.TempDir(), "admin", "secret", true
	s, err := couch.Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newTarget(t *testing.T, rawURL string, isReal bool) target {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	random := make([]byte, 5)
	_, _ = rand.Read(random)
	c := target{
		user: u.User.Username(), password: password, isReal: isReal,
		prefix: "conformance_" + hex.EncodeToString(random) + "_",
	}
	u.User = nil
	c.base = strings.TrimSuffix(u.String(), "/")
	return c
}

// as returns the same target with other credentials; "" is nobody.
func (c target) as(user, password string) target {
	c.user, c.password = user, password
	return c
}

// pos returns the target as an ordinary user with the role pos.
func (c target) pos(t *testing.T) target {
	t.Helper()
	c.put("/_users", "") // A fresh node of CouchDB has none.
	doc := fmt.Sprintf(`{"name":%q,"password":%q,"roles":["pos"],"type":"user"}`, posUser, posPassword)
	if a := c.put("/_users/org.couchdb.user:"+posUser, doc); a.status != 201 && a.status != 409 {
		t.Fatalf("create user: %s", a)
	}
	return c.as(posUser, posPassword)
}

// newDB creates a database that is dropped when the test ends.
func (c target) newDB(t *testing.T, name string) string {
	t.Helper()
	path := "/" + c.prefix + name
	if a := c.put(path, ""); a.status != 201 && a.status != 202 {
		t.Fatalf("create %s: %s", path, a)
	}
	t.Cleanup(func() { c.do("DELETE", path, "") })
	return path
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// json decodes the body, numbers as they are.
func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(strings.NewReader(a.body))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("not a JSON object: %s: %v", a, err)
	}
	return v
}

// str returns a member as text.
func (a answer) str(t *testing.T, member string) string {
	t.Helper()
	return fmt.Sprint(a.json(t)[member])
}

func (c target) get(path string) answer        { return c.do("GET", path, "") }
func (c target) put(path, body string) answer  { return c.do("PUT", path, body) }
func (c target) post(path, body string) answer { return c.do("POST", path, body) }

// do sends a request; headers are "Name: value".
func (c target) do(method, path, body string, headers ...string) answer {
	req, err := http.NewRequest(method, c.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{body: err.Error()}
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	if c.user != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

// expect fails unless an answer has the status and contains every fragment.
func expect(t *testing.T, what string, a answer, status int, fragments ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: got %s, want status %d", what, a, status)
		return
	}
	for _, f := range fragments {
		if !strings.Contains(a.body, f) {
			t.Errorf("%s: got %s, want %s in it", what, a, f)
		}
	}
}
