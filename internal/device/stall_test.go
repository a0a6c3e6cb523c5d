package device

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestBodiesThatNeverComeEnd has clients, known or not, that announce a body and
// send none: the HTTP server waits for it before it sends any answer.
func TestBodiesThatNeverComeEnd(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{limit: 200 * time.Millisecond})
	good := s.token(north, "till-1")
	for name, request := range map[string]struct{ head, token string }{
		"unknown token":     {"PUT /db/core/doc HTTP/1.1\r\nContent-Length: 10", "made-up"},
		"in pieces":         {"POST /db/core/_bulk_docs HTTP/1.1\r\nTransfer-Encoding: chunked", "made-up"},
		"not allowed":       {"PUT /db/core/_security HTTP/1.1\r\nContent-Length: 10", good},
		"sealed day":        {"PUT /db/daily_" + sealed + "/doc HTTP/1.1\r\nContent-Length: 10", good},
		"report, no token":  {"PUT " + ReportPath + " HTTP/1.1\r\nContent-Length: 10", "made-up"},
		"not the right way": {"POST /db/ HTTP/1.1\r\nContent-Length: 10", good},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(request.head, request.token)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			defer res.Body.Close()
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode < http.StatusBadRequest {
				t.Errorf("%s, %v", res.Status, err)
			}
		})
	}
}

// TestReadThatOutlastsItsToken has CouchDB not answer before the token ends: the
// device is told that, and not that it was too slow.
func TestReadThatOutlastsItsToken(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	s := newShop(t, shopOptions{couchURL: silent.URL})
	got := s.do("GET", "/db/core/_changes?feed=longpoll", s.tokenFor(north, "till-1", 3*time.Second), "")
	if got.status != http.StatusUnauthorized || !strings.Contains(got.body, refusedExpired) {
		t.Errorf("%d %s, want 401 %s", got.status, got.body, refusedExpired)
	}
}
