package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBackupsByHand takes a dump of the server's database and proves it.
func TestBackupsByHand(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.BackupDir = filepath.Join(t.TempDir(), "dumps")
	a := started(t, opts)
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
