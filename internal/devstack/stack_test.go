package devstack

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

func startStack(t *testing.T, opts StackOptions) *Stack {
	t.Helper()
	s, err := StartStack(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStackOnAFolder(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := startStack(t, StackOptions{Dir: dir, ProxySecret: "proxysecret"})
	createTable(t, s.DatabaseURL)
	if status(t, http.MethodPut, s.CouchDBURL+"/kept") != http.StatusCreated {
		t.Fatal("the private CouchDB does not create a database")
	}
	if _, err := StartStack(t.Context(), StackOptions{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second stack on the same folder: %v, want ErrInUse", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	expectNoProcess(t, dir)

	again := startStack(t, StackOptions{Dir: dir, ProxySecret: "proxysecret"})
	if got := query(t, again.DatabaseURL, `select to_regclass('kept')::text`); got != "kept" {
		t.Errorf("the table of the former stack: %q", got)
	}
	if got := status(t, http.MethodGet, again.CouchDBURL+"/kept"); got != http.StatusOK {
		t.Errorf("the database of the former stack: %d", got)
	}
}

// TestStackUsesWhatIsGiven also shows that nothing is started beside it: the folder stays empty but for its lock.
func TestStackUsesWhatIsGiven(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := startStack(t, StackOptions{Dir: dir, DatabaseURL: "postgres://there/db", CouchDBURL: "http://there:5984"})
	if s.DatabaseURL != "postgres://there/db" || s.CouchDBURL != "http://there:5984" {
		t.Errorf("stores %s and %s", s.DatabaseURL, s.CouchDBURL)
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(entries) != 1 {
		t.Errorf("in the folder: %v, %v", entries, err)
	}
}

func TestStackThatCannotStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The embedded store finds a file where its folder should be, after Postgres has started.
	if err := os.WriteFile(filepath.Join(dir, "couch-embedded"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StartStack(t.Context(), StackOptions{Dir: dir}); err == nil {
		t.Error("a store without a folder has started")
	}
	expectNoProcess(t, dir)
}

func status(t *testing.T, method, address string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

func TestScratchDatabaseEndsWithTheStack(t *testing.T) {
	t.Parallel()
	given := startPostgres(t, PostgresOptions{})
	s := startStack(t, StackOptions{DatabaseURL: given.DSN(), CouchDBURL: "http://there:5984"})
	dsn, err := s.Scratch(t.Context(), "rollingd_scratch")
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, dsn, `select current_database()`); got != "rollingd_scratch" {
		t.Errorf("the scratch database is %s", got)
	}
	if _, err := s.Scratch(t.Context(), "rollingd_scratch"); err == nil {
		t.Error("a database that was there already was taken for a scratch one")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, given.DSN(), `select string_agg(datname, ' ' order by datname) from pg_database`); got != "postgres template0 template1" {
		t.Errorf("databases after Stop: %s", got)
	}
}

func TestDatabaseOfADSN(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://u:p@h:5432/app?sslmode=disable": "postgres://u:p@h:5432/x?sslmode=disable",
		"postgresql://h?dbname=app":                 "postgresql://h/x",
		"host=h dbname=app":                         "host=h dbname=app dbname=x",
	} {
		if got, err := withDatabase(dsn, "x"); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", dsn, got, err, want)
		}
	}
}
