package devstack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// query returns the single text that the statement yields, on a connection of its own.
func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// createTable makes the table "kept".
func createTable(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), `create table kept ()`); err != nil {
		t.Fatal(err)
	}
}

func startPostgres(t *testing.T, opts PostgresOptions) *Postgres {
	t.Helper()
	pg, err := StartPostgres(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Stop(); err != nil {
			t.Error(err)
		}
	})
	return pg
}

func TestPostgresFromStartToStop(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, PostgresOptions{Timezone: "Asia/Tokyo"})
	for setting, want := range map[string]string{
		"timezone":         "Asia/Tokyo",
		"fsync":            "off",
		"listen_addresses": "127.0.0.1",
		"max_connections":  "200",
		"server_encoding":  "UTF8",
	} {
		if got := query(t, pg.DSN(), "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
	dir := query(t, pg.DSN(), "select current_setting('data_directory')")
	if runtime.GOOS == "linux" && len(processesOf(t, dir)) == 0 {
		t.Error("no process of the running server was found, so the test for leftovers would find none either")
	}
	// An open session must not keep the server from stopping.
	conn, err := pgx.Connect(t.Context(), pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for range 2 {
		if err := pg.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	expectNoProcess(t, dir)
	if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

func TestPostgresRefusesAWrongPassword(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, PostgresOptions{})
	cfg, err := pgx.ParseConfig(pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), cfg); err == nil {
		conn.Close(t.Context())
		t.Error("a wrong password was accepted")
	}
}

func TestPostgresUsesItsFolderAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	// What a crash in the middle of initdb leaves is not taken for a cluster.
	if err := os.MkdirAll(filepath.Join(dir, "initdb", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("unfinished"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := startPostgres(t, PostgresOptions{Dir: dir, Durable: true})
	if got := query(t, first.DSN(), "select current_setting('fsync')"); got != "on" {
		t.Errorf("fsync of a durable cluster = %s", got)
	}
	createTable(t, first.DSN())
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	// A crashed machine leaves the lock file, with the number of a process that is gone.
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	lock := fmt.Sprintf("%d\n%s/data\n1700000000\n5432\n\n127.0.0.1\n", gone.Process.Pid, dir)
	if err := os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(lock), 0o644); err != nil {
		t.Fatal(err)
	}
	second := startPostgres(t, PostgresOptions{Dir: dir})
	if got := query(t, second.DSN(), "select to_regclass('kept')::text"); got != "kept" {
		t.Errorf("the table of the first run is %q", got)
	}
}

func TestPostgresEndsWithAKilledOwner(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc to list processes")
	}
	t.Parallel()
	dir := folder(t)
	url, kill := startOwner(t, "postgres", dir)
	createTable(t, url)
	kill()
	// The next run may come before the server has shut down.
	next := startPostgres(t, PostgresOptions{Dir: dir})
	if got := query(t, next.DSN(), "select to_regclass('kept')::text"); got != "kept" {
		t.Errorf("the table of the killed run is %q", got)
	}
	if err := next.Stop(); err != nil {
		t.Fatal(err)
	}
	expectNoProcess(t, dir)
}

func TestPostgresIsStartedOncePerFolder(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	pg := startPostgres(t, PostgresOptions{Dir: dir})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if second, err := StartPostgres(ctx, PostgresOptions{Dir: dir}); err == nil {
		second.Stop()
		t.Error("two servers run in one folder")
	}
	if got := query(t, pg.DSN(), "select 'here'"); got != "here" {
		t.Errorf("the first server answers %q", got)
	}
}

func TestPostgresRefusesAFolderOfSomethingElse(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "letter"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if pg, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir}); err == nil {
		pg.Stop()
		t.Error("a folder with other files was taken")
	}
}

func TestFolderOutOfReachIsNamed(t *testing.T) {
	t.Parallel()
	closed := folder(t)
	dir := filepath.Join(closed, "deep", "server")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	stranger := &account{name: "stranger", uid: 64999, gid: 64999}
	if err := stranger.checkReach(dir); err != nil {
		t.Errorf("an open folder: %v", err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := stranger.checkReach(dir); err == nil || !strings.Contains(err.Error(), "pass through "+closed+":") {
		t.Errorf("a closed folder above: %v, want it named", err)
	}
}
