package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

func BenchmarkNew(b *testing.B) {
	New(b)
	for b.Loop() {
		create(b, &primary)
	}
}

func TestEveryTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	one, other := New(t), New(t)
	if _, err := one.Exec(t.Context(), `create table mine ()`); err != nil {
		t.Fatal(err)
	}
	var found bool
	if err := other.QueryRow(t.Context(), `select to_regclass('mine') is not null`).Scan(&found); err != nil {
		t.Fatal(err)
	}
	if found {
		t.Error("two tests share a database")
	}
	if err := one.QueryRow(t.Context(), `select to_regclass('day_databases') is not null`).Scan(&found); err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Error("the primary schema is missing")
	}
}

// TestDatabaseIsDroppedAtTheEnd leaves a session open, as a process that the test started may.
func TestDatabaseIsDroppedAtTheEnd(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) {
		var conn *pgx.Conn
		t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) }) // Runs last.
		dsn = DSN(t)
		var err error
		if conn, err = pgx.Connect(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	})
	if conn, err := pgx.Connect(t.Context(), dsn); err == nil {
		conn.Close(t.Context())
		t.Error("the database outlived its test")
	}
}
