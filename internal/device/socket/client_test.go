package socket_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/test/nodetest"
)

// TestOfficialClient has two replicas on one database. One gives a device no time for a fresh token, the other more than
// it needs on any machine.
func TestOfficialClient(t *testing.T) {
	pool := pgtest.New(t)
	leakFree(t)
	tokens := newGate()
	a, b := start(t, pool, tokens, time.Second), start(t, pool, tokens, time.Minute)
	control := httptest.NewServer(hand{pool: pool, gate: tokens})
	t.Cleanup(control.Close)
	nodetest.Run(t, "../../../test/socket",
		[]string{"SOCKET_A=" + a.url, "SOCKET_B=" + b.url, "CONTROL=" + control.URL}, "auth.test.js", "updates.test.js")
}

// leakFree fails a test that leaves goroutines behind.
func leakFree(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		left := goleak.Find(before)
		for began := time.Now(); left != nil && time.Since(began) < 30*time.Second; {
			left = goleak.Find(before)
		}
		if left != nil {
			t.Error(left)
		}
	})
}
