// Package app wires the server together: it opens the stores, migrates, starts
// the API and the crons, and stops all of it in the reverse order.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/rollingd/rollingd/internal/daemon"
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
	*daemon.Daemon
	opts Options
}

// New returns a server, or a daemon.InvalidError. It does nothing else yet.
func New(opts Options) (*App, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &App{Daemon: daemon.New(), opts: opts}, nil
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
	a.OnStop("postgres", func(ctx context.Context) error { return daemon.Within(ctx, pool.Close) })

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
	a.OnStop("couchdb", func(context.Context) error { return couchdb.Close() })

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
	// The crons are stopped before it, so that requests that wait for a run have
	// their answer when it is shut down.
	server := &http.Server{
		Handler:           continuity.besideInternal(besideDevices(plane, mux)),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	if err := a.Serve(ctx, opts.ListenAddr, server); err != nil {
		return err
	}

	if plane != nil {
		// Feeds would keep the HTTP server from shutting down.
		a.OnStop("device feeds", plane.shut)
	}
	a.OnStop("crew", crews.Stop)
	if err := crews.Start(ctx); err != nil {
		return err
	}
	crons.Start()
	a.OnStop("crons", crons.Stop)
	logger.InfoContext(ctx, "started", "version", opts.Version, "env", opts.Env, "addr", a.Addr(), "couchdb", couchdb.Addr())
	return nil
}
