// Package pgtest gives every test a Postgres database of its own.
//
// The databases lie in the cluster that ROLLINGD_TEST_DATABASE_URL names (a superuser's URL; one cluster for all packages
// saves each of them the second that a cluster takes to make), else in a private cluster of the test process. A package
// that uses pgtest has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

// databaseURLVariable names the environment variable with the URL of a cluster that test processes share.
const databaseURLVariable = "ROLLINGD_TEST_DATABASE_URL"

// timeout bounds what pgtest itself asks of the cluster. It is generous, because packages are tested side by side.
const timeout = 60 * time.Second

// underMain is set by Main, which alone can stop the private cluster after the last test.
var underMain atomic.Bool

// Main runs the tests, stops the private cluster if one was started, and exits.
func Main(m *testing.M) {
	underMain.Store(true)
	code := m.Run()
	if err := stopCluster(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: stop the private cluster:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New returns a pool on a fresh database with the primary schema. The pool is closed and the database dropped when the
// test ends.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Open(t, DSN(t))
}

// NewHosted is New with the schema of the hosted Postgres.
func NewHosted(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Open(t, HostedDSN(t))
}

// Open returns a pool on the database, closed when the test ends.
func Open(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), dsn, pg.Options{ApplicationName: "rollingd test", ConnectTimeout: timeout})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// DSN returns the superuser's URL of a fresh database with the primary schema, for tests that start a process. The
// database is dropped when the test ends, whoever is still connected.
func DSN(t testing.TB) string {
	t.Helper()
	return create(t, &primary)
}

// HostedDSN is DSN with the schema of the hosted Postgres.
func HostedDSN(t testing.TB) string {
	t.Helper()
	return create(t, &hosted)
}

// EmptyDSN is DSN without any schema, for tests of migrations.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	return create(t, nil)
}

var (
	primary = template{migrations: migrations.Primary}
	hosted  = template{migrations: migrations.Hosted}
)

// create makes a database as a copy of the template, or empty, and has it dropped when the test ends.
func create(t testing.TB, from *template) string {
	t.Helper()
	if !underMain.Load() {
		t.Fatal("pgtest: the package's TestMain must call pgtest.Main, which stops the cluster after the last test")
	}
	admin, err := cluster() // Its start has a limit of its own.
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	defer cancel()
	source := "template0"
	if from != nil {
		if source, err = from.ensure(ctx, admin); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
	}
	name := "rollingd_test_" + randomHex()
	if err := execAdmin(ctx, admin, copyDatabase(name, source)); err != nil {
		t.Fatalf("pgtest: create %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
		defer cancel()
		if err := execAdmin(ctx, admin, "drop database "+name+" with (force)"); err != nil {
			t.Errorf("pgtest: drop %s: %v", name, err)
		}
	})
	return withDatabase(admin, name)
}

// cluster returns the superuser's URL of the cluster, which it starts on first use.
func cluster() (string, error) {
	if shared := os.Getenv(databaseURLVariable); shared != "" {
		return shared, nil
	}
	private.Lock()
	defer private.Unlock()
	if private.server == nil && private.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		private.server, private.err = devstack.StartPostgres(ctx, devstack.PostgresOptions{})
	}
	if private.err != nil {
		return "", private.err
	}
	return private.server.DSN(), nil
}

// private is the cluster of this test process, and why it could not be started: a second try would only take time.
var private struct {
	sync.Mutex
	server *devstack.Postgres
	err    error
}

func stopCluster() error {
	private.Lock()
	defer private.Unlock()
	if private.server == nil {
		return nil
	}
	return private.server.Stop()
}

func execAdmin(ctx context.Context, admin, sql string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

func copyDatabase(name, source string) string {
	return "create database " + name + " template " + source
}

func withDatabase(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("pgtest: " + databaseURLVariable + " is not a URL") // The error would repeat the password.
	}
	u.Path = "/" + name
	return u.String()
}

func randomHex() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
