package app

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/continuity/project"
	"github.com/rollingd/rollingd/internal/continuity/publish"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	// beatEvery is well within the silence after which an edge may open the queue.
	beatEvery = 3 * time.Second
	// drainEvery and publishEvery are how often there is a look without a wake.
	drainEvery   = 2 * time.Second
	publishEvery = time.Second
	// edgesWithin is how long an edge that reaches the primary may be silent: one
	// whose circuit is open asks once in its window, of 30 seconds and some jitter.
	edgesWithin = 45 * time.Second
	// hostedConns is how many connections there are to the hosted Postgres, whose
	// pooler has few.
	hostedConns = 8
)

// continuityPlane is the primary's half of the continuity plane.
type continuityPlane struct {
	// handler serves /internal/.
	handler http.Handler
	admin   *api.Continuity
	// outbox and snapshots are those of the hosted database, nil as those of admin
	// are.
	outbox    *hosted.Outbox
	snapshots *hosted.Snapshots
}

// undelivered is what the guard asks of the continuity plane.
func undelivered(ctx context.Context, db daydb.Querier, dayIDs []int64) (map[int64]guard.Undelivered, error) {
	found, err := project.UndeliveredOf(ctx, db, dayIDs)
	all := make(map[int64]guard.Undelivered, len(found))
	for id, u := range found {
		all[id] = guard.Undelivered{Count: u.Documents + u.Events + u.Commands, QueueOpen: u.QueueOpen}
	}
	return all, err
}

// startContinuity returns the primary's half, nil if it is switched off. Direct
// writes are closed until the hosted fence has been read.
func (a *App) startContinuity(
	ctx context.Context, pool *pgxpool.Pool, couchdb *couch.Client, leases *fence.Leases, metrics *prometheus.Registry, tell teller,
) (*continuityPlane, error) {
	opts := a.opts
	if opts.ContinuityPhase == edge.Off {
		return nil, nil
	}
	authority, err := primary.New(primary.Options{Pool: pool, Policy: primary.Policy(opts.ContinuityPolicy), Instance: holder()})
	if err != nil {
		return nil, err
	}
	wake := make(chan struct{}, 1)
	lookNow := func() {
		select {
		case wake <- struct{}{}:
		default: // It will look anyway.
		}
	}
	handler, err := primary.NewHandler(primary.HandlerOptions{
		Primary: authority,
		Tokens:  opts.serviceTokens(),
		Resync:  lookNow,
		Logger:  opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	plane := &continuityPlane{handler: handler, admin: &api.Continuity{Phase: int(opts.ContinuityPhase), Primary: authority}}
	if !opts.ContinuityPhase.Hosted() {
		// There is no fence to be read, and no queue that could be open.
		if _, err := authority.Reopen(ctx); err != nil {
			return nil, err
		}
		local, err := authority.State(ctx)
		if err == nil && !local.Direct(authority.Policy()) {
			opts.Logger.WarnContext(ctx, "direct writes are refused, and in this phase nobody will open them",
				"phase", int(opts.ContinuityPhase), "policy", authority.Policy(), "epoch", local.Epoch, "mode", local.Mode)
		}
		return plane, err
	}
	if err := authority.Close(ctx, "the process has started"); err != nil {
		return nil, err
	}
	transport, err := a.openHosted(ctx)
	if err != nil {
		return nil, err
	}
	plane.admin.Queue, plane.admin.Fence, plane.admin.Nodes = hosted.NewQueue(transport), hosted.NewFence(transport), hosted.NewNodes(transport)
	plane.outbox, plane.snapshots = hosted.NewOutbox(transport), hosted.NewSnapshots(transport)

	beat, err := publish.NewHeartbeat(publish.HeartbeatOptions{
		Nodes:    plane.admin.Nodes,
		Primary:  authority,
		NodeID:   "primary",
		Instance: holder(),
		Logger:   opts.Logger,
		Wake:     lookNow,
	})
	if err != nil {
		return nil, err
	}
	drainer, err := drain.New(drain.Options{
		Queue:    plane.admin.Queue,
		Fence:    plane.admin.Fence,
		Primary:  authority,
		Leases:   leases,
		Metrics:  metrics,
		Logger:   opts.Logger,
		Ready:    func() bool { return handler.Heard(edgesWithin) },
		Instance: holder(),
	})
	if err != nil {
		return nil, err
	}
	a.repeat(ctx, "heartbeat", beatEvery, nil, beat.RunOnce)
	a.repeat(ctx, "drain", drainEvery, wake, a.drainOnce(drainer, tell))
	projector, err := project.New(project.Options{Pool: pool, Couch: couchdb, Leases: leases, Metrics: metrics, Logger: opts.Logger})
	if err != nil {
		return nil, err
	}
	a.repeat(ctx, "project", publishEvery, nil, func(ctx context.Context) error {
		_, err := projector.RunOnce(ctx)
		return err
	})
	if opts.ContinuityPhase < edge.Drain {
		return plane, nil
	}
	publisher, err := publish.New(publish.Options{
		Outbox:    plane.outbox,
		Snapshots: plane.snapshots,
		Primary:   authority,
		Pool:      pool,
		Leases:    leases,
		Metrics:   metrics,
		Logger:    opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	a.repeat(ctx, "publish", publishEvery, nil, func(ctx context.Context) error {
		_, err := publisher.RunOnce(ctx)
		return err
	})
	return plane, nil
}

// openHosted returns the transport to the hosted database. It connects to nothing
// yet: the primary starts without it.
func (a *App) openHosted(ctx context.Context) (hosted.Transport, error) {
	if a.opts.SupabaseURL != "" {
		transport, err := hosted.NewPostgREST(a.opts.SupabaseURL, a.opts.SupabaseKey)
		if err != nil {
			return nil, err
		}
		a.OnStop("hosted database", func(ctx context.Context) error { return daemon.Within(ctx, transport.Close) })
		return transport, nil
	}
	pool, err := pg.Open(ctx, a.opts.HostedDatabaseURL, pg.Options{
		MaxConns:          hostedConns,
		ApplicationName:   "rollingd-primary",
		TransactionPooler: true,
	})
	if err != nil {
		return nil, err
	}
	a.OnStop("hosted database", func(ctx context.Context) error { return daemon.Within(ctx, pool.Close) })
	return hosted.NewPostgres(pool), nil
}

// repeat does something at once, at every interval, and when it is woken, until
// the server is stopped. What fails is logged once, and again when it fails in
// another way.
func (a *App) repeat(ctx context.Context, what string, every time.Duration, wake <-chan struct{}, once func(context.Context) error) {
	a.Background(ctx, what, func(ctx context.Context) {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		last := ""
		for {
			said := ""
			if err := once(ctx); err != nil && ctx.Err() == nil {
				said = err.Error()
			}
			if said != "" && said != last {
				a.opts.Logger.WarnContext(ctx, "continuity plane: a step failed and is repeated", "step", what, "error", said)
			}
			last = said
			select {
			case <-ctx.Done():
				return
			case <-wake:
			case <-ticker.C:
			}
		}
	})
}

// besideInternal sends the edges' requests to the primary's half.
func (p *continuityPlane) besideInternal(others http.Handler) http.Handler {
	if p == nil {
		return others
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.EscapedPath(), "/internal/") {
			p.handler.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}
