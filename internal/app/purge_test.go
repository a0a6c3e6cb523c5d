package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/backup"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// asked notes for how many seconds the hosted database was told to keep what is
// settled, and has nothing to delete.
type asked struct{ seconds []any }

func (a *asked) Call(_ context.Context, _ string, args map[string]any, into any) error {
	a.seconds = append(a.seconds, args["p_older_than_seconds"])
	return json.Unmarshal([]byte(`{"commands":0,"events":0,"snapshots":0}`), into)
}

func (a *asked) plane() *continuityPlane {
	return &continuityPlane{
		admin: &api.Continuity{Queue: hosted.NewQueue(a)}, outbox: hosted.NewOutbox(a), snapshots: hosted.NewSnapshots(a),
	}
}

// TestPurgeKeepsWhatABackupLacks: whatever backup of the primary is restored, the
// queue still has what was acked after it.
func TestPurgeKeepsWhatABackupLacks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	const day = 24 * time.Hour
	for _, c := range []struct {
		what string
		// ages of the backups; the oldest is removed by the next daily backup.
		ages  []time.Duration
		least time.Duration
	}{
		{"no backup", nil, 15 * day},
		{"a backup that the next one removes", []time.Duration{time.Hour, 14*day + 23*time.Hour}, 15 * day},
		{"backups have failed since", []time.Duration{40 * day}, 40 * day},
	} {
		dir := t.TempDir()
		for _, age := range c.ages {
			var at time.Time
			if err := pool.QueryRow(t.Context(), `select date_trunc('second', now() - $1::interval)`, age).Scan(&at); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("%s-%s", backup.PrimaryKind, at.UTC().Format("20060102T150405Z"))
			text, err := json.Marshal(backup.Manifest{Kind: backup.PrimaryKind, File: name + ".dump", TakenAt: at})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var hostedSide asked
		plane := hostedSide.plane()
		if err := plane.purgeJobs(pool, dir)[0].Run(t.Context(), run.Run{Report: &run.Report{}}); err != nil {
			t.Fatal(err)
		}
		// For what is settled, what nobody takes, orders and payments.
		if len(hostedSide.seconds) != 4 || slices.ContainsFunc(hostedSide.seconds, func(s any) bool { return s.(int64) < int64(c.least.Seconds()) }) {
			t.Errorf("%s: what is settled is kept for %v seconds, want %v", c.what, hostedSide.seconds, c.least.Seconds())
		}
	}
	// A damaged manifest may be that of the oldest backup.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "primary-20261101T063000Z.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hostedSide asked
	plane := hostedSide.plane()
	if err := plane.purgeJobs(pool, dir)[0].Run(t.Context(), run.Run{Report: &run.Report{}}); err == nil || len(hostedSide.seconds) > 0 {
		t.Errorf("with a damaged manifest it asked %v: %v", hostedSide.seconds, err)
	}
}
