package app_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
)

// socketTests is the folder of the tests that the official client runs.
const socketTests = "../../test/socket"

// TestSocketAcrossReplicas has two servers on the same stores. It needs Node 20
// and, the first time, the npm registry.
func TestSocketAcrossReplicas(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("this test needs node in PATH: ", err)
	}
	if _, err := os.Stat(filepath.Join(socketTests, "node_modules", ".package-lock.json")); err != nil {
		npm := exec.CommandContext(t.Context(), "npm", "ci")
		npm.Dir = socketTests
		if out, err := npm.CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, out)
		}
	}
	opts := deviceOptions(t)
	var replicas []*app.App
	for range 2 {
		a, err := app.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := a.Stop(ctx); err != nil {
				t.Error("stop: ", err)
			}
		})
		replicas = append(replicas, a)
	}
	cmd := exec.CommandContext(t.Context(), node, "--test", "--test-reporter=spec", "admin.test.js")
	cmd.Dir = socketTests
	cmd.Env = append(os.Environ(), "ADMIN_TOKEN="+token,
		"SOCKET_A=http://"+replicas[0].Addr(), "SOCKET_B=http://"+replicas[1].Addr())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
