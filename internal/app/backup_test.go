package app_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
)

// TestBackupsByHand takes a dump of the server's database and proves it.
func TestBackupsByHand(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.BackupDir = filepath.Join(t.TempDir(), "dumps")
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
	for _, cron := range []string{"backup-primary", "restore-test"} {
		if status, body := call(t, a, "POST", "/admin/crons/"+cron+"/run", `{"wait":true}`); status != 200 || !strings.Contains(body, `"state":"succeeded"`) {
			t.Fatalf("%s: %d %s", cron, status, body)
		}
	}
	files, err := os.ReadDir(opts.BackupDir)
	if err != nil || len(files) < 2 {
		t.Errorf("the folder holds %v: %v", files, err)
	}
}
