package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// oldestPostgres is the oldest major version that the migrations are meant for.
const oldestPostgres = 14

// postgresBinaries are the two programs that a cluster needs, of the same version.
type postgresBinaries struct {
	initdb, postgres string
}

// postgresFolders are the places where packages put versions of Postgres beside each other.
var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findPostgres returns installed binaries that run as the account: those in PATH, else the newest version in one of
// the usual folders, else ones that were downloaded before. Only if there are none are they downloaded now.
func findPostgres(ctx context.Context, as *account) (postgresBinaries, error) {
	downloads, err := downloadFolder(as)
	if err != nil {
		return postgresBinaries{}, err
	}
	var errs []error
	for _, found := range slices.Concat(inPath(), installed(), []postgresBinaries{inFolder(filepath.Join(downloads, "bin"))}) {
		err := found.check(ctx, as)
		if err == nil {
			return found, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	found, err := downloadPostgres(ctx, as, downloads)
	if err != nil {
		errs = append(errs, fmt.Errorf("download postgres: %w", err))
		return postgresBinaries{}, fmt.Errorf("no usable postgres: %w", errors.Join(errs...))
	}
	return found, nil
}

func inFolder(dir string) postgresBinaries {
	return postgresBinaries{
		initdb:   filepath.Join(dir, "initdb"),
		postgres: filepath.Join(dir, "postgres"),
	}
}

func inPath() []postgresBinaries {
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return nil
	}
	postgres, err := exec.LookPath("postgres")
	if err != nil {
		return nil
	}
	return []postgresBinaries{{initdb: initdb, postgres: postgres}}
}

var numberInPath = regexp.MustCompile(`[/@-]([0-9]+)[^/]*/bin$`)

// installed lists the binaries of the usual folders, newest version first within each.
func installed() []postgresBinaries {
	var found []postgresBinaries
	for _, pattern := range postgresFolders {
		for _, dir := range versionFolders(pattern) {
			found = append(found, inFolder(dir))
		}
	}
	return found
}

// versionFolders lists the folders that match, newest version first.
func versionFolders(pattern string) []string {
	dirs, _ := filepath.Glob(pattern) // The patterns are constants, so the only error cannot happen.
	slices.SortFunc(dirs, func(a, b string) int { return versionInPath(b) - versionInPath(a) })
	return dirs
}

// versionInPath is the major version that the folder above bin is named after, or zero, which is the oldest.
func versionInPath(dir string) int {
	match := numberInPath.FindStringSubmatch(dir)
	if match == nil {
		return 0
	}
	version, _ := strconv.Atoi(match[1]) // Zero, the oldest, if the number is absurd.
	return version
}

var versionOutput = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[.\w]*)`)

// check runs both programs as the account: a file may exist and still be a wrapper without its package, of another
// machine's architecture, or out of the account's reach.
func (b postgresBinaries) check(ctx context.Context, as *account) error {
	initdb, _, err := postgresVersion(ctx, b.initdb, as)
	if err != nil {
		return err
	}
	postgres, major, err := postgresVersion(ctx, b.postgres, as)
	if err != nil {
		return err
	}
	if initdb != postgres {
		return fmt.Errorf("%s is version %s, %s is version %s", b.initdb, initdb, b.postgres, postgres)
	}
	if major < oldestPostgres {
		return fmt.Errorf("%s is version %s, want %d or newer", b.postgres, postgres, oldestPostgres)
	}
	return nil
}

func postgresVersion(ctx context.Context, program string, as *account) (full string, major int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	as.run(cmd)
	out, err := cmd.Output()
	if err != nil {
		return "", 0, fmt.Errorf("run %s --version: %w", program, err)
	}
	match := versionOutput.FindSubmatch(out)
	if match == nil {
		return "", 0, fmt.Errorf("%s --version answers %q", program, out)
	}
	major, err = strconv.Atoi(string(match[2]))
	return string(match[1]), major, err
}

// downloadFolder is where downloaded binaries are kept. Root's own cache folder is of no use to the account.
func downloadFolder(as *account) (string, error) {
	if as != nil {
		return "/var/cache/rollingd/postgres", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "rollingd", "postgres"), nil
}

// downloadPostgres fetches binaries into dir.
//
// The library cannot only fetch: its Start goes on to make a cluster of its own. That one is stopped at once; as root
// it does not even start, since initdb refuses. Either way the binaries are there, and whether they are usable is
// what check finds out.
func downloadPostgres(ctx context.Context, as *account, dir string) (postgresBinaries, error) {
	port, err := freePort()
	if err != nil {
		return postgresBinaries{}, err
	}
	scratch, err := os.MkdirTemp("", "rollingd-postgres-download-")
	if err != nil {
		return postgresBinaries{}, err
	}
	defer os.RemoveAll(scratch)
	library := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Port(uint32(port)).
		BinariesPath(dir).
		CachePath(scratch).
		RuntimePath(filepath.Join(scratch, "run")).
		Logger(io.Discard))
	startErr := library.Start()
	if startErr == nil {
		if err := library.Stop(); err != nil {
			return postgresBinaries{}, err
		}
	}
	found := inFolder(filepath.Join(dir, "bin"))
	if err := found.check(ctx, as); err != nil {
		return postgresBinaries{}, errors.Join(startErr, err)
	}
	return found, nil
}
