// Package edgeapp wires an edge together: the clients of the primary and of the
// hosted database, the router, the HTTP API, the watch and the alerts. It stops
// all of it in the reverse order.
package edgeapp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/router"
	"github.com/rollingd/rollingd/internal/daemon"
)

const (
	headerTimeout = 10 * time.Second
	// requestTimeout bounds how long a client may take to send its request.
	requestTimeout = 20 * time.Second
	// answerTimeout bounds a request as a whole: it is longer than a write that
	// tries the primary and then the queue, several times.
	answerTimeout = 2 * time.Minute
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
)

// App is an edge.
type App struct {
	*daemon.Daemon
	opts   Options
	watch  *edge.Watch
	alerts *alert.Alerts
}

// New returns an edge, or a daemon.InvalidError. It does nothing else yet.
func New(opts Options) (*App, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &App{Daemon: daemon.New(), opts: opts}, nil
}

// Start begins to serve. Neither the primary nor the hosted database need be
// there. When a step fails, those before it are undone.
func (a *App) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
		}
	}()
	opts, logger := a.opts, a.opts.Logger
	tokens, err := edge.ParseTokens(opts.Tokens)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	primary, err := edge.NewPrimary(opts.PrimaryURL, opts.PrimaryToken)
	if err != nil {
		return err
	}
	a.OnStop("primary", func(context.Context) error { primary.Close(); return nil })

	transitions := edge.NewTransitions()
	routing := router.Options{
		Primary: primary,
		Breaker: breaker.Options{
			FailureThreshold: opts.FailureThreshold,
			OpenWindow:       opts.OpenWindow,
			RecoveryProbes:   opts.RecoveryProbes,
			OnChange:         transitions.Add,
		},
		Instance:     opts.Instance,
		PassThrough:  !opts.Phase.Hosted(),
		Shadow:       opts.Phase.Hosted() && !opts.Phase.Routes(),
		ReadTimeout:  opts.ReadTimeout,
		WriteTimeout: opts.WriteTimeout,
		Metrics:      metrics,
		Logger:       logger,
	}
	watching := edge.WatchOptions{
		Phase:          opts.Phase,
		Interval:       opts.WatchInterval,
		QueueThreshold: int64(opts.QueueThreshold),
		Transitions:    transitions,
		Metrics:        metrics,
		Logger:         logger,
	}
	if opts.Phase.Hosted() {
		plane, closePlane, err := openHosted(ctx, opts)
		if err != nil {
			return err
		}
		a.OnStop("hosted database", func(ctx context.Context) error { return daemon.Within(ctx, closePlane) })
		routing.Queue, routing.Snapshots, routing.Fence = plane, plane, plane
		watching.Hosted = plane
	}
	rt := router.New(routing)
	a.OnStop("router", func(ctx context.Context) error { return daemon.Within(ctx, rt.Close) })
	if opts.Phase.Alerts() {
		if err := a.startAlerts(ctx, metrics); err != nil {
			return err
		}
		watching.Alerts = a.alerts
	}
	watching.Router = rt
	a.watch = edge.NewWatch(watching)
	a.Background(ctx, "watch", a.watch.Run)

	api := edge.New(edge.Options{
		Phase:       opts.Phase,
		Router:      rt,
		Tokens:      tokens,
		MercadoPago: mercadoPago(opts),
		C6:          c6(opts),
		Watch:       a.watch,
		Version:     opts.Version,
		Metrics:     metrics,
		Logger:      logger,
	})
	server := &http.Server{
		Handler:           api,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	if err := a.Serve(ctx, opts.ListenAddr, server); err != nil {
		return err
	}
	logger.InfoContext(ctx, "started", "version", opts.Version, "addr", a.Addr(), "phase", opts.Phase, "instance", opts.Instance)
	return nil
}

func mercadoPago(opts Options) *edge.MercadoPago {
	if opts.MercadoPagoSecret == "" {
		return nil
	}
	return edge.NewMercadoPago(edge.MercadoPagoOptions{
		Secret:      opts.MercadoPagoSecret,
		AccessToken: opts.MercadoPagoAccessToken,
		API:         opts.MercadoPagoAPI,
	})
}

func c6(opts Options) *edge.C6 {
	if opts.C6Token == "" {
		return nil
	}
	return &edge.C6{Token: opts.C6Token}
}

// startAlerts starts the senders that there are settings for. Without any, what
// would be told is in the metrics alone.
func (a *App) startAlerts(ctx context.Context, metrics prometheus.Registerer) error {
	senders, err := a.opts.Senders()
	if err != nil {
		return err
	}
	a.alerts = alert.New(alert.Options{
		Origin:  a.opts.Instance,
		Senders: senders,
		Metrics: metrics,
		Logger:  a.opts.Logger,
	})
	a.Background(ctx, "alerts", a.alerts.Run)
	return nil
}

// Summarize tells people how things stand, if they are told anything.
func (a *App) Summarize(ctx context.Context) {
	if a.alerts != nil {
		a.alerts.Tell(ctx, alert.Message{Subject: "daily summary", Text: a.watch.Summary()})
	}
}
