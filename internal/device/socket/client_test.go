package socket_test

import (
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/test/nodetest"
)

// TestOfficialClient has two replicas on one database.
func TestOfficialClient(t *testing.T) {
	pool := pgtest.New(t)
	leakFree(t)
	tokens := newGate()
	a, b := start(t, pool, tokens), start(t, pool, tokens)
	control := httptest.NewServer(hand{pool: pool, gate: tokens})
	t.Cleanup(control.Close)
	nodetest.Run(t, "../../../test/socket",
		[]string{"SOCKET_A=" + a.url, "SOCKET_B=" + b.url, "CONTROL=" + control.URL}, "auth.test.js", "updates.test.js")
}

// leakFree fails a test that leaves goroutines behind.
func leakFree(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
