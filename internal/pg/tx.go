package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// rollbackTimeout bounds the clean-up of a transaction whose own context may have ended already.
const rollbackTimeout = 5 * time.Second

// ErrOutcomeUnknown means that the connection went away between the COMMIT and its answer: the transaction may have
// been committed or not. Only reading again can tell.
var ErrOutcomeUnknown = errors.New("outcome of the transaction is not known")

// Beginner starts a transaction; *pgxpool.Pool and *pgx.Conn have it. A pgx.Tx has it too and starts a savepoint.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// WithTx runs fn in a transaction (READ COMMITTED) and commits it if fn returns nil. Otherwise, and when fn panics, it
// is rolled back, also after ctx has ended, so that the connection goes back to the pool clean.
//
// It never runs fn twice. A serialization failure or a deadlock (codes 40001, 40P01) is returned like any other
// error, because only the caller knows whether fn did something that a rollback does not undo; the periodic jobs get
// their second try from the next run.
//
// The error of fn is returned as it is, except that ErrUnavailable is added when the connection was lost. A commit
// whose answer did not arrive is ErrOutcomeUnknown.
func WithTx(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) (err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", Translate(err))
	}
	ended := false
	defer func() {
		if !ended {
			err = errors.Join(err, rollback(ctx, tx))
		}
	}()
	if err := fn(tx); err != nil {
		return translateIn(ctx, tx, err)
	}
	ended = true
	return commit(ctx, tx)
}

func commit(ctx context.Context, tx pgx.Tx) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) || pgconn.SafeToRetry(err) {
		return fmt.Errorf("commit: %w", translateIn(ctx, tx, err))
	}
	// A refusal by the server is a rollback. A server that is being shut down is none: it says so too when it has
	// committed and only waits for a replica.
	if code := Code(err); code != "" && !unavailableCode(code) {
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", ErrOutcomeUnknown, translateIn(ctx, tx, err))
}

// translateIn is Translate for an error out of a transaction, where more is known: a connection that was closed by
// neither the caller's context nor a time limit of fn was lost, whatever fn makes of it; and what a statement says
// after the caller's own context has closed the connection is no news of the server.
func translateIn(ctx context.Context, tx pgx.Tx, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if tx.Conn().IsClosed() && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return Translate(err)
}

func rollback(ctx context.Context, tx pgx.Tx) error {
	// The server has rolled back a connection that is closed already; what is left is to give it back to the pool.
	closed := tx.Conn().IsClosed()
	// The caller's context may be the very reason for the rollback.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !closed && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("rollback: %w", Translate(err))
	}
	return nil
}
