// Package app wires the server together: it opens the stores, migrates, starts
// the API and the crons, and stops all of it in the reverse order.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/crew"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/rotation"
	"github.com/rollingd/rollingd/internal/run"
	"github.com/rollingd/rollingd/migrations"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// connsPerWorker: a worker's transaction, and the renewal of its lease.
	connsPerWorker = 2
	// connsBesides are for the API, the crons and the leases.
	connsBesides = 16
)

// App is the server.
type App struct {
	opts     Options
	cleanups []cleanup
	addr     net.Addr
	failed   chan error
}

// cleanup undoes one step of the start.
type cleanup struct {
	what string
	do   func(ctx context.Context) error
}

// New returns a server, or an InvalidError. It does nothing else yet.
func New(opts Options) (*App, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &App{opts: opts, failed: make(chan error, 1)}, nil
}

// Start opens the stores, applies pending migrations, and starts the API and
// the crons. When a step fails, those before it are undone. CouchDB need not be
// up: what needs it fails until it is, and /readyz says so.
func (a *App) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
		}
	}()
	opts, logger := a.opts, a.opts.Logger
	tokens, err := api.ParseTokens(opts.AdminTokens)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	pool, err := pg.Open(ctx, opts.DatabaseURL, pg.Options{MaxConns: int32(connsBesides + connsPerWorker*opts.Workers)})
	if err != nil {
		return err
	}
	a.onStop("postgres", func(ctx context.Context) error { return within(ctx, pool.Close) })

	// The queue of the continuity plane is this database's, too, for the units of runs.
	schema := []pg.Migrations{migrations.Primary(), migrations.Hosted()}
	for _, set := range schema {
		applied, err := pg.Migrate(ctx, pool, set)
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
		for _, m := range applied {
			logger.InfoContext(ctx, "migration applied", "migration", m.Name)
		}
	}

	couchdb, err := couch.New(couch.Options{URL: opts.CouchURL})
	if err != nil {
		return err
	}
	a.onStop("couchdb", func(context.Context) error { return couchdb.Close() })

	leases := fence.New(pool, holder(), opts.LeaseTTL)
	archiver := archive.New(archive.Options{
		Pool:    pool,
		Couch:   couchdb,
		Leases:  leases,
		Log:     logger,
		Env:     opts.Env,
		Workers: opts.Workers,
	})
	rotator, err := rotation.New(rotation.Options{
		Pool:    pool,
		Couch:   couchdb,
		Leases:  leases,
		Env:     opts.Env,
		Log:     logger,
		Workers: opts.Workers,
	})
	if err != nil {
		return err
	}
	drops := guard.New(guard.Options{
		Pool:    pool,
		Couch:   couchdb,
		Archive: archiver,
		Leases:  leases,
		Log:     logger,
		Env:     opts.Env,
		TTLDays: opts.TTLDays,
		Settle:  opts.SealSettle,
		Silence: opts.DeviceSilence,
		// Many times the milliseconds for which the cache was seen to lag.
		UnsealPause: 5 * time.Second,
		Workers:     opts.Workers,
		// With the plane off as well: what it has once applied is still to be delivered.
		Undelivered: undelivered,
	})
	backups, err := opts.backupJobs()
	if err != nil {
		return err
	}
	tell, err := a.startAlerts(ctx, metrics)
	if err != nil {
		return err
	}
	crews := crew.New(crew.Options{
		Pool: pool,
		Name: holder(),
		Units: map[string]run.Unit{
			rotation.Name: rotator.Unit,
			guard.Name:    drops.Unit,
			archive.Name:  archiver.Unit,
		},
		Workers: opts.Workers,
		Lease:   opts.LeaseTTL,
		Logger:  logger,
		Metrics: metrics,
	})
	plane, err := a.startDevicePlane(ctx, pool, metrics)
	if err != nil {
		return err
	}
	continuity, err := a.startContinuity(ctx, pool, couchdb, leases, metrics, tell)
	if err != nil {
		return err
	}
	crons, err := cron.New(cron.Options{
		Pool:      pool,
		Leases:    leases,
		Logger:    logger,
		Metrics:   metrics,
		NoCatchUp: opts.NoCatchUp,
		Share:     tell.ofDead(crews.Share),
	}, slices.Concat(jobs(pool, rotator, drops, archiver), backups, continuity.purgeJobs(pool, opts.BackupDir))...)
	if err != nil {
		return err
	}
	adminOptions := api.Options{
		Env:        opts.Env,
		Version:    opts.Version,
		Tokens:     tokens,
		Pool:       pool,
		Migrations: schema,
		Couch:      couchdb,
		Crons:      crons,
		Guard:      drops,
		Archive:    archiver,
		Metrics:    metrics,
		Logger:     logger,
	}
	if plane != nil {
		adminOptions.Devices = plane // A nil *devicePlane would be a Devices that is not nil.
	}
	if continuity != nil {
		adminOptions.Continuity = continuity.admin
	}
	mux := http.NewServeMux()
	mux.Handle("/", api.New(adminOptions))
	if err := a.serve(ctx, continuity.besideInternal(besideDevices(plane, mux))); err != nil {
		return err
	}

	if plane != nil {
		// Feeds would keep the HTTP server from shutting down.
		a.onStop("device feeds", plane.shut)
	}
	a.onStop("crew", crews.Stop)
	if err := crews.Start(ctx); err != nil {
		return err
	}
	crons.Start()
	a.onStop("crons", crons.Stop)
	logger.InfoContext(ctx, "started", "version", opts.Version, "env", opts.Env, "addr", a.addr.String(), "couchdb", couchdb.Addr())
	return nil
}

// serve starts the HTTP server. The crons are stopped before it, so that the
// requests that wait for a run have their answer when it is shut down.
func (a *App) serve(ctx context.Context, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.opts.ListenAddr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.addr = listener.Addr()
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(a.opts.Logger.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("serve: %w", err)
		}
	}()
	a.onStop("http server", func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		<-ended
		return err
	})
	return nil
}

// Addr is where the HTTP server listens, once it is started.
func (a *App) Addr() string { return a.addr.String() }

// Failed delivers the error of a server that ended by itself.
func (a *App) Failed() <-chan error { return a.failed }

// Stop undoes the start in the reverse order: the crons first, whose runs write
// how far they came, then the API, then the stores. When ctx ends before that,
// what is left is cut off, and Stop says so.
func (a *App) Stop(ctx context.Context) error {
	var problems []error
	for len(a.cleanups) > 0 {
		last := a.cleanups[len(a.cleanups)-1]
		a.cleanups = a.cleanups[:len(a.cleanups)-1]
		if err := last.do(ctx); err != nil {
			problems = append(problems, fmt.Errorf("stop %s: %w", last.what, err))
		}
	}
	return errors.Join(problems...)
}

func (a *App) onStop(what string, do func(ctx context.Context) error) {
	a.cleanups = append(a.cleanups, cleanup{what: what, do: do})
}

// within runs fn, and gives up on it when ctx ends.
func within(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
