package cron_test

import (
	"context"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// TestPartialRunIsRepeated where a job asks for it: with a pause, until nothing
// is left out or the attempts are used up.
func TestPartialRunIsRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		repeat bool
		// whole is the attempt that leaves nothing out; 0 for none.
		whole int
		want  []int
	}{
		"not asked for": {want: []int{1, 1}},
		"never whole":   {repeat: true, want: []int{1, 2, 3, 3}},
		"whole at last": {repeat: true, whole: 2, want: []int{1, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			attempt := 0
			registry := newRegistry(t, pool, cron.Job{
				Name: "nightly", Schedule: dueBefore(t, pool, time.Hour), RepeatPartial: c.repeat,
				Run: func(_ context.Context, r run.Run) error {
					if attempt++; attempt != c.whole {
						r.Report.Fail(run.Failure{CompanyID: "acme", Step: "today", Error: "no CouchDB"})
					}
					return nil
				},
			})
			knownForDays(t, pool, "nightly", "UTC")
			for i, want := range c.want {
				runDue(t, registry, "nightly")
				runDue(t, registry, "nightly") // Too early.
				if runs := runsOf(t, registry, "nightly"); len(runs) != want {
					t.Fatalf("%d runs after look %d, want %d", len(runs), i+1, want)
				}
				rewrite(t, pool, `update cron_runs set finished_at = finished_at - interval '11 minutes'`)
			}
		})
	}
}
