package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/migrations"
)

// sequence is a set of small migrations, none of which can run twice.
func sequence(first, count int) pg.Migrations {
	files := fstest.MapFS{}
	for i := first; i < first+count; i++ {
		files[fmt.Sprintf("%03d_t%d.sql", i, i)] = migration(fmt.Sprintf("create table t%d (id int);", i))
	}
	return pg.Migrations{FS: files, Table: "applied", First: int64(first)}
}

func migration(sql string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql + "\n")}
}

func versions(all []pg.Migration, pending bool) []int64 {
	var of []int64
	for _, m := range all {
		if (m.AppliedAt == nil) == pending {
			of = append(of, m.Version)
		}
	}
	return of
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))

	if current, err := pg.Current(t.Context(), pool, sequence(1, 2)); err != nil || current {
		t.Errorf("Current on an empty database = %t, %v", current, err)
	}
	var tables int
	if err := pool.QueryRow(t.Context(), `select count(*) from pg_tables where schemaname = 'public'`).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if tables != 0 {
		t.Errorf("asking for the status made %d tables", tables)
	}

	for _, step := range []struct{ files, applies int }{{2, 2}, {2, 0}, {3, 1}} {
		applied, err := pg.Migrate(t.Context(), pool, sequence(1, step.files))
		if err != nil {
			t.Fatal(err)
		}
		if len(applied) != step.applies {
			t.Errorf("with %d files Migrate applied %v, want %d", step.files, versions(applied, false), step.applies)
		}
	}
	all, err := pg.Status(t.Context(), pool, sequence(1, 4))
	if err != nil {
		t.Fatal(err)
	}
	if applied, pending := versions(all, false), versions(all, true); !slices.Equal(applied, []int64{1, 2, 3}) || !slices.Equal(pending, []int64{4}) {
		t.Errorf("applied %v, pending %v", applied, pending)
	}
	var sinceApplied time.Duration
	if err := pool.QueryRow(t.Context(), `select now() - $1::timestamptz`, *all[0].AppliedAt).Scan(&sinceApplied); err != nil {
		t.Fatal(err)
	}
	if sinceApplied < 0 || sinceApplied > time.Minute {
		t.Errorf("migration 1 was applied %s ago", sinceApplied)
	}
}

func TestMigrateTwoSequencesInOneDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	hosted := sequence(46, 2)
	hosted.Table = "applied_hosted"
	for _, set := range []pg.Migrations{sequence(1, 3), hosted} {
		if _, err := pg.Migrate(t.Context(), pool, set); err != nil {
			t.Fatal(err)
		}
		if current, err := pg.Current(t.Context(), pool, set); err != nil || !current {
			t.Errorf("%s: Current = %t, %v", set.Table, current, err)
		}
	}
}

func TestMigrateRefusesANewerSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	if _, err := pg.Migrate(t.Context(), pool, sequence(1, 3)); err != nil {
		t.Fatal(err)
	}
	older := sequence(1, 2)
	_, migrateErr := pg.Migrate(t.Context(), pool, older)
	_, statusErr := pg.Status(t.Context(), pool, older)
	_, currentErr := pg.Current(t.Context(), pool, older)
	for call, err := range map[string]error{"Migrate": migrateErr, "Status": statusErr, "Current": currentErr} {
		if !errors.Is(err, pg.ErrNewerSchema) || !strings.Contains(err.Error(), "migration 3, this binary knows 1 to 2") {
			t.Errorf("%s: %v, want ErrNewerSchema and the numbers", call, err)
		}
	}
}

func TestMigrateStopsAtTheFailure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	set := sequence(1, 3)
	set.FS.(fstest.MapFS)["002_t2.sql"] = migration("create table half (id int);\nselect 1/0;")
	_, err := pg.Migrate(t.Context(), pool, set)
	if pg.Code(err) != "22012" || !strings.Contains(err.Error(), "002_t2.sql") {
		t.Errorf("Migrate: %v, want division_by_zero in 002_t2.sql", err)
	}
	all, err := pg.Status(t.Context(), pool, set)
	if err != nil {
		t.Fatal(err)
	}
	if got := versions(all, false); !slices.Equal(got, []int64{1}) {
		t.Errorf("applied %v, want the first only", got)
	}
	var half bool
	if err := pool.QueryRow(t.Context(), `select to_regclass('half') is not null`).Scan(&half); err != nil {
		t.Fatal(err)
	}
	if half {
		t.Error("the failed migration left its table")
	}
}

func TestMigrateOutlastsTheStatementTimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	set := pg.Migrations{FS: fstest.MapFS{"001_limits.sql": migration(`
		create table limits as
		select current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout') as set_to;`)}, Table: "applied", First: 1}
	if _, err := pg.Migrate(t.Context(), pool, set); err != nil {
		t.Fatal(err)
	}
	var migration, everyday string
	err := pool.QueryRow(t.Context(), `select set_to, current_setting('statement_timeout') from limits`).Scan(&migration, &everyday)
	if err != nil || migration != "0 0" || everyday == "0" {
		t.Errorf("a migration has the limits %q, an everyday statement %q: %v", migration, everyday, err)
	}
}

func TestMigrationFilesAreChecked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	for name, files := range map[string][]string{
		"no file":           {},
		"a gap":             {"001_a.sql", "003_c.sql"},
		"the first missing": {"002_b.sql"},
		"a number twice":    {"001_a.sql", "001_b.sql"},
		"no number":         {"001_a.sql", "b.sql"},
		"a short number":    {"1_a.sql"},
		"a capital":         {"001_A.sql"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			for _, file := range files {
				fsys[file] = migration("select 1;")
			}
			if _, err := pg.Migrate(t.Context(), pool, pg.Migrations{FS: fsys, Table: "applied", First: 1}); err == nil {
				t.Errorf("%v was accepted", files)
			}
		})
	}
}

// migratorVariable makes the test binary a process that migrates the database of that URL and exits.
const migratorVariable = "ROLLINGD_TEST_MIGRATOR"

// runMigrator prints how many migrations it applied.
func runMigrator(dsn string) int {
	ctx := context.Background()
	pool, err := pg.Open(ctx, dsn, pg.Options{ApplicationName: "migrator"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer pool.Close()
	applied, err := pg.Migrate(ctx, pool, sequence(1, 5))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(len(applied))
	return 0
}

func TestMigratorsThatStartTogether(t *testing.T) {
	t.Parallel()
	const processes = 4
	dsn := pgtest.EmptyDSN(t)
	pool := pgtest.Open(t, dsn)
	set := sequence(1, 5)

	// Holding the lock here until every process is connected makes them all want it at once.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtext($1))`, set.Table); err != nil {
		t.Fatal(err)
	}
	type result struct {
		out []byte
		err error
	}
	results := make(chan result, processes)
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), migratorVariable+"="+dsn)
		cmd.Stderr = os.Stderr
		go func() {
			out, err := cmd.Output()
			results <- result{out, err}
		}()
	}
	awaitMigrators(t, pool, processes)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	total := 0
	for range processes {
		r := <-results
		if r.err != nil {
			t.Fatalf("migrator: %v", r.err)
		}
		applied, err := strconv.Atoi(string(r.out))
		if err != nil {
			t.Fatal(err)
		}
		total += applied
	}
	if total != 5 {
		t.Errorf("the processes applied %d migrations together, want each of 5 once", total)
	}
	if current, err := pg.Current(t.Context(), pool, set); err != nil || !current {
		t.Errorf("Current = %t, %v", current, err)
	}
}

func awaitMigrators(t *testing.T, pool *pgxpool.Pool, want int) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for range poll.C {
		var connected int
		err := pool.QueryRow(t.Context(), `
			select count(*)
			from pg_stat_activity
			where application_name = 'migrator'
			  and datname = current_database()`).Scan(&connected)
		if err != nil {
			t.Fatal(err)
		}
		if connected == want {
			return
		}
	}
}

func TestMigrateGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Open(t, pgtest.EmptyDSN(t))
	set := sequence(1, 1)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtext($1))`, set.Table); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	if _, err := pg.Migrate(ctx, pool, set); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Migrate: %v, want the deadline", err)
	}
}

// TestPrimaryMigrations applies the real files, which also checks their names.
func TestPrimaryMigrations(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	set := migrations.Primary()
	all, err := pg.Status(t.Context(), pool, set)
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(set.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if got := len(versions(all, false)); got != len(names) || got == 0 {
		t.Errorf("%d of %d migrations applied", got, len(names))
	}
}
