package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

// stores are the CouchDB and the Postgres that are measured with.
type stores struct {
	couchURL     string
	proxySecret  string
	couchName    string
	postgresDSN  string
	postgresName string
	// databases counts the Postgres databases made.
	databases int
	closers   []func() error
}

func startStores(ctx context.Context, embedded bool) (_ *stores, err error) {
	s := &stores{proxySecret: rand.Text()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := s.startCouchDB(ctx, embedded); err != nil {
		return nil, err
	}
	// Durable: what is measured is what production pays, fsync at each commit included.
	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{Durable: true})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, postgres.Stop)
	s.postgresDSN = postgres.DSN()
	s.postgresName, err = describePostgres(ctx, s.postgresDSN)
	return s, err
}

func (s *stores) startCouchDB(ctx context.Context, embedded bool) error {
	switch _, installed := devstack.InstalledCouchDB(); {
	case embedded:
		return s.startEmbedded(ctx)
	case os.Getenv("ROLLINGD_TEST_COUCHDB_URL") != "":
		s.couchURL, s.proxySecret = os.Getenv("ROLLINGD_TEST_COUCHDB_URL"), os.Getenv("ROLLINGD_COUCHDB_PROXY_SECRET")
	case installed:
		node, err := devstack.StartCouchDB(ctx, devstack.CouchDBOptions{AdminUser: "admin", AdminPassword: rand.Text(), ProxySecret: s.proxySecret})
		if err != nil {
			return err
		}
		s.closers = append(s.closers, node.Stop)
		s.couchURL = node.URL()
	default:
		return s.startEmbedded(ctx)
	}
	client, err := couch.New(couch.Options{URL: s.couchURL})
	if err != nil {
		return err
	}
	defer client.Close()
	welcome, err := client.Welcome(ctx)
	s.couchName = "Apache CouchDB " + welcome.Version
	return err
}

// startEmbedded runs the embedded store in a process of its own, so that its
// work and its memory are not taken for the archiver's.
func (s *stores) startEmbedded(ctx context.Context) error {
	s.couchName = "the embedded store, which says nothing about production"
	dir, err := os.MkdirTemp("", "rollingd-bench-couch-")
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { return os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, storeArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// It ends with its standard input, whatever ends this process.
	s.closers = append(s.closers, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	if _, err := fmt.Fprintln(in, filepath.Join(dir, "data"), s.proxySecret); err != nil {
		return err
	}
	_, err = fmt.Fscanln(out, &s.couchURL)
	return err
}

// stop ends what was started, the last first.
func (s *stores) stop() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// describePostgres names the version and the settings that decide about speed.
func describePostgres(ctx context.Context, dsn string) (string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var version, settings string
	err = conn.QueryRow(ctx, `
		select
		  (select setting from pg_settings where name = 'server_version'),
		  (select string_agg(name || '=' || current_setting(name), ' ' order by name) from pg_settings
		   where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_level'))`).
		Scan(&version, &settings)
	if err != nil {
		return "", err
	}
	number, _, _ := strings.Cut(version, " ")
	return number + ", " + settings, nil
}

// world is a fleet's pair of stores: an empty, migrated Postgres database, and
// the databases of one environment in CouchDB.
type world struct {
	env    string
	dsn    string
	pool   *pgxpool.Pool
	couch  *couch.Client
	leases *fence.Leases
	stores *stores
	name   string
}

// newWorld makes a world of its own environment.
func (s *stores) newWorld(ctx context.Context, opts couch.Options) (*world, error) {
	env := "bench" + strings.ToLower(rand.Text()[:10])
	return s.newWorldOf(ctx, env, opts)
}

// newWorldOf makes a world that shares its environment in CouchDB with others.
func (s *stores) newWorldOf(ctx context.Context, env string, opts couch.Options) (*world, error) {
	w := &world{env: env, stores: s}
	var err error
	if w.name, w.dsn, err = s.createDatabase(ctx); err != nil {
		return nil, err
	}
	if w.pool, err = pg.Open(ctx, w.dsn, pg.Options{}); err != nil {
		return nil, err
	}
	if _, err := pg.Migrate(ctx, w.pool, migrations.Primary()); err != nil {
		return nil, err
	}
	opts.URL = s.couchURL
	if w.couch, err = couch.New(opts); err != nil {
		return nil, err
	}
	w.leases = fence.New(w.pool, "bench", time.Minute)
	return w, nil
}

// close removes the Postgres database. What CouchDB has stays, for the next world of the environment.
func (w *world) close(ctx context.Context) error {
	w.pool.Close()
	return errors.Join(w.couch.Close(), w.stores.dropDatabase(ctx, w.name))
}

// createDatabase makes an empty Postgres database and returns its name and address.
func (s *stores) createDatabase(ctx context.Context) (name, dsn string, err error) {
	s.databases++
	name = fmt.Sprintf("bench_%d", s.databases)
	if err := s.exec(ctx, "create database "+name); err != nil {
		return "", "", err
	}
	u, err := url.Parse(s.postgresDSN)
	if err != nil {
		return "", "", err
	}
	u.Path = "/" + name
	return name, u.String(), nil
}

func (s *stores) dropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "drop database "+name+" with (force)")
}

// settle writes out what earlier work left in memory, so that it is not paid for
// by what is measured next.
func (s *stores) settle(ctx context.Context) error {
	return s.exec(ctx, "checkpoint")
}

func (s *stores) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.postgresDSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// removeEnv deletes the databases of an environment.
func (s *stores) removeEnv(ctx context.Context, env string) error {
	ctx = context.WithoutCancel(ctx) // An interrupted run removes its data all the same.
	client, err := couch.New(couch.Options{URL: s.couchURL})
	if err != nil {
		return err
	}
	defer client.Close()
	names, err := client.Names(ctx, env+"_")
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(8)
	for _, name := range names {
		group.Go(func() error {
			err := client.Delete(ctx, name)
			if errors.Is(err, couch.ErrNotFound) {
				return nil
			}
			return err
		})
	}
	return group.Wait()
}
