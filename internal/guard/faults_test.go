package guard

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// fault is what happens to a request to CouchDB.
type fault int

const (
	passes fault = iota
	// fails: the request never reaches CouchDB.
	fails
	// unanswered: CouchDB does what it was asked, and the answer is lost.
	unanswered
	// answers500: CouchDB does nothing and says 500.
	answers500
)

// faultyTransport breaks requests of the test's choice, counted from 1.
type faultyTransport struct {
	n      atomic.Int64
	decide func(n int64, req *http.Request) fault
}

var errFault = errors.New("broken by the test")

func (f *faultyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	how := f.decide(f.n.Add(1), req)
	if how == fails {
		return nil, errFault
	}
	if how == answers500 {
		return &http.Response{
			StatusCode: http.StatusInternalServerError,
			Header:     http.Header{"Content-Type": {"application/json"}},
			Body:       io.NopCloser(strings.NewReader(`{"error":"internal_server_error","reason":"No DB shards could be opened."}`)),
			Request:    req,
		}, nil
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if how == unanswered && err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return nil, errFault
	}
	return res, err
}

// life drives a day from DRAINING to DROPPED through a guard whose n-th request
// or COMMIT is broken, and repairs it with a whole one.
func life(t *testing.T, shared *stores, broken func(w *world) *Guard) {
	t.Helper()
	w := shared.world(t)
	d := w.draining(40)
	w.sales(d.Name, 3)
	g := broken(w)
	for range 4 {
		// Failures are expected here; what matters is the world they leave.
		_, _ = w.night(g)
		w.check()
	}
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
}

// TestFaultsOfCouchDB breaks each request that a day's life takes, one per run:
// not sent, done but not answered, and answered with 500.
func TestFaultsOfCouchDB(t *testing.T) {
	shared := newStores(t)
	requests := countRequests(t, shared)
	t.Logf("%d requests", requests)
	for name, how := range map[string]fault{"failed": fails, "unanswered": unanswered, "500": answers500} {
		for n := int64(1); n <= requests; n++ {
			if pgtest.LeftOut(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%02d", name, n), func(t *testing.T) {
				t.Parallel()
				life(t, shared, func(w *world) *Guard {
					return w.guard(parts{transport: &faultyTransport{decide: func(i int64, _ *http.Request) fault {
						if i == n {
							return how
						}
						return passes
					}}})
				})
			})
		}
	}
}

// countRequests returns how many requests a life without faults takes.
func countRequests(t *testing.T, shared *stores) int64 {
	t.Helper()
	counter := &faultyTransport{decide: func(int64, *http.Request) fault { return passes }}
	life(t, shared, func(w *world) *Guard { return w.guard(parts{transport: counter}) })
	return counter.n.Load()
}

// TestFaultsOfPostgres breaks each COMMIT that a day's life takes: rolled back,
// and committed but not answered.
func TestFaultsOfPostgres(t *testing.T) {
	shared := newStores(t)
	var commits int64
	life(t, shared, func(w *world) *Guard {
		proxy, dsn := pgtest.NewProxy(t, w.dsn)
		t.Cleanup(func() { commits = proxy.Commits() })
		g := w.guard(parts{dsn: dsn})
		proxy.OnCommit(func(n int64) pgtest.CommitFault { commits = n; return pgtest.CommitPasses })
		return g
	})
	t.Logf("%d commits", commits)
	for name, how := range map[string]pgtest.CommitFault{"failed": pgtest.CommitFails, "unanswered": pgtest.CommitUnanswered} {
		for n := int64(1); n <= commits; n++ {
			if pgtest.LeftOut(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%02d", name, n), func(t *testing.T) {
				t.Parallel()
				life(t, shared, func(w *world) *Guard {
					proxy, dsn := pgtest.NewProxy(t, w.dsn)
					g := w.guard(parts{dsn: dsn})
					proxy.OnCommit(func(i int64) pgtest.CommitFault {
						if i == n {
							return how
						}
						return pgtest.CommitPasses
					})
					return g
				})
			})
		}
	}
}
