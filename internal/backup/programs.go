package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// versionTimeout is how long a program may take to tell its version.
const versionTimeout = 10 * time.Second

// programs are pg_dump and pg_restore of one version.
type programs struct {
	dump, restore string
	major         int
}

// packageFolders are the places where packages put versions of Postgres beside each other.
var packageFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findPrograms returns the first programs that are as new as a server of this major version: pg_dump refuses one that is
// newer than itself.
func (b *Backups) findPrograms(ctx context.Context, server int) (programs, error) {
	folders := []string{b.Programs}
	if b.Programs == "" {
		folders = nil
		if inPath, err := exec.LookPath("pg_dump"); err == nil {
			folders = append(folders, filepath.Dir(inPath))
		}
		folders = append(folders, installed()...)
	}
	errs := []error{fmt.Errorf("%w for version %d", ErrNoPrograms, server)}
	for _, folder := range folders {
		p := programs{dump: filepath.Join(folder, "pg_dump"), restore: filepath.Join(folder, "pg_restore")}
		dump, err := majorOf(ctx, p.dump)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		restore, err := majorOf(ctx, p.restore)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if dump < server || restore < dump {
			errs = append(errs, fmt.Errorf("%s has pg_dump %d and pg_restore %d", folder, dump, restore))
			continue
		}
		p.major = dump
		return p, nil
	}
	return programs{}, errors.Join(errs...)
}

var numberInFolder = regexp.MustCompile(`[/@-]([0-9]+)[^/]*/bin$`)

// installed lists the folders of packages, newest version first.
func installed() []string {
	var folders []string
	for _, pattern := range packageFolders {
		found, _ := filepath.Glob(pattern) // The patterns are constants, so the only error cannot happen.
		folders = append(folders, found...)
	}
	slices.SortStableFunc(folders, func(a, b string) int { return numberIn(b) - numberIn(a) })
	return folders
}

// numberIn is the major version in the name of a folder, or 0.
func numberIn(folder string) int {
	match := numberInFolder.FindStringSubmatch(folder)
	if match == nil {
		return 0
	}
	number, _ := strconv.Atoi(match[1]) // 0, the oldest, if the number is absurd.
	return number
}

var versionOutput = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func majorOf(ctx context.Context, program string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = environment(nil)
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("run %s --version: %w", program, err)
	}
	match := versionOutput.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s --version answers %q", program, out)
	}
	return strconv.Atoi(string(match[1]))
}

// environment is what a program gets: how to reach the database, and of this process' own variables the few that say
// where things are. Secrets are here, where other users of the machine do not see them, and never on a command line.
func environment(connection []string) []string {
	env := []string{"LC_ALL=C"}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains([]string{"PATH", "HOME", "TMPDIR", "SYSTEMROOT"}, name) {
			env = append(env, variable)
		}
	}
	return append(env, connection...)
}

// killGrace is how long a program may take to end when its run is cancelled.
const killGrace = 10 * time.Second

// command is a program that ends with the context, and whose complaints are in its error.
func command(ctx context.Context, connection []string, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = environment(connection)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = killGrace
	return cmd
}

// complaintLimit bounds what is quoted of a program's complaints.
const complaintLimit = 2000

// execute runs a command. What it complains of may name tables and constraints, and no rows: neither program is asked
// to be verbose, and a restore ends with its first error, of which the lines that quote data are left out.
func execute(ctx context.Context, cmd *exec.Cmd) error {
	var complaints strings.Builder
	cmd.Stderr = &complaints
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var lines []string
	for line := range strings.Lines(complaints.String()) {
		if strings.HasPrefix(line, "pg_") && !strings.Contains(line, "Command was") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	text := strings.Join(lines, "; ")
	return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, text[:min(len(text), complaintLimit)])
}
