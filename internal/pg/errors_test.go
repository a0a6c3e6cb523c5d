package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestTranslate(t *testing.T) {
	t.Parallel()
	reset := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for _, c := range []struct {
		err         error
		unavailable bool
	}{
		{nil, false},
		{errors.New("another"), false},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{fmt.Errorf("read: %w", errors.Join(context.Canceled, reset)), false},
		{fmt.Errorf("read: %w", reset), true},
		{io.ErrUnexpectedEOF, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "57014"}, false},
		{&pgconn.PgError{Code: "23505"}, false},
		{&pgconn.PgError{Code: "40001"}, false},
	} {
		got := pg.Translate(c.err)
		if errors.Is(got, pg.ErrUnavailable) != c.unavailable {
			t.Errorf("Translate(%v) = %v, want unavailable: %t", c.err, got, c.unavailable)
		}
		if !errors.Is(got, c.err) {
			t.Errorf("Translate(%v) = %v, which has lost the error", c.err, got)
		}
		if twice := pg.Translate(got); twice != got {
			t.Errorf("translated twice: %v", twice)
		}
	}
}

func TestViolationsAreToldApartByName(t *testing.T) {
	t.Parallel()
	pool := oneConnection(t)
	_, err := pool.Exec(t.Context(), `insert into facts (id) values (1), (1)`)
	err = fmt.Errorf("insert: %w", err)
	if !pg.IsUnique(err, "facts_pkey") || pg.IsUnique(err, "facts_other_key") || pg.Constraint(err) != "facts_pkey" || pg.Code(err) != "23505" {
		t.Errorf("a duplicate is %v", err)
	}
	_, err = pool.Exec(t.Context(), `insert into facts (id) values (null)`)
	if pg.IsUnique(err, "") || pg.Code(err) != "23502" {
		t.Errorf("a null is %v", err)
	}
	if pg.Code(nil) != "" || pg.Constraint(nil) != "" || pg.IsUnique(nil, "") {
		t.Error("no error has a code")
	}
}

// TestHangUpSaysNothingAboutTheServer cuts a query off by the caller's own context.
func TestHangUpSaysNothingAboutTheServer(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := pool.Exec(ctx, `select pg_sleep(30)`)
	if err == nil || errors.Is(pg.Translate(err), pg.ErrUnavailable) {
		t.Errorf("Exec: %v, want an error that is not ErrUnavailable", err)
	}
}
