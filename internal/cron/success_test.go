package cron

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// TestLastSuccessIsThatOfTheWorstZone: nights that fail in one zone show, however
// good they are in the others.
func TestLastSuccessIsThatOfTheWorstZone(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	job := Job{Name: "nightly", Schedule: "0 5 * * *", PerZone: true, Run: func(context.Context, run.Run) error { return nil }}
	metrics := prometheus.NewRegistry()
	r, err := New(Options{Pool: pool, Leases: fence.New(pool, "test", time.Minute), Logger: slog.New(slog.DiscardHandler), Metrics: metrics}, job)
	if err != nil {
		t.Fatal(err)
	}
	for restaurant, zone := range map[string]string{"r1": "America/Santiago", "r2": "Pacific/Easter"} {
		exec(t, pool, `insert into restaurants (company_id, restaurant_id, timezone, legacy_db) values ('acme', $1, $2, 'tables-test')`, restaurant, zone)
		exec(t, pool, `insert into cron_starts (cron, zone, since) values ('nightly', $1, now() - interval '90 hours')`, zone)
	}
	ended := func(zone any, state, scope string, hoursAgo int) {
		t.Helper()
		exec(t, pool, `
			insert into cron_runs (cron, zone, due_at, trigger, actor, scope, state, token, started_at, finished_at)
			select 'nightly', $1::text, case when $1::text is not null then ended end, case when $1::text is null then 'manual' else 'schedule' end,
			       'test', $3::jsonb, $2, 1, ended, ended
			from (select now() - make_interval(hours => $4) as ended) e`, zone, state, scope, hoursAgo)
	}
	want := func(hoursAgo float64, when string) {
		t.Helper()
		if err := r.tellLastSuccess(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "rollingd_cron_last_success_timestamp_seconds" {
				continue
			}
			at := time.Unix(int64(f.GetMetric()[0].GetGauge().GetValue()), 0)
			if got := time.Since(at).Hours(); got < hoursAgo-0.2 || got > hoursAgo+0.2 {
				t.Errorf("%s: the last success was %.1f hours ago, want %.0f", when, got, hoursAgo)
			}
			return
		}
		t.Errorf("%s: no gauge", when)
	}
	want(90, "before the first success")
	ended("America/Santiago", "succeeded", "{}", 60)
	ended("Pacific/Easter", "succeeded", "{}", 58)
	ended("America/Santiago", "partial", "{}", 12)
	ended("Pacific/Easter", "succeeded", "{}", 10)
	want(60, "one zone fails")
	ended(nil, "succeeded", `{"companyId": "acme"}`, 3)
	want(60, "a canary succeeds")
	ended(nil, "succeeded", "{}", 2)
	want(2, "somebody ran it for all")
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
