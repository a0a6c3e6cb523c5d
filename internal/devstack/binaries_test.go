package devstack

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// program writes a shell script that every user may run.
func program(t *testing.T, path, script string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// While it is written no process may be forked: a child that inherits the open file makes its start fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestBinariesAreTriedBeforeUse(t *testing.T) {
	t.Parallel()
	as, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		initdb, postgres string
		usable           bool
	}{
		"a version":            {`echo "initdb (PostgreSQL) 16.4 (Debian 16.4-1)"`, `echo "postgres (PostgreSQL) 16.4 (Debian 16.4-1)"`, true},
		"a release candidate":  {`echo "initdb (PostgreSQL) 19rc1"`, `echo "postgres (PostgreSQL) 19rc1"`, true},
		"two versions":         {`echo "initdb (PostgreSQL) 16.4"`, `echo "postgres (PostgreSQL) 17.0"`, false},
		"too old":              {`echo "initdb (PostgreSQL) 9.6.24"`, `echo "postgres (PostgreSQL) 9.6.24"`, false},
		"a wrapper of nothing": {`exit 1`, `exit 1`, false},
		"something else":       {`echo hello`, `echo hello`, false},
		"only one of the two":  {`echo "initdb (PostgreSQL) 16.4"`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			program(t, filepath.Join(dir, "initdb"), c.initdb)
			if c.postgres != "" {
				program(t, filepath.Join(dir, "postgres"), c.postgres)
			}
			if err := inFolder(dir).check(t.Context(), as); (err == nil) != c.usable {
				t.Errorf("check: %v, want usable: %t", err, c.usable)
			}
		})
	}
}

// TestBrokenPostgresInPathIsPassedOver needs a Postgres in one of the usual folders, as every test of this package needs
// some Postgres; where it only is in PATH there is nothing to fall back to.
func TestBrokenPostgresInPathIsPassedOver(t *testing.T) {
	if len(installed()) == 0 {
		t.Skip("no Postgres in the usual folders")
	}
	as, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t)
	program(t, filepath.Join(dir, "initdb"), "exit 1")
	program(t, filepath.Join(dir, "postgres"), "exit 1")
	t.Setenv("PATH", dir)
	found, err := findPostgres(t.Context(), as)
	if err != nil || filepath.Dir(found.postgres) == dir {
		t.Errorf("findPostgres = %+v, %v", found, err)
	}
}

func TestNewestVersionComesFirst(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"9.6", "15", "14"} {
		if err := os.MkdirAll(filepath.Join(root, version, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := versionFolders(filepath.Join(root, "*", "bin"))
	want := []string{"15", "14", "9.6"}
	for i, dir := range got {
		if filepath.Base(filepath.Dir(dir)) != want[i] {
			t.Errorf("folder %d is %s, want %s", i, dir, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d folders, want %d", len(got), len(want))
	}
}
