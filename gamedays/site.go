package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

// site is the world of one game day: a primary and two edges in processes of
// their own, databases of their own, and the networks between them.
type site struct {
	*stack
	day day
	// database is the name in both clusters.
	database string
	dir      string
	options

	// The networks. Books and hostedBooks are those to the databases by which this
	// process looks, and by which the primary has its own; they are never cut.
	tunnel        *link
	edgesHosted   *link
	primaryHosted *link
	books         *link
	hostedBooks   *link
	// gateway stands before the hosted database on days over RPC, else it is nil.
	gateway *gateway

	serve *child
	edges []*child
	// others are primaries that another one has taken over from.
	others []*child

	// own is the primary's database, and theirs the hosted one, as its owner.
	own   *pgxpool.Pool
	their *pgxpool.Pool
	queue *hosted.Queue
	fence *hosted.Fence

	edgeToken    string
	adminToken   string
	serviceToken string
	secrets      secrets
	ledger       *ledger
	faults       int
}

// secrets are those of the payment providers.
type secrets struct{ mercadoPago, c6 string }

// leaseTTL is the least that serve takes.
const leaseTTL = 3 * time.Second

// shortWindows have an outage take seconds.
var shortWindows = []string{
	"ROLLINGD_EDGE_OPEN_WINDOW=500ms",
	"ROLLINGD_EDGE_WATCH_INTERVAL=250ms",
	"ROLLINGD_EDGE_READ_TIMEOUT=700ms",
	"ROLLINGD_EDGE_WRITE_TIMEOUT=1s",
}

// shortSettings are those of the fence. Stale is more than two heartbeats of the
// primary.
var shortSettings = hosted.FenceSettings{MinReports: 2, Stale: 7 * time.Second, Dwell: time.Second, SealLimit: 2 * time.Second}

// open starts a world. What has been started is stopped when a step fails.
func (s *stack) open(ctx context.Context, d day, o options) (_ *site, err error) {
	w := &site{
		stack: s, day: d, database: "gameday_" + d.id, options: o, ledger: newLedger(), dir: filepath.Join(s.dir, d.id),
		edgeToken: rand.Text(), adminToken: rand.Text(), serviceToken: rand.Text(), secrets: secrets{mercadoPago: rand.Text(), c6: rand.Text()},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.abandon())
		}
	}()
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return nil, err
	}
	if err := w.openDatabases(ctx); err != nil {
		return nil, err
	}
	if err := w.startPrograms(ctx); err != nil {
		return nil, err
	}
	if err := w.openRestaurants(ctx); err != nil {
		return nil, fmt.Errorf("open the restaurants: %w", err)
	}
	return w, w.calm(ctx)
}

// env is the environment of the primary, with which the names of its databases
// begin.
func (s *site) env() string { return "gameday-" + s.day.id }

func (s *site) openDatabases(ctx context.Context) (err error) {
	for _, c := range []*cluster{s.primary, s.hosted} {
		if err := c.create(ctx, s.database); err != nil {
			return err
		}
	}
	if s.books, err = newLink("primary", s.primary.addr()); err != nil {
		return err
	}
	if s.hostedBooks, err = newLink("hosted", s.hosted.addr()); err != nil {
		return err
	}
	if s.day.transport == overRPC {
		if s.gateway, err = newGateway(ctx, s.hosted.owner(s.hostedBooks, s.database)); err != nil {
			return err
		}
	}
	for _, l := range []**link{&s.edgesHosted, &s.primaryHosted} {
		if *l, err = newLink("hosted", s.hostedEnd()); err != nil {
			return err
		}
	}
	if s.own, err = pg.Open(ctx, s.primary.owner(s.books, s.database), pg.Options{}); err != nil {
		return err
	}
	if s.their, err = pg.Open(ctx, s.hosted.owner(s.hostedBooks, s.database), pg.Options{}); err != nil {
		return err
	}
	if _, err := pg.Migrate(ctx, s.their, migrations.Hosted()); err != nil {
		return err
	}
	transport := hosted.NewPostgres(s.their)
	s.queue, s.fence = hosted.NewQueue(transport), hosted.NewFence(transport)
	if s.standard {
		return nil
	}
	_, err = s.fence.Configure(ctx, shortSettings)
	return err
}

func (s *site) startPrograms(ctx context.Context) (err error) {
	if s.serve, err = s.newServe(ctx); err != nil {
		return err
	}
	if s.tunnel, err = newLink("tunnel", s.serve.addr); err != nil {
		return err
	}
	if err := s.serve.start(ctx); err != nil {
		return err
	}
	for _, instance := range []string{"edge-a", "edge-b"} {
		addr, err := freeAddr(ctx)
		if err != nil {
			return err
		}
		edge := &child{name: instance, program: s.program, arg: "edge", addr: addr, log: filepath.Join(s.dir, instance+".log"), env: append([]string{
			"LOCAL_CONTINUITY_PHASE=6",
			"ROLLINGD_EDGE_LISTEN_ADDR=" + addr,
			"ROLLINGD_EDGE_TOKENS=till=" + s.edgeToken,
			"ROLLINGD_EDGE_INSTANCE=" + instance,
			"ROLLINGD_PRIMARY_URL=http://" + s.tunnel.addr(),
			"ROLLINGD_PRIMARY_TOKEN=" + s.serviceToken,
			"MERCADOPAGO_WEBHOOK_SECRET=" + s.secrets.mercadoPago,
			"C6_WEBHOOK_TOKEN=" + s.secrets.c6,
		}, s.hostedEnv(s.edgesHosted)...)}
		if !s.standard {
			edge.env = append(edge.env, shortWindows...)
		}
		s.edges = append(s.edges, edge)
		if err := edge.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// newServe is a primary on the day's databases, which is not started yet.
func (s *site) newServe(ctx context.Context) (*child, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	return &child{name: "serve", program: s.program, arg: "serve", addr: addr, log: filepath.Join(s.dir, "serve.log"), env: append([]string{
		"ROLLINGD_ENV=" + s.env(),
		"ROLLINGD_DATABASE_URL=" + s.primary.owner(s.books, s.database),
		"ROLLINGD_COUCHDB_URL=" + s.couch.URL(),
		"ROLLINGD_ADMIN_TOKENS=referee=destroyer:" + s.adminToken,
		"ROLLINGD_LISTEN_ADDR=" + addr,
		"ROLLINGD_LEASE_TTL=" + leaseTTL.String(),
		"LOCAL_CONTINUITY_PHASE=6",
		"ROLLINGD_CONTINUITY_POLICY=" + string(s.day.policy),
		"ROLLINGD_SERVICE_TOKENS=" + s.serviceToken,
	}, s.hostedEnv(s.primaryHosted)...)}, nil
}

// secondServe is another primary like the first one.
func (s *site) secondServe(ctx context.Context) (*child, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	second := *s.serve
	second.name, second.addr, second.log = "serve-2", addr, filepath.Join(s.dir, "serve-2.log")
	second.cmd, second.exited, second.err = nil, nil, nil
	// The last of two settings counts.
	second.env = append([]string{}, s.serve.env...)
	second.env = append(second.env, "ROLLINGD_LISTEN_ADDR="+addr)
	return &second, nil
}

// fault counts what is done to the world, and says it in the log of the day.
func (s *site) fault(err error) error {
	s.faults++
	return err
}

// calm waits until direct writes are open, nothing waits, and both edges see so.
func (s *site) calm(ctx context.Context) error {
	seen := ""
	err := until(ctx, "everything is settled and direct writes are open", func(ctx context.Context) (bool, error) {
		state, err := s.fence.State(ctx)
		if err != nil {
			seen = err.Error()
			return false, nil // The hosted database may just have been started.
		}
		stats, err := s.queue.Stats(ctx)
		if err != nil {
			seen = err.Error()
			return false, nil
		}
		seen = fmt.Sprintf("%s of epoch %d, %v, waiting %d", state.Mode, state.Epoch, stats.Commands, stats.Waiting)
		if state.Mode != "DIRECT" || stats.Commands["pending"]+stats.Commands["claimed"] > 0 {
			return false, nil
		}
		for _, edge := range s.edges {
			h, err := s.health(ctx, edge)
			if err != nil {
				seen = err.Error()
				return false, nil
			}
			if h.CircuitState != "PRIMARY" || h.FenceMode != "DIRECT" {
				seen = fmt.Sprintf("%s: %s, %s", edge.name, h.CircuitState, h.FenceMode)
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, seen)
	}
	return nil
}

// settle waits until it is calm, and has both edges write directly as a proof.
func (s *site) settle(ctx context.Context) error {
	for {
		if err := s.calm(ctx); err != nil {
			return err
		}
		direct := 0
		for i := range s.edges {
			a, err := s.take(ctx, i, s.cashflow())
			if err != nil {
				return err
			}
			if a.Applied == byPrimary {
				direct++
			}
		}
		if direct == len(s.edges) {
			return nil
		}
		// A machine that is busy is an outage, too.
	}
}

// programs are those that were started.
func (s *site) programs() []*child {
	all := append([]*child{}, s.edges...)
	if s.serve != nil {
		all = append(all, s.serve)
	}
	return append(all, s.others...)
}

// end stops the programs in order.
func (s *site) end(ctx context.Context) error {
	var errs []error
	for _, c := range s.programs() {
		errs = append(errs, c.end(ctx))
	}
	return errors.Join(errs...)
}

// abandon ends whatever is left, in whichever state.
func (s *site) abandon() error {
	var errs []error
	for _, c := range s.programs() {
		errs = append(errs, c.kill())
	}
	for _, pool := range []*pgxpool.Pool{s.own, s.their} {
		if pool != nil {
			pool.Close()
		}
	}
	if s.gateway != nil {
		errs = append(errs, s.gateway.close())
	}
	for _, l := range []*link{s.tunnel, s.edgesHosted, s.primaryHosted, s.books, s.hostedBooks} {
		if l != nil {
			l.close()
		}
	}
	return errors.Join(errs...)
}

// lastWords are those of all programs, for a day that failed.
func (s *site) lastWords() string {
	var b strings.Builder
	logs, _ := filepath.Glob(filepath.Join(s.dir, "*.log")) // The pattern is right.
	for _, log := range logs {
		fmt.Fprintf(&b, "--- the end of %s\n%s\n", filepath.Base(log), (&child{log: log}).lastWords())
	}
	return b.String()
}
