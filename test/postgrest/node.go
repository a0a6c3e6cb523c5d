package postgresttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Run runs the tests of Supabase's client against the server at url. dir is the path to this folder; it needs Node 20 and,
// the first time, the npm registry.
func Run(t *testing.T, dir, url string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs node in PATH: ", err)
	}
	install(t, dir)
	cmd := exec.CommandContext(t.Context(), node, "--test", "--test-reporter=spec", "rpc.test.js")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"POSTGREST_URL="+url,
		"SECRET_KEY="+SecretKey,
		"PUBLISHABLE_KEY="+PublishableKey,
		"SERVICE_JWT="+ServiceJWT,
		"ANON_JWT="+AnonJWT,
		"AUTHENTICATED_JWT="+AuthenticatedJWT)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	t.Logf("%s", out)
}

// install runs npm unless what is installed is what the lock file asks for.
func install(t *testing.T, dir string) {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	lock, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	installed, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json"))
	if err == nil && !installed.ModTime().Before(lock.ModTime()) {
		return
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}
