package hosted_test

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/migrations"
)

// worksOn goes through the clients once.
func worksOn(t *testing.T, dsn string) {
	t.Helper()
	pool := pgtest.Open(t, dsn)
	w := newWorld(t, dsn, pool, hosted.NewPostgres(pool))
	w.openDrain()
	w.enqueue(order("k1", "o1"))
	w.ack(w.claimOne())
	if s := must[hosted.FenceState](w)(w.fence.Seal(t.Context(), 2, 1)); s.Mode != continuity.Sealed {
		t.Errorf("the fence is %+v", s)
	}
}

// TestMigrationsBesideThePrimarys in a cluster that does not have the roles of a hosted one.
func TestMigrationsBesideThePrimarys(t *testing.T) {
	t.Parallel()
	server, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	pool := pgtest.Open(t, server.DSN())
	for range 2 {
		for _, set := range []pg.Migrations{migrations.Primary(), migrations.Hosted()} {
			if _, err := pg.Migrate(t.Context(), pool, set); err != nil {
				t.Fatal(err)
			}
			if current, err := pg.Current(t.Context(), pool, set); err != nil || !current {
				t.Errorf("%s: current %t, %v", set.Table, current, err)
			}
		}
	}
	worksOn(t, server.DSN())
	pool.Close()
}

// TestMigrationsAsPlainSQL applies the files without goose, statement by statement and as one, twice, and then by goose
// over it: somebody may use the one tool after the other.
func TestMigrationsAsPlainSQL(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	ensureRoles(t, dsn)
	files := migrations.Hosted().FS
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) < 2 {
		t.Fatal(names, err)
	}
	for range 2 {
		for _, name := range names {
			content, err := fs.ReadFile(files, name)
			if err != nil {
				t.Fatal(err)
			}
			execOn(t, dsn, string(content))
			psql(t, dsn, name)
		}
	}
	pool := pgtest.Open(t, dsn)
	applied, err := pg.Migrate(t.Context(), pool, migrations.Hosted())
	if err != nil || len(applied) != len(names) || applied[0].Version != 46 {
		t.Fatal(applied, err)
	}
	w := newWorld(t, dsn, pool, hosted.NewPostgres(pool))
	if got := w.events(); len(got) != 1 {
		t.Errorf("the log is %v", got)
	}
	worksOn(t, dsn)
	// What was decided outlives another application.
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		execOn(t, dsn, string(content))
	}
	w.wantFence(2, continuity.Sealed)
}

// psql sends statement after statement, each a transaction, where it is installed.
func psql(t *testing.T, dsn, name string) {
	t.Helper()
	binary, err := exec.LookPath("psql")
	if err != nil {
		t.Logf("%s is not applied by psql, which is not installed", name)
		return
	}
	file := filepath.Join("../../../migrations/hosted", name)
	out, err := exec.CommandContext(t.Context(), binary, "-q", "-v", "ON_ERROR_STOP=1", "-f", file, dsn).CombinedOutput()
	if err != nil {
		t.Fatalf("psql %s: %v\n%s", name, err, out)
	}
}

// TestAnotherFormOfTheTables is refused, instead of being taken for this one.
func TestAnotherFormOfTheTables(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	execOn(t, dsn, `create table public.continuity_commands (command_id uuid primary key)`)
	_, err := pg.Migrate(t.Context(), pgtest.Open(t, dsn), migrations.Hosted())
	if err == nil || !strings.Contains(err.Error(), "another form") {
		t.Errorf("the error is %v", err)
	}
}
