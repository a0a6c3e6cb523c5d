package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/devstack"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

// outage is what dev --continuity adds: a hosted Postgres, an edge, and a primary
// in a process of its own, which can be killed.
type outage struct {
	hosted  *devstack.Postgres
	service string
	edge    *edgeapp.App
	primary *child
	control *http.Server
	// controlURL is where the primary is killed and started.
	controlURL string
	edgeToken  string
}

// The windows are short, so that an outage can be watched.
const (
	devOpenWindow    = 5 * time.Second
	devWatchInterval = time.Second
	childWithin      = 20 * time.Second
)

// startOutage starts all of it. The primary serves on listen.
func (c *cli) startOutage(ctx context.Context, s *stand, dir, listen string, opts primaryEnv) (_ *outage, err error) {
	o := &outage{edgeToken: randomToken()}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.stop(ctx))
		}
	}()
	folder := ""
	if dir != "" {
		folder = filepath.Join(dir, "hosted")
	}
	o.hosted, o.service, err = devstack.StartHosted(ctx, devstack.PostgresOptions{Dir: folder, Durable: dir != ""}, randomToken())
	if err != nil {
		return nil, err
	}
	if err := migrateHosted(ctx, o.hosted.DSN()); err != nil {
		return nil, err
	}
	serviceToken := randomToken()
	o.primary = &child{listen: listen, errOut: c.errOut, env: append(opts.variables(s),
		"LOCAL_CONTINUITY_PHASE=6",
		hostedVariable+"="+o.service,
		"ROLLINGD_SERVICE_TOKENS="+serviceToken,
		"ROLLINGD_LISTEN_ADDR="+listen,
	)}
	if err := o.primary.start(ctx); err != nil {
		return nil, err
	}
	o.edge, err = edgeapp.New(edgeapp.Options{
		Phase:         edge.Everything,
		ListenAddr:    "127.0.0.1:0",
		Tokens:        "dev=" + o.edgeToken,
		PrimaryURL:    "http://" + listen,
		PrimaryToken:  serviceToken,
		DatabaseURL:   o.service,
		Instance:      "dev-edge",
		Version:       versionText(),
		OpenWindow:    devOpenWindow,
		WatchInterval: devWatchInterval,
		Logger:        slog.New(slog.NewTextHandler(c.errOut, nil)),
	})
	if err != nil {
		return nil, err
	}
	if err := o.edge.Start(ctx); err != nil {
		return nil, err
	}
	return o, o.serveControl(ctx)
}

func migrateHosted(ctx context.Context, dsn string) error {
	pool, err := pg.Open(ctx, dsn, pg.Options{})
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pg.Migrate(ctx, pool, migrations.Hosted())
	return err
}

// serveControl has the primary killed and started by two requests.
func (o *outage) serveControl(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	answer := func(do func(context.Context) error, done string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := do(context.WithoutCancel(r.Context())); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			fmt.Fprintln(w, done)
		}
	}
	mux.HandleFunc("POST /kill", answer(o.primary.kill, "the primary was killed"))
	mux.HandleFunc("POST /start", answer(o.primary.start, "the primary is back"))
	o.control = &http.Server{Handler: mux, ReadHeaderTimeout: childWithin}
	o.controlURL = "http://" + listener.Addr().String()
	go func() { _ = o.control.Serve(listener) }() // It ends with its Close.
	return nil
}

func (o *outage) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), childWithin)
	defer cancel()
	var errs []error
	if o.control != nil {
		errs = append(errs, o.control.Close())
	}
	if o.edge != nil {
		errs = append(errs, o.edge.Stop(ctx))
	}
	if o.primary != nil {
		errs = append(errs, o.primary.end())
	}
	if o.hosted != nil {
		errs = append(errs, o.hosted.Stop())
	}
	return errors.Join(errs...)
}

// child is a primary in a process of its own.
type child struct {
	listen string
	env    []string
	errOut io.Writer

	mu      sync.Mutex
	program *devstack.Program
}

// start starts the process and waits until it answers.
func (p *child) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.program != nil {
		return errors.New("the primary runs already")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// It lives until it is stopped, not until the start is done.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, "serve")
	cmd.Env, cmd.Stderr = append(os.Environ(), p.env...), p.errOut
	if p.program, err = devstack.StartProgram(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, childWithin)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if p.answers(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the primary does not answer on %s: %w", p.listen, context.Cause(ctx)), p.killNow())
		case <-ticker.C:
		}
	}
}

func (p *child) answers(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.listen+"/healthz", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// kill ends the process as a power failure would.
func (p *child) kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killNow()
}

func (p *child) killNow() error {
	if p.program == nil {
		return errors.New("the primary does not run")
	}
	err := p.program.Kill()
	p.program = nil
	return err
}

// end stops the process in order.
func (p *child) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.program == nil {
		return nil
	}
	err := p.program.Stop()
	p.program = nil
	return err
}

// primaryEnv is what a primary in a process of its own needs beside the stores.
type primaryEnv struct {
	token     string
	jwtSecret string
}

func (e primaryEnv) variables(s *stand) []string {
	all := []string{
		"ROLLINGD_ENV=" + devEnv,
		databaseVariable + "=" + s.DatabaseURL,
		couchVariable + "=" + s.CouchDBURL,
		"ROLLINGD_ADMIN_TOKENS=dev=destroyer:" + e.token,
		"ROLLINGD_DEVICE_ORIGINS=*",
	}
	if e.jwtSecret != "" {
		all = append(all, proxySecretVariable+"="+s.proxySecret, "ROLLINGD_DEVICE_JWT_SECRET="+e.jwtSecret)
	}
	return all
}

// printOutage prints how to have one.
func (c *cli) printOutage(s *stand, o *outage) {
	edgeURL := "http://" + o.edge.Addr()
	lines := []string{
		"An outage: the edge answers at " + edgeURL + ", and the primary can be killed.",
		"",
		"  export EDGE=" + edgeURL + " EDGE_TOKEN=" + o.edgeToken,
		"  export " + databaseVariable + "='" + s.DatabaseURL + "' " + hostedVariable + "='" + o.service + "'",
		"  sell() { id=order-$RANDOM$RANDOM; curl -sS $EDGE/v1/commands -H \"Authorization: Bearer $EDGE_TOKEN\" -H 'Content-Type: application/json' \\",
		"    -d '{\"idempotencyKey\":\"'$id'\",\"commandType\":\"order.create\",\"aggregateType\":\"order\",\"aggregateId\":\"'$id'\",\"payload\":{\"companyId\":\"" +
			devCompany + "\",\"restaurantId\":\"" + devRestaurant + "\",\"total\":1990}}'; }",
		"",
		"  sell                                   # the primary applies it",
		"  curl -X POST " + o.controlURL + "/kill    # kill -9",
		"  for i in 1 2 3 4 5 6; do sell; sleep 1; done   # refused or slow at first, then queued",
		"  curl $EDGE/api/_health",
		"  curl -X POST " + o.controlURL + "/start",
		"  " + self() + " continuity                  # the drain, and direct writes open again",
		"  " + self() + " verify-history              # the proof",
	}
	fmt.Fprintln(c.errOut, strings.Join(lines, "\n")+"\n")
}
