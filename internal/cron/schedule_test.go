package cron_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

func TestNewInstallationMissedNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 10)
	registry := newRegistry(t, pool, countingJob(t, pool, "nightly", time.Hour, ran))
	runDue(t, registry, "nightly")
	runDue(t, registry, "nightly")
	if len(ran) != 0 {
		t.Errorf("%d runs of a scheduled time before the installation", len(ran))
	}
}

func TestMissedTimesAreCaughtUpOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 10)
	registry := newRegistry(t, pool, countingJob(t, pool, "nightly", time.Hour, ran))
	knownForDays(t, pool, "nightly", "UTC")
	for range 3 {
		runDue(t, registry, "nightly")
	}
	runs := runsOf(t, registry, "nightly")
	if len(ran) != 1 || len(runs) != 1 {
		t.Fatalf("ten missed times made %d runs, %d on record", len(ran), len(runs))
	}
	got := runs[0]
	if got.Trigger != cron.TriggerCatchUp || got.State != cron.Succeeded || got.FinishedAt == nil || got.Actor != "cron" || got.Token == 0 {
		t.Errorf("run is %+v", got)
	}
	if late := got.StartedAt.Sub(*got.DueAt); late < 58*time.Minute || late > 62*time.Minute {
		t.Errorf("run is of a time %s ago, not of the last", late)
	}
}

func TestCatchUpCanBeLeftOut(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 10)
	late := countingJob(t, pool, "late", time.Hour, ran)
	onTime := countingJob(t, pool, "on-time", time.Minute, ran)
	registry := newRegistryWith(t, cron.Options{Pool: pool, NoCatchUp: true}, late, onTime)
	for _, name := range []string{"late", "on-time"} {
		knownForDays(t, pool, name, "UTC")
		runDue(t, registry, name)
	}
	if runs := runsOf(t, registry, "late"); len(runs) != 0 {
		t.Errorf("caught up: %+v", runs)
	}
	if runs := runsOf(t, registry, "on-time"); len(runs) != 1 || runs[0].Trigger != cron.TriggerSchedule {
		t.Errorf("on time: %+v", runs)
	}
}

func TestTwoReplicasRunATimeOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 100)
	job := countingJob(t, pool, "nightly", time.Hour, ran)
	replicas := []*cron.Registry{newRegistry(t, pool, job), newRegistry(t, pool, job)}
	knownForDays(t, pool, "nightly", "UTC")
	var all errgroup.Group
	for range 10 {
		for _, replica := range replicas {
			all.Go(func() error { return replica.RunDue(t.Context(), "nightly") })
		}
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(ran) != 1 {
		t.Errorf("%d runs of one scheduled time", len(ran))
	}
}

// TestZonesHaveTheirOwnRuns also has a zone that does not exist, which must not keep the others from their runs, and one
// that appears later.
func TestZonesHaveTheirOwnRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 10)
	job := countingJob(t, pool, "nightly", 30*time.Minute, ran)
	job.PerZone = true // No zone is off by half an hour: at this minute, none of them is about to be due.
	registry := newRegistry(t, pool, job)
	register(t, pool, "north", "America/Santiago")
	register(t, pool, "south", "America/Punta_Arenas")
	register(t, pool, "nowhere", "America/Nowhere")
	for _, zone := range []string{"America/Santiago", "America/Punta_Arenas", "Pacific/Easter"} {
		knownForDays(t, pool, "nightly", zone)
	}
	expect := func(want ...string) {
		t.Helper()
		runDue(t, registry, "nightly")
		for _, zone := range want {
			if got := <-ran; got.Zone != zone {
				t.Errorf("run of %q, want %q", got.Zone, zone)
			}
		}
		if len(ran) != 0 {
			t.Errorf("%d more runs", len(ran))
		}
	}
	expect("America/Punta_Arenas", "America/Santiago")
	register(t, pool, "island", "Pacific/Easter")
	expect("Pacific/Easter")
	expect()
}

// TestZoneOfALeftDay: a restaurant that was closed still has days to archive and to drop.
func TestZoneOfALeftDay(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	registry := newRegistry(t, pool, cron.Job{
		Name: "nightly", Schedule: "0 5 * * *", PerZone: true,
		Run: func(context.Context, run.Run) error { return nil },
	})
	register(t, pool, "north", "America/Santiago")
	register(t, pool, "island", "Pacific/Easter")
	if _, err := pool.Exec(t.Context(), `update restaurants set active = false`); err != nil {
		t.Fatal(err)
	}
	_, err := pool.Exec(t.Context(), `
		with day as (
		  insert into day_databases (company_id, restaurant_id, business_day, db_name, fencing_token)
		  values ('acme', 'island', '2026-11-29', 'test_acme_island_daily_20261129', 1)
		  returning id)
		insert into day_database_transitions (day_database_id, to_state, event, actor, token)
		select id, 'PREWARMED', 'prewarm', 'test', 1 from day`)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := registry.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Zone != "Pacific/Easter" || entries[0].NextRunAt == nil {
		t.Errorf("entries are %+v", entries)
	}
}

func TestHowARunEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		limit    time.Duration
		run      func(ctx context.Context, r run.Run) error
		state    cron.State
		step     string
		contains string
	}{
		{"succeeded", 0, func(context.Context, run.Run) error { return nil }, cron.Succeeded, "", ""},
		{"partial", 0, func(_ context.Context, r run.Run) error {
			r.Report.Fail(run.Failure{CompanyID: "acme", Step: "warm", Error: "id a\x00b"})
			return nil
		}, cron.Partial, "warm", "id a\u2400b"},
		{"failed", 0, func(context.Context, run.Run) error { return errors.New("no CouchDB") }, cron.Failed, "run", "no CouchDB"},
		{"panicked", 0, func(context.Context, run.Run) error { panic("nil map") }, cron.Failed, "panic", "panic: nil map"},
		{"took too long", 10 * time.Millisecond, func(ctx context.Context, _ run.Run) error {
			<-ctx.Done()
			return ctx.Err()
		}, cron.Failed, "timeout", "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			registry := newRegistry(t, pool, cron.Job{
				Name: "nightly", Schedule: dueBefore(t, pool, time.Hour), MaxDuration: c.limit,
				Run: func(ctx context.Context, r run.Run) error {
					r.Report.Add("documents", 7)
					return c.run(ctx, r)
				},
			})
			knownForDays(t, pool, "nightly", "UTC")
			runDue(t, registry, "nightly")
			runDue(t, registry, "nightly")
			runs := runsOf(t, registry, "nightly")
			if len(runs) != 1 {
				t.Fatalf("%d runs", len(runs))
			}
			got := runs[0]
			if got.State != c.state || got.FinishedAt == nil || got.Counters["documents"] != 7 {
				t.Errorf("run is %+v", got)
			}
			if c.step == "" {
				if len(got.Failures) != 0 {
					t.Errorf("failures: %+v", got.Failures)
				}
				return
			}
			if len(got.Failures) != 1 || got.Failures[0].Step != c.step || !strings.Contains(got.Failures[0].Error, c.contains) || strings.Contains(got.Failures[0].Error, ".go:") {
				t.Errorf("failures: %+v", got.Failures)
			}
		})
	}
}

// TestFailedRunIsRepeatedWithAPause moves the end of the failed runs into the past, as nothing but a test can.
func TestFailedRunIsRepeatedWithAPause(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	registry := newRegistry(t, pool, cron.Job{
		Name: "nightly", Schedule: dueBefore(t, pool, time.Hour),
		Run: func(context.Context, run.Run) error { return errors.New("no CouchDB") },
	})
	knownForDays(t, pool, "nightly", "UTC")
	for _, want := range []int{1, 2, 3, 3} {
		runDue(t, registry, "nightly")
		runDue(t, registry, "nightly")
		if runs := runsOf(t, registry, "nightly"); len(runs) != want {
			t.Fatalf("%d runs, want %d", len(runs), want)
		}
		rewrite(t, pool, `update cron_runs set finished_at = finished_at - interval '11 minutes'`)
	}
}

func TestEndedRunIsFinal(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	registry := newRegistry(t, pool, countingJob(t, pool, "nightly", time.Hour, make(chan run.Run, 1)))
	knownForDays(t, pool, "nightly", "UTC")
	runDue(t, registry, "nightly")
	if _, err := pool.Exec(t.Context(), `update cron_runs set state = 'failed'`); err == nil {
		t.Error("a run that has ended was rewritten")
	}
}

// TestStopCutsARunOffAndItIsCaughtUp is a deployment in the middle of a run.
func TestStopCutsARunOffAndItIsCaughtUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	running := make(chan struct{})
	job := cron.Job{
		Name: "nightly", Schedule: dueBefore(t, pool, time.Minute),
		Run: func(ctx context.Context, _ run.Run) error {
			close(running)
			<-ctx.Done()
			return ctx.Err()
		},
	}
	knownForDays(t, pool, "nightly", "UTC")
	first := newRegistry(t, pool, job)
	first.Start()
	<-running
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Trigger(t.Context(), "nightly", cron.Request{}); !errors.Is(err, cron.ErrStopped) {
		t.Errorf("a run after the stop: %v", err)
	}
	ran := make(chan run.Run, 1)
	job.Run = func(_ context.Context, r run.Run) error { ran <- r; return nil }
	second := newRegistry(t, pool, job)
	second.Start()
	<-ran
	if err := second.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs := runsOf(t, second, "nightly")
	if len(runs) != 2 || runs[1].State != cron.Failed || runs[1].Failures[0].Step != "stop" || runs[0].Trigger != cron.TriggerCatchUp {
		t.Errorf("runs are %+v", runs)
	}
	if !runs[0].DueAt.Equal(*runs[1].DueAt) {
		t.Errorf("caught up %s instead of %s", runs[0].DueAt, runs[1].DueAt)
	}
}

// TestLostLeaseEndsTheRun takes the lease away from a run, as a database that was restored might.
func TestLostLeaseEndsTheRun(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	running := make(chan struct{}, 1)
	causes := make(chan error, 1)
	job := cron.Job{
		Name: "nightly", Schedule: dueBefore(t, pool, time.Hour),
		Run: func(ctx context.Context, _ run.Run) error {
			running <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		},
	}
	knownForDays(t, pool, "nightly", "UTC")
	first := newRegistryWith(t, cron.Options{Pool: pool, Leases: fence.New(pool, "first", 3*time.Second)}, job)
	first.Start()
	<-running
	if _, err := pool.Exec(t.Context(), `update leases set expires_at = now()`); err != nil {
		t.Fatal(err)
	}
	if cause := <-causes; !errors.Is(cause, fence.ErrLost) {
		t.Errorf("context ended with %v", cause)
	}
}
