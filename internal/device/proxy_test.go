package device

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
)

func uuidOf(t *testing.T) uuid.UUID {
	t.Helper()
	id, err := uuid.NewRandom()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (a answer) code(t *testing.T) string {
	t.Helper()
	var said struct{ Error, Reason, Code string }
	if err := json.Unmarshal([]byte(a.body), &said); err != nil || said.Error == "" || said.Reason == "" {
		t.Fatalf("%d %q is not in CouchDB's shape", a.status, a.body)
	}
	return said.Code
}

// TestStatesOfDays holds what a device may do in each state, and that no refusal
// has a status that makes PouchDB create a database or skip a document.
func TestStatesOfDays(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	token := s.token(north, "till-1")
	for _, c := range []struct {
		suffix string
		status int
		code   string
	}{
		{"core", 201, ""},
		{"daily_" + today, 201, ""},
		{"daily_" + draining, 201, ""},
		{"daily_" + archived, 201, ""},
		{"daily_" + closing, 403, refusedSealed},
		{"daily_" + sealed, 403, refusedSealed},
		{"daily_" + gone, 403, refusedDropped},
		{"daily_" + tomorrow, 503, refusedNotBegun},
		{"daily_20270101", 503, refusedNotBegun},
		{"daily_20250101", 403, refusedUnknownDay},
	} {
		put := s.do("PUT", "/db/"+c.suffix+"/doc", token, `{"type":"order"}`)
		if put.status != c.status || c.code != "" && put.code(t) != c.code {
			t.Errorf("PUT into %s: %d %s, want %d %s", c.suffix, put.status, put.body, c.status, c.code)
		}
		want := 200
		if c.code != "" {
			want = c.status
		}
		for _, path := range []string{"", "/", "/_changes", "/doc"} {
			got := s.do("GET", "/db/"+c.suffix+path, token, "")
			if got.status != want || c.code != "" && got.code(t) != c.code {
				t.Errorf("GET %s%s: %d %s, want %d %s", c.suffix, path, got.status, got.body, want, c.code)
			}
		}
		if c.status == 503 && put.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c.suffix)
		}
	}
	// It landed where the token says, and nowhere else.
	if _, err := s.couch.Doc(t.Context(), s.db(north, "daily_"+today), "doc", ""); err != nil {
		t.Error(err)
	}
	if _, err := s.couch.Doc(t.Context(), s.db(south, "daily_"+today), "doc", ""); err == nil {
		t.Error("the document is in another company's database")
	}
}

// TestNotificationsReachTheView has each kind of change, and a lost connection.
func TestNotificationsReachTheView(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	token := s.token(north, "till-1")
	status := func(suffix string) func(int) func() bool {
		return func(want int) func() bool {
			return func() bool { return s.do("GET", "/db/"+suffix, token, "").status == want }
		}
	}
	day := status("daily_" + today)

	s.exec(`update day_databases set seal_started_at = now() where db_name = $1`, s.db(north, "daily_"+today))
	s.until("a seal that begins", day(403))
	s.exec(`update day_databases set seal_started_at = null where db_name = $1`, s.db(north, "daily_"+today))
	s.until("a seal that is lifted", day(200))
	s.setState(north, tomorrow, "DRAINING")
	s.until("a day that moves", status("daily_"+tomorrow)(200))
	s.setFlags("acme", false, false)
	s.until("a company that is switched off", day(403))
	s.setFlags("acme", true, true)
	s.until("a company that is routed", day(200))

	// The session that listens is killed, and a change made while nobody does.
	s.exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = $1`, sessionName)
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := Revoke(ctx, tx, Identity{Restaurant: north, DeviceID: "till-1"}, "test")
		return err
	})
	s.until("a change made while the connection was lost", day(401))
}

func TestRevocation(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	first, other := s.token(north, "till-1"), s.token(north, "till-2")
	use := func(token string) int { return s.do("GET", "/db/core", token, "").status }
	revoke := func(id string) {
		s.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := Revoke(ctx, tx, Identity{Restaurant: north, DeviceID: id}, "test")
			return err
		})
	}
	revoke("till-1")
	s.until("the revocation", func() bool { return use(first) == 401 })
	again := s.token(north, "till-1")
	if use(again) != 200 || use(other) != 200 {
		t.Errorf("a token issued after it: %d; another device's: %d", use(again), use(other))
	}
	revoke("")
	s.until("the revocation of all", func() bool { return use(other) == 401 })
	if use(again) != 401 || use(s.token(north, "till-1")) != 200 || use(s.token(south, "till-1")) != 200 {
		t.Error("a revocation of all devices of a restaurant covers what it should not, or not what it should")
	}
}

// TestLegacyIsTheOnlyDatabaseUntilRouted: parity with the single database, and
// what is left in a till's copy of it after the cutover can still be delivered.
func TestLegacyIsTheOnlyDatabaseUntilRouted(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	token := s.token(north, "till-1")
	for _, c := range []struct{ rolling, routed bool }{{false, false}, {true, false}} {
		s.setFlags("acme", c.rolling, c.routed)
		s.until("the flags", func() bool { return s.do("GET", "/db/core", token, "").status == 403 })
		for _, suffix := range []string{"core", "daily_" + today, "daily_" + gone, "daily_" + tomorrow, "daily_20250101"} {
			if got := s.do("GET", "/db/"+suffix, token, ""); got.status != 403 || got.code(t) != refusedNotRouted {
				t.Errorf("%+v: %s: %d %s", c, suffix, got.status, got.body)
			}
		}
		for _, path := range []string{"", "/_changes", "/_all_docs"} {
			if got := s.do("GET", "/db/legacy"+path, token, ""); got.status != 200 {
				t.Errorf("%+v: legacy%s: %d %s", c, path, got.status, got.body)
			}
		}
	}
	if got := s.do("PUT", "/db/legacy/a", token, `{"type":"order"}`); got.status != 201 {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.setFlags("acme", true, true)
	s.until("the cutover", func() bool { return s.do("GET", "/db/core", token, "").status == 200 })
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "", "", 200},
		{"GET", "/_local/checkpoint", "", 404},
		{"PUT", "/_local/checkpoint", `{}`, 201},
		{"POST", "/_revs_diff", `{"b":["1-a"]}`, 200},
		{"POST", "/_bulk_docs", `{"docs":[{"_id":"b"}]}`, 201},
		{"GET", "/a", "", 403},
		{"GET", "/_changes", "", 403},
		{"GET", "/_all_docs", "", 403},
		{"POST", "/_bulk_get", `{"docs":[]}`, 403},
	} {
		if got := s.do(c.method, "/db/legacy"+c.path, token, c.body); got.status != c.status {
			t.Errorf("%s legacy%s when routed: %d %s, want %d", c.method, c.path, got.status, got.body, c.status)
		}
	}
}

// TestCouchDBClosesWhatTheViewStillAdmits: the role of another company in
// _security, as a seal that the view has not heard of.
func TestCouchDBClosesWhatTheViewStillAdmits(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	if err := s.couch.PutSecurity(t.Context(), s.db(north, "core"), couch.OpenTo(south.Role(), uuidOf(t))); err != nil {
		t.Fatal(err)
	}
	for method, body := range map[string]string{"GET": "", "PUT": "{}"} {
		got := s.do(method, "/db/core/doc", s.token(north, "till-1"), body)
		if got.status != 403 || got.code(t) != refusedClosed {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
}

func TestRateIsPerDevice(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{rate: 1})
	mad, calm := s.token(north, "mad"), s.token(north, "calm")
	start := time.Now()
	admitted := 0
	got := s.do("GET", "/db/core", mad, "")
	for ; got.status == 200; got = s.do("GET", "/db/core", mad, "") {
		admitted++
		if most := burstSeconds + 1 + int(time.Since(start)/time.Second); admitted > most {
			t.Fatalf("%d requests were admitted, want at most %d", admitted, most)
		}
	}
	if admitted < burstSeconds {
		t.Errorf("%d requests were admitted, want %d at once", admitted, burstSeconds)
	}
	if got.status != 429 || got.code(t) != refusedRate || got.header.Get("Retry-After") == "" {
		t.Errorf("beyond its rate: %d %s", got.status, got.body)
	}
	if got := s.do("GET", "/db/core", calm, ""); got.status != 200 {
		t.Errorf("another device: %d %s", got.status, got.body)
	}
}

// TestProbe asks a CouchDB that knows another secret.
func TestProbe(t *testing.T) {
	t.Parallel()
	if err := newShop(t, shopOptions{}).proxy.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	s := newShop(t, shopOptions{secret: "another secret"})
	if err := s.proxy.Probe(t.Context()); !errors.Is(err, errNotTrusted) {
		t.Errorf("with another secret: %v", err)
	}
	got := s.do("GET", "/db/core", s.token(north, "till-1"), "")
	if got.status != 503 || got.code(t) != refusedUnavailable {
		t.Errorf("a till whose token is good: %d %s", got.status, got.body)
	}
}

// TestFeedEndsWithItsToken, and with the day or the token being taken away.
func TestFeedEndsWithItsToken(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	feed := func(token, suffix string) <-chan struct{} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/db/"+suffix+"/_changes?feed=continuous&heartbeat=1000", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer res.Body.Close()
			var b [256]byte
			for {
				if _, err := res.Body.Read(b[:]); err != nil {
					return
				}
			}
		}()
		return ended
	}
	ends := func(what string, ended <-chan struct{}) {
		t.Helper()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Errorf("the feed goes on after %s", what)
		}
	}
	expiring := feed(s.tokenFor(north, "till-1", 10*time.Second), "core")
	other := feed(s.token(south, "till-1"), "core")
	onDay, revoked, stopped := feed(s.token(north, "till-2"), "daily_"+today), feed(s.token(north, "till-3"), "core"), feed(s.token(north, "till-4"), "core")
	s.exec(`update day_databases set seal_started_at = now() where db_name = $1`, s.db(north, "daily_"+today))
	ends("the seal of its day has begun", onDay)
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := Revoke(ctx, tx, Identity{Restaurant: north, DeviceID: "till-3"}, "test")
		return err
	})
	ends("its token was revoked", revoked)
	ends("its token has expired", expiring)
	select {
	case <-other:
		t.Error("the feed of another restaurant has ended")
	default:
	}
	s.proxy.Shut()
	ends("the stop of the server", stopped)
	ends("the stop of the server", other)
	if got := s.do("GET", "/db/core", s.token(north, "till-5"), ""); got.status != 503 || !strings.Contains(got.body, "stops") {
		t.Errorf("after the stop: %d %s", got.status, got.body)
	}
}
