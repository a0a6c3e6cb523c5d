package socket_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// clientTests is the folder of the tests that the official client runs.
const clientTests = "../../../test/socket"

// TestOfficialClient has two replicas on one database. It needs Node 20 and, the
// first time, the npm registry.
func TestOfficialClient(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs node in PATH: ", err)
	}
	installClient(t)
	t.Run("two replicas", func(t *testing.T) {
		pool := pgtest.New(t)
		tokens := newGate()
		a, b := start(t, pool, tokens), start(t, pool, tokens)
		control := httptest.NewServer(hand{pool: pool, gate: tokens})
		t.Cleanup(control.Close)
		cmd := exec.CommandContext(t.Context(), node, "--test", "--test-reporter=spec", "auth.test.js", "updates.test.js")
		cmd.Dir = clientTests
		cmd.Env = append(os.Environ(), "SOCKET_A="+a.url, "SOCKET_B="+b.url, "CONTROL="+control.URL)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		} else {
			t.Logf("%s", out)
		}
	})
}

// installClient runs npm unless what is installed is what the lock file asks for.
func installClient(t *testing.T) {
	t.Helper()
	lock, err := os.Stat(filepath.Join(clientTests, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	installed, err := os.Stat(filepath.Join(clientTests, "node_modules", ".package-lock.json"))
	if err == nil && !installed.ModTime().Before(lock.ModTime()) {
		return
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci")
	npm.Dir = clientTests
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}

// leakFree fails a test that leaves goroutines behind.
func leakFree(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
