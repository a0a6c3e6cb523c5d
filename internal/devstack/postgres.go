package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// postgresGrace is how long a fast shutdown may take before the server is killed.
	postgresGrace = 15 * time.Second
	// handoverTimeout is how long the server of a former process, which has just died, may take to let go of the data.
	handoverTimeout = 10 * time.Second

	superuser = "postgres"
)

// PostgresOptions of a private cluster.
type PostgresOptions struct {
	// Dir holds the cluster, its password and its log. It is made if it does not exist; one that a former run left is
	// used again, data and all. Empty means a temporary folder, removed by Stop.
	//
	// When this process is root the folder is given to the unprivileged user that Postgres runs as, who must be able
	// to reach it: a folder under /root is refused.
	Dir string
	// Durable makes commits survive a crash of the machine. Without it they survive a crash of the processes only, and
	// everything is several times faster.
	Durable bool
	// Timezone is the server's default time zone; default "UTC".
	Timezone string
	// Logger gets the start and the stop. The server's own log, which quotes statements, goes to postgres.log in Dir.
	Logger *slog.Logger
}

// Postgres is a running private cluster.
type Postgres struct {
	process *process
	dsn     string
	// temporary is the folder to remove on Stop, or nil.
	temporary *temporary
	logger    *slog.Logger
}

// StartPostgres starts a private cluster on a free port of loopback and returns when it answers. The programs are those
// in PATH, of the newest version in the usual folders, or, as a last resort, downloaded. ctx bounds the start only.
func StartPostgres(ctx context.Context, opts PostgresOptions) (_ *Postgres, err error) {
	began := time.Now()
	if opts.Timezone == "" {
		opts.Timezone = "UTC"
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	binaries, err := findPostgres(ctx, as)
	if err != nil {
		return nil, err
	}
	pg := &Postgres{logger: opts.Logger}
	if opts.Dir == "" {
		if pg.temporary, err = newTemporary("rollingd-postgres-"); err != nil {
			return nil, err
		}
		opts.Dir = pg.temporary.dir
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, pg.temporary.remove())
		}
	}()
	c := cluster{dir: opts.Dir, as: as, binaries: binaries}
	if c.dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx); err != nil {
		return nil, fmt.Errorf("prepare postgres in %s: %w", c.dir, err)
	}
	if pg.process, pg.dsn, err = c.start(ctx, opts); err != nil {
		return nil, fmt.Errorf("start postgres in %s: %w", c.dir, err)
	}
	opts.Logger.Info("private postgres started", "dir", c.dir, "elapsed", time.Since(began))
	return pg, nil
}

// DSN is the URL of the cluster's database "postgres", as its superuser. It holds the password.
func (pg *Postgres) DSN() string {
	return pg.dsn
}

// Stop ends the server, open sessions included, and returns when no process of it is left. Stopping twice is no error.
func (pg *Postgres) Stop() error {
	began := time.Now()
	// SIGINT is Postgres's fast shutdown: sessions are ended, the data folder is left in order.
	err := pg.process.stop(syscall.SIGINT, postgresGrace)
	pg.logger.Info("private postgres stopped", "elapsed", time.Since(began))
	return errors.Join(err, pg.temporary.remove())
}

// cluster is the folder of a private cluster: data (the cluster itself), password (of the superuser) and postgres.log.
type cluster struct {
	dir      string
	as       *account
	binaries postgresBinaries
}

func (c cluster) data() string     { return filepath.Join(c.dir, "data") }
func (c cluster) password() string { return filepath.Join(c.dir, "password") }
func (c cluster) log() string      { return filepath.Join(c.dir, "postgres.log") }

// prepare makes the folder and the cluster unless they exist. initdb works in a folder of another name, which is renamed
// at the end: a crash in between leaves that one, and the next start removes it and begins again.
func (c cluster) prepare(ctx context.Context) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if err := c.checkOurs(); err != nil {
		return err
	}
	if err := c.as.own(c.dir); err != nil {
		return err
	}
	if err := c.as.checkReach(c.dir); err != nil {
		return err
	}
	if _, err := os.Stat(c.data()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unfinished := filepath.Join(c.dir, "initdb")
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	// The account reads the password as well: initdb takes it from the file.
	if err := os.WriteFile(c.password(), []byte(rand.Text()), 0o600); err != nil {
		return err
	}
	if err := c.as.own(c.password()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, c.binaries.initdb,
		"--pgdata", unfinished,
		"--username", superuser,
		"--pwfile", c.password(),
		"--auth", "scram-sha-256",
		"--encoding", "UTF8",
		"--locale", "C",
		"--no-sync",
	)
	cmd.Dir = c.dir
	cmd.Env = serverEnv()
	c.as.run(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return os.Rename(unfinished, c.data())
}

// checkOurs refuses a folder with anything else in it, before it is given to another user.
func (c cluster) checkOurs() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil || len(entries) == 0 {
		return err
	}
	if _, err := os.Stat(c.password()); err != nil {
		return fmt.Errorf("the folder is not empty and holds no cluster of rollingd: %w", err)
	}
	return nil
}

// start runs the server, on another port if somebody was faster to take the first one.
func (c cluster) start(ctx context.Context, opts PostgresOptions) (*process, string, error) {
	password, err := os.ReadFile(c.password())
	if err != nil {
		return nil, "", err
	}
	c.awaitFormer(ctx)
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, "", err
		}
		p, err := c.run(port, opts)
		if err != nil {
			return nil, "", err
		}
		dsn := url.URL{
			Scheme:   "postgres",
			User:     url.UserPassword(superuser, string(password)),
			Host:     net.JoinHostPort(loopback, strconv.Itoa(port)),
			Path:     "/postgres",
			RawQuery: "sslmode=disable",
		}
		err = c.awaitAnswer(ctx, p, dsn.String())
		if err == nil {
			return p, dsn.String(), nil
		}
		err = errors.Join(err, p.stop(syscall.SIGINT, postgresGrace))
		if attempt == portAttempts || !portTaken(port) {
			return nil, "", err
		}
	}
}

func (c cluster) run(port int, opts PostgresOptions) (*process, error) {
	settings := []string{
		"listen_addresses=" + loopback,
		"port=" + strconv.Itoa(port),
		"unix_socket_directories=", // A socket's path may be too long, or its folder not ours.
		"max_connections=200",
		"timezone=" + opts.Timezone,
		"log_timezone=UTC",
	}
	if !opts.Durable {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	args := []string{"-D", c.data()}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.binaries.postgres, args...)
	cmd.Dir = c.dir
	cmd.Env = serverEnv()
	cmd.Stdout = log
	cmd.Stderr = log
	c.as.run(cmd)
	return startProcess(cmd, syscall.SIGINT)
}

// awaitAnswer connects until it succeeds. The password is checked by both sides, so a stranger who took the port in
// between cannot pass for the server.
func (c cluster) awaitAnswer(ctx context.Context, p *process, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.exited:
			return fmt.Errorf("the server ended (%v) and logged:\n%s", p.err, tail(c.log()))
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w, last %w", ctx.Err(), err)
		case <-poll.C:
		}
	}
}

// awaitFormer gives the server of a former process that has just died the time to shut down. If it does not, because
// that process is alive after all, Postgres itself refuses to start a second time and says so.
func (c cluster) awaitFormer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for c.serverRuns() {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}

// serverRuns tells whether the process named in Postgres's own lock file is alive.
func (c cluster) serverRuns() bool {
	content, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	return err == nil && pid > 0 && syscall.Kill(pid, 0) == nil
}
