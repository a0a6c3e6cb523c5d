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
		return lost(ctx, tx, Translate(err))
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
		return fmt.Errorf("commit: %w", lost(ctx, tx, Translate(err)))
	}
	// A refusal by the server is a rollback. A server that is being shut down is none: it says so too when it has
	// committed and only waits for a replica.
	if Code(err) != "" && !errors.Is(Translate(err), ErrUnavailable) {
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("commit: %w: %w", ErrOutcomeUnknown, Translate(err))
}

// lost adds ErrUnavailable to the error of a transaction whose connection is gone for another reason than the caller's
// own context: a statement after the loss fails with an error of pgx that has no type.
func lost(ctx context.Context, tx pgx.Tx, err error) error {
	if ctx.Err() == nil && tx.Conn().IsClosed() && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func rollback(ctx context.Context, tx pgx.Tx) error {
	// A closed connection has been rolled back by the server.
	if tx.Conn().IsClosed() {
		return nil
	}
	// The caller's context may be the very reason for the rollback.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("rollback: %w", Translate(err))
	}
	return nil
}
