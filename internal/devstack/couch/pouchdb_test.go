package couch_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pouchDBTests is the folder of the tests that PouchDB 9 itself runs.
const pouchDBTests = "../../../test/pouchdb"

// TestPouchDB replicates with the real client. It needs Node 20 and, the first
// time, the npm registry.
func TestPouchDB(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs node in PATH: ", err)
	}
	installPouchDB(t)
	forEachTarget(t, func(t *testing.T, c target) {
		u, err := url.Parse(c.base)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(c.user, c.password)
		cmd := exec.Command(node, "--test", "--test-reporter=spec")
		cmd.Dir = pouchDBTests
		cmd.Env = append(os.Environ(), "COUCH_URL="+u.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// installPouchDB runs npm unless what is installed is what the lock file asks
// for.
func installPouchDB(t *testing.T) {
	t.Helper()
	lock, err := os.Stat(filepath.Join(pouchDBTests, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	installed, err := os.Stat(filepath.Join(pouchDBTests, "node_modules", ".package-lock.json"))
	if err == nil && !installed.ModTime().Before(lock.ModTime()) {
		return
	}
	npm := exec.Command("npm", "ci")
	npm.Dir = pouchDBTests
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}
