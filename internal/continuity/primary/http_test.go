package primary

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

const serviceToken = "a-token-of-the-tests"

type counter struct{ n int }

func (s *shop) handler(resynced *counter) *Handler {
	s.Helper()
	h, err := NewHandler(HandlerOptions{
		Primary: s.Primary, Tokens: []string{"the-one-before-this", serviceToken},
		Resync: func() { resynced.n++ }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.Fatal(err)
	}
	return h
}

type answer struct {
	*httptest.ResponseRecorder
	problem Problem
}

func ask(t *testing.T, h http.Handler, method, path, body string, headers ...string) answer {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+serviceToken)
	req.Header.Set(HeaderCommandID, uuid.NewString())
	req.Header.Set(HeaderEpoch, "2")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	a := answer{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(a.ResponseRecorder, req)
	if a.Result().Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(a.Body.Bytes(), &a.problem); err != nil || a.problem.Status != a.Code || a.problem.Title == "" || a.problem.Detail == "" {
			t.Errorf("problem %s: %v", a.Body, err)
		}
	}
	return a
}

const (
	createBody = `{"idempotencyKey":"k","commandType":"order.create","aggregateType":"order","aggregateId":"o1","payload":` + ofNorth + `}`
	cancelBody = `{"idempotencyKey":"c","commandType":"order.cancel","aggregateType":"order","aggregateId":"o1","payload":{},"expectedVersion":7}`
)

func TestCommandOverHTTP(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	resynced := &counter{}
	h := s.handler(resynced)
	s.open(2, continuity.Direct)
	id := uuid.NewString()
	for i, deduplicated := range []bool{false, true} {
		a := ask(t, h, "POST", "/internal/commands", createBody, HeaderCommandID, id)
		var out Outcome
		if err := json.Unmarshal(a.Body.Bytes(), &out); err != nil || a.Code != 200 || out.CommandID.String() != id ||
			out.Deduplicated != deduplicated || out.Epoch != 2 || a.Result().Header.Get("X-Command-Id") != id {
			t.Errorf("time %d: %d %s", i, a.Code, a.Body)
		}
	}
	for what, c := range map[string]struct {
		body    string
		headers []string
		status  int
		code    string
	}{
		"of an epoch that is over":  {cancelBody, []string{HeaderEpoch, "1"}, 409, CodeStaleEpoch},
		"of epoch 0":                {cancelBody, []string{HeaderEpoch, "0"}, 409, CodeStaleEpoch},
		"of no epoch":               {cancelBody, []string{HeaderEpoch, ""}, 422, "invalid_command"},
		"of a negative epoch":       {cancelBody, []string{HeaderEpoch, "-1"}, 422, "invalid_command"},
		"of an epoch far ahead":     {cancelBody, []string{HeaderEpoch, "1764000000000"}, 409, CodeStaleEpoch},
		"of an epoch beyond reason": {cancelBody, []string{HeaderEpoch, "9223372036854775807"}, 422, "invalid_command"},
		"without an id":             {cancelBody, []string{HeaderCommandID, "7"}, 422, "invalid_command"},
		"another version":           {cancelBody, nil, 409, "version_conflict"},
		"another payload":           {strings.Replace(createBody, "12990", "1", 1), nil, 422, "key_reused"},
		"an unknown field":          {`{"idempotencykeys":""}`, nil, 422, "invalid_command"},
		"no JSON":                   {`{`, nil, 422, "invalid_command"},
		"too much":                  {`{"payload":"` + strings.Repeat("x", maxBody) + `"}`, nil, 413, "payload_too_large"},
		"an unknown type":           {strings.NewReplacer(`"k"`, `"x"`, "order.create", "order.bless").Replace(createBody), nil, 422, "unknown_command_type"},
		"there already":             {strings.Replace(createBody, `"k"`, `"x"`, 1), nil, 409, "already_exists"},
		"never created":             {strings.Replace(cancelBody, "o1", "o2", 1), nil, 422, "unknown_aggregate"},
	} {
		if a := ask(t, h, "POST", "/internal/commands", c.body, c.headers...); a.Code != c.status || a.problem.Code != c.code {
			t.Errorf("%s: %d %s", what, a.Code, a.Body)
		} else if c.code == CodeStaleEpoch && (a.problem.Epoch != 2 || a.problem.Mode != continuity.Direct) {
			t.Errorf("%s: told of %s of epoch %d", what, a.problem.Mode, a.problem.Epoch)
		}
	}
	if st, _ := s.State(t.Context()); st.Closed || resynced.n != 0 {
		t.Errorf("closed: %+v", st)
	}

	// A caller who knows more.
	if a := ask(t, h, "POST", "/internal/commands", cancelBody, HeaderEpoch, "4"); a.Code != 503 || a.problem.Code != CodePrimaryStale || a.Result().Header.Get("Retry-After") == "" {
		t.Errorf("of a later epoch: %d %s", a.Code, a.Body)
	}
	if st, _ := s.State(t.Context()); !st.Closed || st.Seen != 4 || resynced.n != 1 {
		t.Errorf("not closed: %+v", st)
	}
	if a := ask(t, h, "POST", "/internal/commands", strings.Replace(cancelBody, "7", "1", 1)); a.Code != 503 || a.problem.Code != CodeGateClosed || a.problem.Epoch != 2 {
		t.Errorf("closed: %d %s", a.Code, a.Body)
	}
	if a := ask(t, h, "POST", "/internal/commands", createBody); a.Code != 200 {
		t.Errorf("a known key: %d %s", a.Code, a.Body)
	}
}

// TestHeardSinceTheEpochBegan: that edges reached the primary before the queue
// was opened says nothing about now.
func TestHeardSinceTheEpochBegan(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	h := s.handler(&counter{})
	s.open(2, continuity.Direct)
	ask(t, h, "GET", "/internal/health", "")
	if !h.Heard(time.Hour) {
		t.Error("an edge was not heard")
	}
	s.open(3, continuity.Queue)
	if h.Heard(time.Hour) {
		t.Error("an edge that spoke before the queue was opened counts")
	}
	ask(t, h, "GET", "/internal/health", "")
	s.open(3, continuity.Catchup)
	if !h.Heard(time.Hour) {
		t.Error("an edge that spoke since does not count")
	}
	if h.Heard(0) {
		t.Error("an edge counts for longer than the while")
	}
}

func TestReadsAndHealth(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	h := s.handler(&counter{})
	if ask(t, h, "GET", "/internal/health", "", "Authorization", "Bearer guessed"); h.Heard(time.Hour) {
		t.Error("heard somebody who has no token")
	}
	s.open(2, continuity.Direct)
	for _, body := range []string{createBody, `{"idempotencyKey":"p","commandType":"order.confirm_payment","aggregateType":"order","aggregateId":"o1","payload":` + paidBy1 + `}`} {
		if a := ask(t, h, "POST", "/internal/commands", body); a.Code != 200 {
			t.Fatalf("%d %s", a.Code, a.Body)
		}
	}
	for key, want := range map[string]string{
		"order:o1":           `"status":"paid"`,
		"payment:t1":         `"amount":12990.00`,
		"orders:acme/north":  `"orderId":"o1"`,
		"orders:acme%2Feast": `"orders":[]`,
	} {
		a := ask(t, h, "GET", "/internal/reads/"+key, "")
		if got := strings.ReplaceAll(a.Body.String(), " ", ""); a.Code != 200 || !strings.HasPrefix(got, `{"data":{`) || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", key, a.Code, a.Body)
		}
	}
	for _, key := range []string{"order:o2", "payment:o1", "o1", "order:%ff"} {
		if a := ask(t, h, "GET", "/internal/reads/"+key, ""); a.Code != 404 || a.problem.Code != "unknown_key" {
			t.Errorf("%s: %d %s", key, a.Code, a.Body)
		}
	}
	var health Health
	a := ask(t, h, "GET", "/internal/health", "")
	if err := json.Unmarshal(a.Body.Bytes(), &health); err != nil || !health.OK || health.LeaseToken != 2 || health.Mode != continuity.Direct || !health.Open || !h.Heard(time.Hour) {
		t.Errorf("health %s", a.Body)
	}
	for _, auth := range []string{"", "Bearer", "Bearer wrong-token-of-them", "Basic " + serviceToken, "Bearer " + serviceToken + " "} {
		for _, path := range []string{"/internal/health", "/internal/reads/order:o1", "/internal/nothing"} {
			if a := ask(t, h, "GET", path, "", "Authorization", auth); a.Code != 401 || a.problem.Code != "unauthorized" {
				t.Errorf("%q %s: %d %s", auth, path, a.Code, a.Body)
			}
		}
	}
	if a := ask(t, h, "GET", "/internal/health", "", "Authorization", "Bearer the-one-before-this"); a.Code != 200 {
		t.Errorf("the token that is being exchanged: %d", a.Code)
	}
	if _, err := NewHandler(HandlerOptions{Primary: s.Primary, Tokens: []string{"short"}, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("a short token was taken")
	}
}

// TestCommitUnanswered has the connection break at the COMMIT: the caller is told
// to repeat, and the same key gives the outcome.
func TestCommitUnanswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault        pgtest.CommitFault
		deduplicated bool
	}{"rolled back": {pgtest.CommitFails, false}, "committed": {pgtest.CommitUnanswered, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, dsn := pgtest.NewProxy(t, pgtest.DSN(t))
			s := newShop(t, Options{Pool: pgtest.Open(t, dsn)})
			s.open(2, continuity.Direct)
			h := s.handler(&counter{})
			proxy.OnCommit(func(n int64) pgtest.CommitFault {
				if n == 1 {
					return c.fault
				}
				return pgtest.CommitPasses
			})
			if a := ask(t, h, "POST", "/internal/commands", createBody); a.Code != 503 || a.problem.Code != "outcome_unknown" || strings.Contains(a.problem.Detail, "127.0.0.1") {
				t.Errorf("%d %s", a.Code, a.Body)
			}
			var out Outcome
			a := ask(t, h, "POST", "/internal/commands", createBody)
			if err := json.Unmarshal(a.Body.Bytes(), &out); err != nil || a.Code != 200 || out.Deduplicated != c.deduplicated {
				t.Errorf("again: %d %s", a.Code, a.Body)
			}
			if n := s.count("orders"); n != 1 {
				t.Errorf("%d orders", n)
			}
		})
	}
}

// TestPostgresIsAway answers 503, which an edge takes for a failure of the primary.
func TestPostgresIsAway(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), "postgres://nobody@127.0.0.1:1/none", pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h := newShop(t, Options{Pool: pool}).handler(&counter{})
	for path, method := range map[string]string{"/internal/commands": "POST", "/internal/reads/order:o1": "GET", "/internal/health": "GET"} {
		a := ask(t, h, method, path, createBody)
		if raw, _ := io.ReadAll(a.Body); a.Code != 503 || a.problem.Code != "primary_unavailable" || strings.Contains(string(raw), "nobody") {
			t.Errorf("%s: %d %s", path, a.Code, raw)
		}
	}
}
