package api

import (
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/run"
)

func TestCheckOfACron(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 7, 0, 0, 0, time.UTC)
	failures := []run.Failure{{Step: "warm", Error: "first"}, {Step: "run", Error: "no CouchDB"}}
	for _, c := range []struct {
		name   string
		entry  cron.Entry
		status checkStatus
		says   string
	}{
		{"new", cron.Entry{NextRunAt: &at}, statusOK, "has not run yet"},
		{"well", cron.Entry{NextRunAt: &at, LastWholeRun: &cron.Run{ID: 7, State: cron.Succeeded, StartedAt: at}}, statusOK, "run 7 succeeded"},
		{"a narrower one since", cron.Entry{NextRunAt: &at, LastRun: &cron.Run{ID: 8, State: cron.Succeeded, StartedAt: at}, LastWholeRun: &cron.Run{ID: 7, State: cron.Failed, StartedAt: at, Failures: failures}}, statusFail, "run 7 failed"},
		{"partial", cron.Entry{NextRunAt: &at, LastWholeRun: &cron.Run{ID: 7, State: cron.Partial, StartedAt: at, Failures: failures}}, statusWarn, "failures: 2"},
		{"failed", cron.Entry{NextRunAt: &at, LastWholeRun: &cron.Run{ID: 7, State: cron.Failed, StartedAt: at, Failures: failures}}, statusFail, "run: no CouchDB"},
		{"paused", cron.Entry{Paused: true, Pause: &cron.Pause{Reason: "audit", Actor: "ana", Since: at}}, statusWarn, "paused by ana"},
	} {
		got := checkCron(c.entry)
		if got.Status != c.status || !strings.Contains(got.Detail, c.says) || got.Status != statusOK && got.Advice == "" {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
