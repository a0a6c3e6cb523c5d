package backup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestPrimary(t *testing.T) {
	w := newWorld(t, Options{})
	result := w.must(w.Primary)
	all := w.backups(PrimaryKind)
	if len(all) != 1 {
		t.Fatalf("%d backups, want 1", len(all))
	}
	m := all[0]
	if m.Rows["restaurants"] != 2 || m.Rows["archived_docs"] != 0 || m.Server < 14 || m.Program < m.Server {
		t.Errorf("the manifest is %+v", m)
	}
	if err := m.check(w.Dir); err != nil {
		t.Error(err)
	}
	if result.Counters["bytes"] != m.Bytes || result.Counters["tables"] != int64(len(m.Rows)) || result.Counters["rows"] < 2 {
		t.Errorf("the report is %+v", result)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, m.File: 0o600, m.manifest(): 0o600} {
		info, err := os.Stat(filepath.Join(w.Dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
	if files := w.files(); len(files) != 2 {
		t.Errorf("the folder holds %v", files)
	}
}

// TestSnapshot: what is written while the dump is taken is neither in it nor in the manifest.
func TestSnapshot(t *testing.T) {
	w := newWorld(t, Options{})
	s := source{kind: PrimaryKind, url: w.PrimaryURL}
	snap, err := take(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.release(t.Context())
	w.seed("east")
	tools, err := w.findPrograms(t.Context(), snap.manifest.Server)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := w.dump(t.Context(), s, snap, tools)
	if err != nil {
		t.Fatal(err)
	}
	if m.Rows["restaurants"] != 2 {
		t.Errorf("%d restaurants are in the manifest, want 2", m.Rows["restaurants"])
	}
	w.must(w.RestoreTest)
}

func TestDryRun(t *testing.T) {
	w := newWorld(t, Options{})
	result, err := w.do(w.Primary, true)
	if err != nil || result.Counters["rows"] < 2 {
		t.Errorf("%+v, %v", result, err)
	}
	if files := w.files(); len(files) != 0 {
		t.Errorf("the folder holds %v", files)
	}
}

func TestFailedDumpIsNoBackup(t *testing.T) {
	for name, script := range map[string]string{
		"fails":      `$real "$@" | head -c 2000; echo "pg_dump: error: the disk is full" >&2; exit 1`,
		"cut":        `$real "$@" | head -c 2000`,
		"says none":  `exit 0`,
		"lost table": `$real "$@" --exclude-table=archived_docs`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.useFake(script)
			if _, err := w.do(w.Primary, false); err == nil {
				t.Error("the job has not failed")
			}
			if all := w.backups(PrimaryKind); len(all) != 0 {
				t.Errorf("%+v is taken for a backup", all)
			}
			// The next run cleans up behind it.
			w.Programs = ""
			w.must(w.Primary)
			if files := w.files(); len(files) != 2 {
				t.Errorf("the folder holds %v", files)
			}
		})
	}
}

func TestSecretsAreNotOnTheCommandLine(t *testing.T) {
	w := newWorld(t, Options{})
	seen := filepath.Join(t.TempDir(), "seen")
	w.useFake(`printf '%s\n' "$@" > ` + seen + `.args; env > ` + seen + `.env; exec $real "$@"`)
	w.must(w.Primary)
	password := w.pool.Config().ConnConfig.Password
	args, err := os.ReadFile(seen + ".args")
	if err != nil {
		t.Fatal(err)
	}
	env, err := os.ReadFile(seen + ".env")
	if err != nil {
		t.Fatal(err)
	}
	if password == "" || strings.Contains(string(args), password) || strings.Contains(string(args), "://") {
		t.Errorf("the command line is %q", args)
	}
	if !strings.Contains(string(env), "PGPASSWORD="+password) {
		t.Error("the password is not in the environment")
	}
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, Options{Keep: 48 * time.Hour})
	w.must(w.Primary)
	newest := w.backups(PrimaryKind)[0]
	age := func(old Manifest, age time.Duration) Manifest {
		aged := old
		aged.TakenAt = old.TakenAt.Add(-age)
		aged.File = nameOf(old.Kind, aged.TakenAt) + dumpSuffix
		content, err := os.ReadFile(filepath.Join(w.Dir, old.File))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(w.Dir, aged.File), content, 0o600), aged.write(w.Dir)); err != nil {
			t.Fatal(err)
		}
		return aged
	}
	young, old := age(newest, 47*time.Hour), age(newest, 49*time.Hour)
	foreign := filepath.Join(w.Dir, "primary-notes.txt")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if expired, err := w.expire(PrimaryKind, newest.TakenAt, true); err != nil || expired != 1 || len(w.files()) != 7 {
		t.Errorf("a dry run removes %d: %v", expired, err)
	}
	if expired, err := w.expire(PrimaryKind, newest.TakenAt, false); err != nil || expired != 1 {
		t.Errorf("%d are removed: %v", expired, err)
	}
	if files := w.files(); len(files) != 5 || slices.Contains(files, old.File) || !slices.Contains(files, young.File) {
		t.Errorf("the folder holds %v", files)
	}
	// However old it is, one is left.
	if expired, err := w.expire(PrimaryKind, newest.TakenAt.Add(1000*time.Hour), false); err != nil || expired != 1 {
		t.Errorf("%d are removed: %v", expired, err)
	}
	if all := w.backups(PrimaryKind); len(all) != 1 || all[0].File != newest.File {
		t.Errorf("%+v are left", all)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error("a file of somebody else was removed")
	}
}

func TestDamagedManifest(t *testing.T) {
	w := newWorld(t, Options{})
	w.must(w.Primary)
	m := w.backups(PrimaryKind)[0]
	path := filepath.Join(w.Dir, m.manifest())
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// As if it had been taken the day before.
	yesterday := nameOf(m.Kind, m.TakenAt.Add(-24*time.Hour))
	dump := filepath.Join(w.Dir, yesterday+dumpSuffix)
	if err := errors.Join(os.Rename(filepath.Join(w.Dir, m.File), dump), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{
		strings.ReplaceAll(string(text), m.File, "../"+m.File),
		strings.ReplaceAll(string(text), `"primary"`, `"continuity"`),
		"{",
	} {
		if err := os.WriteFile(filepath.Join(w.Dir, yesterday+manifestSuffix), []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if all, err := List(w.Dir, PrimaryKind); !errors.Is(err, ErrDamaged) || len(all) != 0 {
			t.Errorf("%s: %+v are listed, %v; want ErrDamaged", broken, all, err)
		}
	}
	// The next backup is taken all the same, and somebody hears of it.
	if _, err := w.do(w.Primary, false); !errors.Is(err, ErrDamaged) {
		t.Errorf("the error is %v, want ErrDamaged", err)
	}
	if all, err := List(w.Dir, PrimaryKind); !errors.Is(err, ErrDamaged) || len(all) != 1 {
		t.Errorf("%+v are listed, %v; want the new one and ErrDamaged", all, err)
	}
	if _, err := os.Stat(dump); err != nil {
		t.Error("the dump of a damaged manifest was removed")
	}
}

func TestPrograms(t *testing.T) {
	b := &Backups{}
	found, err := b.findPrograms(t.Context(), 14)
	if err != nil || found.major < 14 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := b.findPrograms(t.Context(), 999); !errors.Is(err, ErrNoPrograms) {
		t.Errorf("the error is %v, want ErrNoPrograms", err)
	}
	b.Programs = t.TempDir()
	if _, err := b.findPrograms(t.Context(), 14); !errors.Is(err, ErrNoPrograms) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v, want ErrNoPrograms and ErrNotExist", err)
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		opts Options
		want string
	}{
		{Options{PrimaryURL: "postgres://localhost/x"}, "need a folder"},
		{Options{Dir: "x", PrimaryURL: "host=localhost"}, "primary's address"},
		{Options{Dir: "x", PrimaryURL: "postgres://localhost/x", HostedURL: "https://x"}, "hosted database's address"},
		{Options{Dir: "x", PrimaryURL: "postgres://localhost/x", Keep: -1}, "kept"},
	} {
		if _, err := New(tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: the error is %v, want %q", tt.opts, err, tt.want)
		}
	}
}

func TestVariables(t *testing.T) {
	env, err := variables("postgresql://ana:p%40ss@db.test:6543/shop?sslmode=require&pool_max_conns=4", "scratch")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PGHOST=db.test", "PGPORT=6543", "PGUSER=ana", "PGPASSWORD=p@ss", "PGDATABASE=scratch", "PGSSLMODE=require"} {
		if !slices.Contains(env, want) {
			t.Errorf("the environment lacks %s: %q", want, env)
		}
	}
}

func TestEmptyDatabase(t *testing.T) {
	b, err := New(Options{Dir: t.TempDir(), PrimaryURL: pgtest.EmptyDSN(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Backups: b}
	if _, err := w.do(b.Primary, false); err == nil || !strings.Contains(err.Error(), "no tables") {
		t.Errorf("the error is %v", err)
	}
}
