// Package edgeapp wires an edge together: the clients of the primary and of the
// hosted database, the router, the HTTP API, the watch and the alerts. It stops
// all of it in the reverse order.
package edgeapp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/router"
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
	opts     Options
	cleanups []cleanup
	addr     net.Addr
	failed   chan error
	watch    *edge.Watch
	alerts   *alert.Alerts
}

// cleanup undoes one step of the start.
type cleanup struct {
	what string
	do   func(ctx context.Context) error
}

// New returns an edge, or an InvalidError. It does nothing else yet.
func New(opts Options) (*App, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &App{opts: opts, failed: make(chan error, 1)}, nil
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
	a.onStop("primary", func(context.Context) error { primary.Close(); return nil })

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
		a.onStop("hosted database", func(ctx context.Context) error { return within(ctx, closePlane) })
		routing.Queue, routing.Snapshots, routing.Fence = plane, plane, plane
		watching.Hosted = plane
	}
	rt := router.New(routing)
	a.onStop("router", func(ctx context.Context) error { return within(ctx, rt.Close) })
	if opts.Phase.Alerts() {
		if err := a.startAlerts(ctx, metrics); err != nil {
			return err
		}
		watching.Alerts = a.alerts
	}
	watching.Router = rt
	a.watch = edge.NewWatch(watching)
	a.background(ctx, "watch", a.watch.Run)

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
	if err := a.serve(ctx, api); err != nil {
		return err
	}
	logger.InfoContext(ctx, "started", "version", opts.Version, "addr", a.addr.String(), "phase", opts.Phase, "instance", opts.Instance)
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
	a.background(ctx, "alerts", a.alerts.Run)
	return nil
}

// Summarize tells people how things stand, if they are told anything.
func (a *App) Summarize(ctx context.Context) {
	if a.alerts != nil {
		a.alerts.Tell(ctx, alert.Message{Subject: "daily summary", Text: a.watch.Summary()})
	}
}

// background runs something until the edge is stopped. It outlives the context
// of the start, whose end is the reason to stop in order.
func (a *App) background(ctx context.Context, what string, run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { run(ctx) })
	a.onStop(what, func(ctx context.Context) error {
		cancel()
		return within(ctx, group.Wait)
	})
}

// serve starts the HTTP server, which is the first to be stopped: requests that
// are under way have their answers.
func (a *App) serve(ctx context.Context, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.opts.ListenAddr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.addr = listener.Addr()
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
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

// Stop undoes the start in the reverse order. When ctx ends before that, what is
// left is cut off, and Stop says so.
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
