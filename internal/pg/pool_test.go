package pg_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestSessionsRunInUTC(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	admin := pgtest.Open(t, dsn)
	var database string
	if err := admin.QueryRow(t.Context(), `select current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `alter database `+database+` set timezone = 'Asia/Tokyo'`); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"", "&timezone=America/Santiago", "&TimeZone=America/Santiago", "&options=-c%20timezone%3DAmerica/Santiago"} {
		t.Run(setting, func(t *testing.T) {
			pool := pgtest.Open(t, dsn+setting)
			var zone string
			var at time.Time
			var many []time.Time
			err := pool.QueryRow(t.Context(), `
				select current_setting('timezone'),
				       timestamptz '2026-09-06 04:00:00+00',
				       array[timestamptz '2026-09-06 04:00:00+00']`).Scan(&zone, &at, &many)
			if err != nil {
				t.Fatal(err)
			}
			if zone != "UTC" || at.Location() != time.UTC || many[0].Location() != time.UTC {
				t.Errorf("session zone %s, scanned in %s and %s, want UTC", zone, at.Location(), many[0].Location())
			}
		})
	}
}

func TestTimeLimits(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), pgtest.EmptyDSN(t), pg.Options{
		ApplicationName:          "limits",
		StatementTimeout:         40500 * time.Millisecond,
		LockTimeout:              20200 * time.Millisecond,
		IdleInTransactionTimeout: 33 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for setting, want := range map[string]string{
		"application_name":                    "limits",
		"statement_timeout":                   "40500ms",
		"lock_timeout":                        "20200ms",
		"idle_in_transaction_session_timeout": "33s",
	} {
		var got string
		if err := pool.QueryRow(t.Context(), `select current_setting($1)`, setting).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
}

func TestOpenKeepsThePasswordToItself(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://user:sesame@host:port/db",
		"postgres://user:sesame@%zz/db",
		"host=localhost password=sesame port=x",
	} {
		_, err := pg.Open(t.Context(), dsn, pg.Options{})
		if err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("Open: %v, want an error without the password", err)
		}
	}
}

func TestServerAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, "postgres://user:sesame@127.0.0.1:1/db?sslmode=disable")
	if err := pg.Translate(pool.Ping(t.Context())); !errors.Is(err, pg.ErrUnavailable) {
		t.Errorf("Ping: %v, want ErrUnavailable", err)
	}
}
