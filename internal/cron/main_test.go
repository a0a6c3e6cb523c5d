package cron_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// TestMain is also the entry of the processes that the tests start, kill and stop.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(leaderVariable); dsn != "" {
		os.Exit(runLeader(dsn))
	}
	pgtest.Main(m)
}

// leaseTTL is long enough that no lease ends by itself, however busy the machine is; endLease ends one.
const leaseTTL = time.Minute

// newRegistry returns a registry of one replica. It is not started: the tests look by RunDue.
func newRegistry(t *testing.T, pool *pgxpool.Pool, jobs ...cron.Job) *cron.Registry {
	t.Helper()
	return newRegistryWith(t, cron.Options{Pool: pool}, jobs...)
}

func newRegistryWith(t *testing.T, opts cron.Options, jobs ...cron.Job) *cron.Registry {
	t.Helper()
	if opts.Leases == nil {
		opts.Leases = fence.New(opts.Pool, t.Name(), leaseTTL)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	registry, err := cron.New(opts, jobs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := registry.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return registry
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// countingJob is due every day at a time that was the given duration ago, and counts its runs.
func countingJob(t *testing.T, pool *pgxpool.Pool, name string, ago time.Duration, ran chan<- run.Run) cron.Job {
	t.Helper()
	return cron.Job{
		Name:     name,
		Schedule: dueBefore(t, pool, ago),
		Run: func(_ context.Context, r run.Run) error {
			ran <- r
			return nil
		},
	}
}

// dueBefore is the daily schedule, in UTC, whose last time was the given duration ago, give or take a minute.
func dueBefore(t *testing.T, pool *pgxpool.Pool, ago time.Duration) string {
	t.Helper()
	var at time.Time
	if err := pool.QueryRow(t.Context(), `select now() - $1::interval`, ago).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour())
}

// knownForDays makes the installation know the job in the zone for ten days.
func knownForDays(t *testing.T, pool *pgxpool.Pool, job, zone string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `insert into cron_starts (cron, zone, since) values ($1, $2, now() - interval '10 days')`, job, zone)
	if err != nil {
		t.Fatal(err)
	}
}

func runsOf(t *testing.T, registry *cron.Registry, name string) []cron.Run {
	t.Helper()
	runs, err := registry.Runs(t.Context(), cron.Filter{Cron: name})
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func runDue(t *testing.T, registry *cron.Registry, name string) {
	t.Helper()
	if err := registry.RunDue(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// register enters an active restaurant of the company "acme".
func register(t *testing.T, pool *pgxpool.Pool, restaurant, zone string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `insert into restaurants (company_id, restaurant_id, timezone, legacy_db) values ('acme', $1, $2, 'tables-test')`, restaurant, zone)
	if err != nil {
		t.Fatal(err)
	}
}
