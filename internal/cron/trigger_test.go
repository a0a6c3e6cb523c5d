package cron_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// rewrite changes rows past the triggers that forbid it.
func rewrite(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local session_replication_role = replica`); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), sql)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// gatedJob tells when it runs, and goes on when it is let.
func gatedJob(schedule string) (job cron.Job, running chan run.Run, gate chan struct{}) {
	running, gate = make(chan run.Run, 1), make(chan struct{})
	return cron.Job{
		Name: "nightly", Schedule: schedule,
		Run: func(ctx context.Context, r run.Run) error {
			running <- r
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}, running, gate
}

func TestManualAndScheduledRunsDoNotOverlap(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	job, running, gate := gatedJob(dueBefore(t, pool, time.Hour))
	first, second := newRegistry(t, pool, job), newRegistry(t, pool, job)
	first.Start() // Nothing is due: the installation is new.
	second.Start()
	runDue(t, first, "nightly") // The zone is on record from here on.
	manual, err := first.Trigger(t.Context(), "nightly", cron.Request{Actor: "ana"})
	if err != nil {
		t.Fatal(err)
	}
	if todo := <-running; todo.ID != manual.ID || todo.Actor != "ana" || todo.Zone != "" || todo.Lease.Token != manual.Token {
		t.Errorf("the job was given %+v for %+v", todo, manual)
	}
	rewrite(t, pool, `update cron_starts set since = now() - interval '10 days'`)
	for _, replica := range []*cron.Registry{first, second} {
		runDue(t, replica, "nightly")
		_, err := replica.Trigger(t.Context(), "nightly", cron.Request{Actor: "ben"})
		var overlap *cron.RunningError
		if !errors.As(err, &overlap) || overlap.RunID != manual.ID {
			t.Errorf("second manual run: %v", err)
		}
	}
	entries, err := second.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := entries[0]; !e.Running || e.RunningRunID == nil || *e.RunningRunID != manual.ID || e.LastRun == nil || e.LastRun.ID != manual.ID {
		t.Errorf("entry is %+v", e)
	}
	close(gate)
	for len(runsOf(t, second, "nightly")) < 2 && t.Context().Err() == nil {
		if deadline, bounded := t.Deadline(); bounded && time.Until(deadline) < time.Minute {
			t.Fatal("what was due while the manual run went on is never caught up")
		}
		runDue(t, second, "nightly")
	}
	runs := runsOf(t, second, "nightly")
	if len(runs) != 2 || runs[0].Trigger != cron.TriggerCatchUp || runs[1].State != cron.Succeeded || runs[1].Trigger != cron.TriggerManual {
		t.Errorf("runs are %+v", runs)
	}
}

func TestManualRunThatWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	register(t, pool, "north", "America/Santiago")
	registry := newRegistry(t, pool, cron.Job{
		Name: "nightly", Schedule: dueBefore(t, pool, 30*time.Minute), PerZone: true,
		Run: func(_ context.Context, r run.Run) error {
			r.Report.Add("documents", 3)
			return nil
		},
	})
	registry.Start()
	scope := run.Scope{CompanyID: "acme", RestaurantID: "north"}
	got, err := registry.Trigger(t.Context(), "nightly", cron.Request{Actor: "ana", Scope: scope, DryRun: true, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	narrow := got
	if got, err = registry.Trigger(t.Context(), "nightly", cron.Request{Actor: "ana", Wait: true}); err != nil {
		t.Fatal(err)
	}
	whole := got.ID
	if got, err = registry.Trigger(t.Context(), "nightly", cron.Request{Actor: "ana", DryRun: true, Wait: true}); err != nil {
		t.Fatal(err)
	}
	entries, err := registry.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := entries[0]; e.LastRun == nil || e.LastRun.ID != got.ID || e.LastWholeRun == nil || e.LastWholeRun.ID != whole {
		t.Errorf("of the runs %d, %d and %d the last is %+v, the last whole one %+v", narrow.ID, whole, got.ID, e.LastRun, e.LastWholeRun)
	}
	got = narrow
	if got.State != cron.Succeeded || got.Counters["documents"] != 3 || got.Scope != scope || !got.DryRun || got.DueAt != nil || got.Zone != nil {
		t.Errorf("run is %+v", got)
	}
}

// TestCallerHangsUp: the run is not the request's, and goes on.
func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	job, running, gate := gatedJob(dueBefore(t, pool, 30*time.Minute))
	registry := newRegistry(t, pool, job)
	registry.Start()
	ctx, hangUp := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := registry.Trigger(ctx, "nightly", cron.Request{Actor: "ana", Wait: true})
		answered <- err
	}()
	todo := <-running
	hangUp()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("answer is %v", err)
	}
	close(gate)
	for {
		got, err := registry.Run(t.Context(), todo.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.State == cron.Succeeded {
			return
		}
		if got.State != cron.Running {
			t.Fatalf("run is %+v", got)
		}
	}
}

func TestTriggerRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	register(t, pool, "north", "America/Santiago")
	errDay := errors.New("the day is over")
	registry := newRegistry(t, pool, cron.Job{
		Name: "nightly", Schedule: dueBefore(t, pool, 30*time.Minute),
		Check: func(_ context.Context, s run.Scope, _ bool) error {
			if !s.BusinessDay.IsZero() {
				return errDay
			}
			return nil
		},
		Run: func(context.Context, run.Run) error { t.Error("it ran"); return nil },
	})
	registry.Start()
	for _, c := range []struct {
		name  string
		cron  string
		scope string
		is    error
		field string
	}{
		{name: "unknown cron", cron: "daily", is: cron.ErrUnknownCron},
		{name: "unknown company", cron: "nightly", scope: `{"companyId":"acmee"}`, field: "companyId"},
		{name: "unknown restaurant", cron: "nightly", scope: `{"companyId":"acme","restaurantId":"nord"}`, field: "restaurantId"},
		{name: "restaurant of nobody", cron: "nightly", scope: `{"restaurantId":"north"}`, field: "companyId"},
		{name: "what the job refuses", cron: "nightly", scope: `{"businessDay":"20261130"}`, is: errDay},
	} {
		t.Run(c.name, func(t *testing.T) {
			var scope run.Scope
			if c.scope != "" {
				mustUnmarshal(t, c.scope, &scope)
			}
			_, err := registry.Trigger(t.Context(), c.cron, cron.Request{Actor: "ana", Scope: scope})
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error is %v, want %v", err, c.is)
			}
			var scopeErr *cron.ScopeError
			if c.field != "" && (!errors.As(err, &scopeErr) || scopeErr.Field != c.field) {
				t.Errorf("error is %v, want one of %s", err, c.field)
			}
		})
	}
	if runs := runsOf(t, registry, ""); len(runs) != 0 {
		t.Errorf("runs are %+v", runs)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ran := make(chan run.Run, 10)
	registry := newRegistry(t, pool, countingJob(t, pool, "nightly", time.Hour, ran))
	registry.Start()
	if err := registry.Pause(t.Context(), "nightly", "audit", "ana"); err != nil {
		t.Fatal(err)
	}
	rewrite(t, pool, `insert into cron_starts (cron, zone, since) values ('nightly', 'UTC', now() - interval '10 days')
		on conflict on constraint cron_starts_pkey do update set since = excluded.since`)
	runDue(t, registry, "nightly")
	_, err := registry.Trigger(t.Context(), "nightly", cron.Request{Actor: "ben"})
	var paused *cron.PausedError
	if !errors.As(err, &paused) || paused.Reason != "audit" || paused.Actor != "ana" {
		t.Errorf("manual run: %v", err)
	}
	entries, err := registry.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := entries[0]; !e.Paused || e.Pause.Reason != "audit" || e.NextRunAt != nil || e.Running {
		t.Errorf("entry is %+v", e)
	}
	if len(ran) != 0 {
		t.Error("it ran while it was paused")
	}
	if err := registry.Resume(t.Context(), "nightly", "ana"); err != nil {
		t.Fatal(err)
	}
	runDue(t, registry, "nightly")
	if len(ran) != 1 {
		t.Errorf("%d runs after the pause, want the one that was missed", len(ran))
	}
	if err := registry.Pause(t.Context(), "daily", "audit", "ana"); !errors.Is(err, cron.ErrUnknownCron) {
		t.Errorf("pause of an unknown cron: %v", err)
	}
}

func TestRegistrationIsChecked(t *testing.T) {
	t.Parallel()
	good := cron.Job{Name: "nightly", Schedule: "0 5 * * *", Run: func(context.Context, run.Run) error { return nil }}
	nameless, idle, odd := good, good, good
	nameless.Name, idle.Run, odd.Schedule = "", nil, "@every 1h"
	for _, jobs := range [][]cron.Job{{nameless}, {idle}, {odd}, {good, good}} {
		if _, err := cron.New(cron.Options{}, jobs...); err == nil {
			t.Errorf("accepted: %+v", jobs)
		}
	}
}

// TestStopLeavesNothingBehind is not parallel, so that no other test's goroutines come and go meanwhile.
func TestStopLeavesNothingBehind(t *testing.T) {
	pool := pgtest.New(t)
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	job, running, _ := gatedJob(dueBefore(t, pool, 30*time.Minute))
	registry := newRegistry(t, pool, job)
	registry.Start()
	if _, err := registry.Trigger(t.Context(), "nightly", cron.Request{Actor: "ana"}); err != nil {
		t.Fatal(err)
	}
	<-running
	if err := registry.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	left := goleak.Find(before)
	for began := time.Now(); left != nil && time.Since(began) < 30*time.Second; {
		left = goleak.Find(before)
	}
	if left != nil {
		t.Error(left)
	}
}
