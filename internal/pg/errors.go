package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnavailable means that Postgres could not be reached, or that the connection was lost: the same call may succeed
// later. It says nothing about whether a statement that was on its way took effect.
var ErrUnavailable = errors.New("postgres is unavailable")

// Translate adds ErrUnavailable to an error that means that the connection failed, so that errors.Is finds it; any
// other error, and nil, is returned as it is. WithTx has done it already for what it returns; a store that queries the
// pool does it where it wraps the error.
//
// A context that was cancelled, or whose deadline passed, is not translated: a caller that hangs up says nothing about
// the server.
func Translate(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || !connectionFailed(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func connectionFailed(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	if code := Code(err); code != "" {
		return unavailableCode(code)
	}
	// The time limit of one connection attempt also is a deadline, but a deadline of the pool, not of the caller.
	if connect := (*pgconn.ConnectError)(nil); errors.As(err, &connect) {
		return true
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) ||
		errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) ||
		errors.Is(err, pgconn.ErrConnClosed)
}

func unavailableCode(code string) bool {
	const connectionException = "08"
	switch code {
	case "57P01", // admin_shutdown
		"57P02", // crash_shutdown
		"57P03", // cannot_connect_now
		"53300": // too_many_connections
		return true
	}
	return strings.HasPrefix(code, connectionException)
}

// Code is the SQLSTATE of the Postgres error in err, or "" if there is none.
func Code(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Constraint is the name of the constraint that err violates, or "" if it violates none.
func Constraint(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.ConstraintName
	}
	return ""
}

// IsUnique tells whether err is a violation of the unique constraint or unique index of that name.
func IsUnique(err error, constraint string) bool {
	const uniqueViolation = "23505"
	return Code(err) == uniqueViolation && Constraint(err) == constraint
}
