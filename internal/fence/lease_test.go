package fence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

const (
	long  = time.Minute
	short = 300 * time.Millisecond
)

func acquire(t *testing.T, leases *fence.Leases, name string) fence.Lease {
	t.Helper()
	lease, err := leases.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// check runs Lease.Check in a transaction of its own.
func check(t *testing.T, pool *pgxpool.Pool, lease fence.Lease) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return lease.Check(t.Context(), tx) })
}

// end ends the lease of this name, as time would. One that must be alive until
// the test has got as far lasts for long: the machine may stall meanwhile.
func end(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `update leases set expires_at = now() where name = $1`, name); err != nil {
		t.Fatal(err)
	}
}

// ends waits, by Postgres' clock, until the lease of this name has ended.
func ends(t *testing.T, pool *pgxpool.Pool, name string) {
	t.Helper()
	for ended := false; !ended; {
		err := pool.QueryRow(t.Context(), `select expires_at <= now() from leases, pg_sleep_until(expires_at) where name = $1`, name).Scan(&ended)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLeaseIsHeld(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ana, ben := fence.New(pool, "ana", long), fence.New(pool, "ben", long)
	lease := acquire(t, ana, "sweep")
	for _, other := range []*fence.Leases{ana, ben} {
		_, err := other.Acquire(t.Context(), "sweep")
		var held *fence.HeldError
		if !errors.As(err, &held) || !errors.Is(err, fence.ErrHeld) || held.Holder != "ana" || held.Name != "sweep" || held.ExpiresAt.IsZero() {
			t.Errorf("second Acquire: %v", err)
		}
	}
	if other := acquire(t, ben, "archive"); other.Token <= lease.Token {
		t.Errorf("token %d of another lease, after %d", other.Token, lease.Token)
	}
	if err := check(t, pool, lease); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestReleasedLeaseIsFree(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ana, ben := fence.New(pool, "ana", long), fence.New(pool, "ben", long)
	first := acquire(t, ana, "sweep")
	if err := ana.Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := check(t, pool, first); !errors.Is(err, fence.ErrLost) {
		t.Errorf("Check after Release: %v", err)
	}
	second := acquire(t, ben, "sweep")
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	// The former holder gives back what is no longer its own.
	if err := ana.Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := check(t, pool, second); err != nil {
		t.Errorf("Check of the new lease after the old one's Release: %v", err)
	}
}

func TestExpiredLeasePassesOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	first := acquire(t, fence.New(pool, "ana", short), "sweep")
	ends(t, pool, "sweep")
	if err := check(t, pool, first); !errors.Is(err, fence.ErrLost) {
		t.Errorf("Check of an expired lease that nobody took: %v", err)
	}
	second := acquire(t, fence.New(pool, "ben", long), "sweep")
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	if err := check(t, pool, first); !errors.Is(err, fence.ErrLost) {
		t.Errorf("Check of a lease that passed on: %v", err)
	}
}

// TestOneWins lets many ask at once for a lease that nobody ever had, and for one that has expired.
func TestOneWins(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for range 2 {
		won := make(chan fence.Lease, 20)
		var all errgroup.Group
		for range 20 {
			all.Go(func() error {
				lease, err := fence.New(pool, "one of many", short).Acquire(t.Context(), "sweep")
				if err == nil {
					won <- lease
				}
				if errors.Is(err, fence.ErrHeld) {
					return nil
				}
				return err
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		close(won)
		last := int64(0)
		for lease := range won {
			// On a slow machine the first may have expired before the last has asked.
			if err := check(t, pool, lease); err == nil && last != 0 {
				t.Error("two leases are alive")
			} else if err == nil {
				last = lease.Token
			}
		}
		ends(t, pool, "sweep")
	}
}

// TestTakeOverWaitsForACheckedTransaction: between Check and commit nobody else becomes the holder, even if the lease
// ends meanwhile.
func TestTakeOverWaitsForACheckedTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	first := acquire(t, fence.New(pool, "ana", long), "sweep")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if err := first.Check(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	end(t, pool, "sweep")
	taken := make(chan error, 1)
	go func() {
		_, err := fence.New(pool, "ben", long).Acquire(t.Context(), "sweep")
		taken <- err
	}()
	for waiting := false; !waiting; {
		err := pool.QueryRow(t.Context(), `
			select exists (
			  select from pg_stat_activity
			  where datname = current_database() and wait_event_type = 'Lock' and query like '%for update%')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-taken:
			t.Fatalf("taken over in the middle of a transaction: %v", err)
		default:
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Errorf("after the commit: %v", err)
	}
}

// TestHoldRenews lets a lease outlast its first life, which is one that a machine
// can stall in for a while: of the renewals within it, the last one is enough.
func TestHoldRenews(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const life = 9 * time.Second
	err := fence.New(pool, "ana", life).Hold(t.Context(), "sweep", func(ctx context.Context, lease fence.Lease) error {
		_, err := pool.Exec(ctx, `select pg_sleep_until(acquired_at + $2) from leases where name = $1`, lease.Name, life)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return lease.Check(ctx, tx) })
	})
	if err != nil {
		t.Errorf("Hold: %v", err)
	}
	acquire(t, fence.New(pool, "ben", long), "sweep")
}

// TestHoldGivesBack whatever happens to the job.
func TestHoldGivesBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	leases := fence.New(pool, "ana", long)
	failure := errors.New("no CouchDB")
	err := leases.Hold(t.Context(), "sweep", func(context.Context, fence.Lease) error { return failure })
	if !errors.Is(err, failure) || errors.Is(err, fence.ErrLost) {
		t.Errorf("Hold: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = leases.Hold(ctx, "sweep", func(ctx context.Context, _ fence.Lease) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Hold of a job that was cancelled: %v", err)
	}
	func() {
		defer func() { recover() }()
		leases.Hold(t.Context(), "sweep", func(context.Context, fence.Lease) error { panic("nil map") })
	}()
	acquire(t, leases, "sweep")
}

func TestLossEndsTheJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	err := fence.New(pool, "ana", short).Hold(t.Context(), "sweep", func(ctx context.Context, lease fence.Lease) error {
		if _, err := pool.Exec(ctx, `update leases set expires_at = now()`); err != nil {
			return err
		}
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, fence.ErrLost) {
			t.Errorf("the job's context ended with %v", cause)
		}
		return ctx.Err()
	})
	if !errors.Is(err, fence.ErrLost) {
		t.Errorf("Hold: %v", err)
	}
}

func TestHoldWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	ana, ben := fence.New(pool, "ana", long), fence.New(pool, "ben", long)
	lease := acquire(t, ana, "sweep")
	work := func(context.Context, fence.Lease) error { return nil }
	if err := ben.HoldWait(t.Context(), "sweep", 0, work); !errors.Is(err, fence.ErrHeld) {
		t.Errorf("without patience: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if err := ben.HoldWait(ctx, "sweep", long, work); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("patience that outlasts the context: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- ben.HoldWait(t.Context(), "sweep", long, work) }()
	if err := ana.Release(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("after the release: %v", err)
	}
}

// A holder that is suspended within a transaction keeps its lease past its end:
// until Postgres ends its session, whoever asks is told that it is held.
func TestLeaseOfAnOpenTransactionIsHeld(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	pool := pgtest.Open(t, dsn)
	lease := acquire(t, fence.New(pool, "ana", long), "sweep")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Check(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	end(t, pool, "sweep")

	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "100ms"
	impatient, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer impatient.Close()
	ben := fence.New(impatient, "ben", long)
	var held *fence.HeldError
	if _, err := ben.Acquire(t.Context(), "sweep"); !errors.As(err, &held) || held.Holder != "ana" || held.Name != "sweep" {
		t.Errorf("Acquire: %v", err)
	}
	if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	acquire(t, ben, "sweep")
}
