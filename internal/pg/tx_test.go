package pg_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// oneConnection returns a pool of one connection on a database with a table "facts", so that a transaction which is
// not ended blocks the test. The deferred foreign key is checked by the COMMIT.
func oneConnection(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), pgtest.EmptyDSN(t), pg.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `
		create table facts (
			id   int constraint facts_pkey primary key,
			of_fact int constraint facts_of_fact_fkey references facts deferrable initially deferred
		)`)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func count(t *testing.T, db pg.Querier) int {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), `select count(*) from facts`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `insert into facts (id) values (1)`)
	return err
}

func TestWithTxCommits(t *testing.T) {
	t.Parallel()
	pool := oneConnection(t)
	err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error { return insert(t.Context(), tx) })
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool); n != 1 {
		t.Errorf("%d rows after the commit, want 1", n)
	}
}

func TestWithTxRollsBack(t *testing.T) {
	t.Parallel()
	refusal := errors.New("refused")
	for name, fn := range map[string]func(ctx context.Context, cancel func(), tx pgx.Tx) error{
		"fn fails":          func(context.Context, func(), pgx.Tx) error { return refusal },
		"the context ended": func(_ context.Context, cancel func(), _ pgx.Tx) error { cancel(); return refusal },
		"the context cut it": func(ctx context.Context, cancel func(), tx pgx.Tx) error {
			cancel()
			return errors.Join(refusal, insert(ctx, tx))
		},
		"a statement failed": func(ctx context.Context, _ func(), tx pgx.Tx) error { return errors.Join(refusal, insert(ctx, tx)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := oneConnection(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := pg.WithTx(ctx, pool, func(tx pgx.Tx) error {
				if err := insert(ctx, tx); err != nil {
					return err
				}
				return fn(ctx, cancel, tx)
			})
			if !errors.Is(err, refusal) || errors.Is(err, pg.ErrUnavailable) || errors.Is(err, pg.ErrOutcomeUnknown) {
				t.Errorf("WithTx: %v, want the error of fn alone", err)
			}
			if n := count(t, pool); n != 0 {
				t.Errorf("%d rows after the rollback, want 0", n)
			}
		})
	}
}

func TestWithTxRollsBackOnPanic(t *testing.T) {
	t.Parallel()
	pool := oneConnection(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of fn was swallowed")
			}
		}()
		_ = pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error {
			if err := insert(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			panic("fn")
		})
	}()
	if n := count(t, pool); n != 0 {
		t.Errorf("%d rows after the panic, want 0", n)
	}
}

func TestCommitThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fn         func(ctx context.Context, tx pgx.Tx) error
		code       string
		constraint string
		is         error
	}{
		"a deferred constraint": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into facts (id, of_fact) values (1, 2)`)
				return err
			},
			code:       "23503",
			constraint: "facts_of_fact_fkey",
		},
		"an error that fn swallowed": {
			fn: func(ctx context.Context, tx pgx.Tx) error {
				_ = insert(ctx, tx)
				_ = insert(ctx, tx)
				return nil
			},
			is: pgx.ErrTxCommitRollback,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := oneConnection(t)
			err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error { return c.fn(t.Context(), tx) })
			if err == nil || errors.Is(err, pg.ErrOutcomeUnknown) || pg.Code(err) != c.code || pg.Constraint(err) != c.constraint {
				t.Errorf("WithTx: %v, want code %q of %q and a known outcome", err, c.code, c.constraint)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("WithTx: %v, want %v", err, c.is)
			}
			if n := count(t, pool); n != 0 {
				t.Errorf("%d rows, want 0", n)
			}
		})
	}
}

func TestLostConnectionIsUnavailable(t *testing.T) {
	t.Parallel()
	pool := oneConnection(t)
	admin := pgtest.Open(t, pool.Config().ConnString())
	for name, fn := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"at the next statement":  insert,
		"at the one after it":    func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx); return insert(ctx, tx) },
		"fn does not report it":  func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx); return nil },
		"fn reports another one": func(ctx context.Context, tx pgx.Tx) error { _ = insert(ctx, tx); return io.ErrNoProgress },
	} {
		t.Run(name, func(t *testing.T) {
			err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error {
				// The second argument waits until the session is gone.
				var gone bool
				err := admin.QueryRow(t.Context(), `select pg_terminate_backend($1, 25000)`, tx.Conn().PgConn().PID()).Scan(&gone)
				if err != nil || !gone {
					t.Fatalf("terminate: %t, %v", gone, err)
				}
				return fn(t.Context(), tx)
			})
			if !errors.Is(err, pg.ErrUnavailable) || errors.Is(err, pg.ErrOutcomeUnknown) {
				t.Errorf("WithTx: %v, want ErrUnavailable and a known outcome", err)
			}
			if n := count(t, pool); n != 0 {
				t.Errorf("%d rows, want 0", n)
			}
		})
	}
}
