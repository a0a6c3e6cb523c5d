package backup

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a primary with a few rows, and backups of it.
type world struct {
	*testing.T
	*Backups
	pool *pgxpool.Pool
}

func newWorld(t *testing.T, opts Options) *world {
	t.Helper()
	t.Parallel()
	opts.Dir = filepath.Join(t.TempDir(), "backups")
	opts.PrimaryURL = pgtest.DSN(t)
	b, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Backups: b, pool: pgtest.Open(t, opts.PrimaryURL)}
	w.seed("north", "south")
	return w
}

// seed adds restaurants.
func (w *world) seed(names ...string) {
	w.Helper()
	for _, name := range names {
		w.exec(`insert into restaurants (company_id, restaurant_id, legacy_db) values ('acme', $1, 'tables')`, name)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

// do does a job and returns what it reported.
func (w *world) do(job func(context.Context, run.Run) error, dryRun bool) (run.Result, error) {
	r := run.Run{Actor: "test", DryRun: dryRun, Report: &run.Report{}}
	err := job(w.Context(), r)
	return r.Report.Result(), err
}

// must does a job that succeeds.
func (w *world) must(job func(context.Context, run.Run) error) run.Result {
	w.Helper()
	result, err := w.do(job, false)
	if err != nil {
		w.Fatal(err)
	}
	return result
}

// backups lists the backups of a kind.
func (w *world) backups(kind string) []Manifest {
	w.Helper()
	all, err := List(w.Dir, kind)
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// files are the names in the folder.
func (w *world) files() []string {
	w.Helper()
	entries, err := os.ReadDir(w.Dir)
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// wantNoScratch fails the test if the scratch database is there.
func (w *world) wantNoScratch() {
	w.Helper()
	var n int
	err := w.pool.QueryRow(w.Context(), `select count(*) from pg_database where datname = current_database() || $1`, scratchSuffix).Scan(&n)
	if err != nil || n != 0 {
		w.Errorf("%d scratch databases are left: %v", n, err)
	}
}

// useFake puts a script in the place of pg_dump; "$real" in it is the real one.
func (w *world) useFake(script string) {
	w.Helper()
	tools, err := (&Backups{}).findPrograms(w.Context(), 0)
	if err != nil {
		w.Fatal(err)
	}
	w.Programs = w.TempDir()
	text := "#!/bin/sh\nreal=" + tools.dump + "\n[ \"$1\" = --version ] && exec $real \"$@\"\n" + script + "\n"
	w.writeProgram(filepath.Join(w.Programs, "pg_dump"), text)
	if err := os.Symlink(tools.restore, filepath.Join(w.Programs, "pg_restore")); err != nil {
		w.Fatal(err)
	}
}

// writeProgram writes a script while no other test starts a process: that would
// hold the file open for writing until it runs its program, and the kernel runs no
// file that somebody may write to.
func (w *world) writeProgram(path, text string) {
	w.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		w.Fatal(err)
	}
}

// restoreInto restores chosen entries of a dump into a database.
func (w *world) restoreInto(dump, address, entries string) {
	w.Helper()
	tools, err := w.findPrograms(w.Context(), 0)
	if err != nil {
		w.Fatal(err)
	}
	chosen := filepath.Join(w.TempDir(), "entries")
	if err := os.WriteFile(chosen, []byte(entries), 0o600); err != nil {
		w.Fatal(err)
	}
	out, err := exec.CommandContext(w.Context(), tools.restore, "--exit-on-error", "--use-list="+chosen, "--dbname="+address, dump).CombinedOutput()
	if err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
}

func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return v
}
