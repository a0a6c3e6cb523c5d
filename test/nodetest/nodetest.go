// Package nodetest runs the tests that are written in JavaScript, those of the
// official clients. They need Node 20 and, the first time, the npm registry.
package nodetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Run runs test files of the folder dir, all if none is named, with these
// environment variables.
func Run(t *testing.T, dir string, env []string, files ...string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs node in PATH: ", err)
	}
	install(t, dir)
	cmd := exec.CommandContext(t.Context(), node, append([]string{"--test", "--test-reporter=spec"}, files...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	t.Logf("%s", out)
}

// install runs npm unless what is installed is what the lock file asks for.
// Packages are tested side by side, so one of them does it.
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
