// Package edge is the HTTP API in front of the primary. It takes commands, reads
// and the webhooks of payment providers, and hands them to the router, which
// finds their way while the primary is there and while it is not.
//
// Whatever is not known to be right is refused: callers need a token, webhooks a
// signature, and bodies exactly the fields that there are.
package edge

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
	"github.com/rollingd/rollingd/internal/web"
)

// Options of the API.
type Options struct {
	Phase  Phase
	Router *router.Router
	// Tokens admit callers.
	Tokens Tokens
	// MercadoPago and C6 verify the webhooks; nil refuses them.
	MercadoPago *MercadoPago
	C6          *C6
	// Watch is asked for what it saw last; required.
	Watch   *Watch
	Version string
	Metrics *prometheus.Registry
	Logger  *slog.Logger
}

// Edge serves the routes.
type Edge struct {
	opts    Options
	echo    *echo.Echo
	metrics *metrics
	log     *slog.Logger
}

// New returns the API.
func New(opts Options) *Edge {
	e := &Edge{opts: opts, echo: echo.New(), metrics: newMetrics(opts.Metrics), log: opts.Logger}
	e.echo.HTTPErrorHandler = e.answerError
	e.echo.JSONSerializer = web.PlainJSON{}
	e.echo.Use(e.observe, web.Recover(e.log, identify), e.authenticate)

	probes := []string{http.MethodGet, http.MethodHead}
	e.echo.Match(probes, "/healthz", e.healthz)
	e.echo.Match(probes, "/api/_health", e.health)
	e.echo.GET("/metrics", echo.WrapHandler(promhttp.HandlerFor(opts.Metrics, promhttp.HandlerOpts{})))
	e.echo.POST("/v1/commands", e.command)
	e.echo.GET(readsPrefix+"*", e.read)
	e.echo.POST("/v1/webhooks/mercadopago", e.mercadoPago)
	e.echo.POST("/v1/webhooks/c6", e.c6)
	e.echo.POST("/v1/webhooks/c6/pix", e.c6) // Banks of Pix append it to the URL that they are given.
	return e
}

// ServeHTTP serves a request.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.echo.ServeHTTP(w, r) }

// outcome is the answer to a command that was taken.
type outcome struct {
	Applied   router.Way `json:"applied"`
	CommandID uuid.UUID  `json:"commandId"`
	// Result is the primary's.
	Result json.RawMessage `json:"result,omitempty"`
	// PendingSync: the primary will apply it. It is false for a command that was
	// sent again and is acked by now, or dead, which waits for a person.
	PendingSync  bool `json:"pendingSync"`
	Deduplicated bool `json:"deduplicated"`
	// Status is that of the command in the queue.
	Status contracts.CommandStatus `json:"status,omitempty"`
}

// command takes POST /v1/commands.
func (e *Edge) command(c echo.Context) error {
	if err := requireJSON(c); err != nil {
		return err
	}
	body, err := readBody(c, maxBody)
	if err != nil {
		return err
	}
	cmd, err := decodeCommand(body)
	if err != nil {
		return err
	}
	cmd.CommandID = commandID(c)
	out, err := e.write(c.Request().Context(), cmd)
	if err != nil {
		return err
	}
	setCommandID(c, out.CommandID)
	return c.JSON(out.httpStatus(), out)
}

// write hands a command to the router.
func (e *Edge) write(ctx context.Context, cmd continuity.Command) (outcome, error) {
	start := time.Now()
	written, err := e.opts.Router.Write(ctx, cmd)
	if err != nil {
		return outcome{}, err
	}
	e.log.InfoContext(ctx, "command taken", "command_id", written.CommandID, "command_type", cmd.CommandType,
		"applied", written.Way, "deduplicated", written.Deduplicated, "elapsed", time.Since(start))
	// A status that only a newer version knows is none that settles the command.
	settled := written.Status == contracts.CommandAcked || written.Status == contracts.CommandDead
	return outcome{
		Applied:      written.Way,
		CommandID:    written.CommandID,
		Result:       written.Result,
		PendingSync:  written.Way == router.ByQueue && !settled,
		Deduplicated: written.Deduplicated,
		Status:       written.Status,
	}, nil
}

func (o outcome) httpStatus() int {
	if o.Applied == router.ByQueue {
		return http.StatusAccepted
	}
	return http.StatusOK
}

const readsPrefix = "/v1/reads/"

// read takes GET /v1/reads/:key. A key may have slashes, escaped or not.
func (e *Edge) read(c echo.Context) error {
	key := strings.TrimPrefix(c.Request().URL.Path, readsPrefix)
	if err := checkKey(key); err != nil {
		return err
	}
	view, err := e.opts.Router.Read(c.Request().Context(), key)
	if err != nil {
		return err
	}
	answer := struct {
		Data  json.RawMessage           `json:"data"`
		Stale bool                      `json:"stale"`
		Mode  contracts.ReplicationMode `json:"mode"`
		// SnapshotAt is null for data of the primary, and so is its age.
		SnapshotAt *time.Time `json:"snapshotAt"`
		AgeSeconds *float64   `json:"ageSeconds"`
	}{Data: view.Data, Stale: view.Stale, Mode: view.Mode}
	if view.Stale {
		at, age := view.SnapshotAt.UTC(), view.Age.Seconds()
		answer.SnapshotAt, answer.AgeSeconds = &at, &age
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, answer)
}

// healthz says that the process lives.
func (e *Edge) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// health says what this edge knows, and asks nobody: it needs no token. What is
// not known is null.
func (e *Edge) health(c echo.Context) error {
	answer := struct {
		CircuitState    breaker.State    `json:"circuit_state"`
		PendingCount    *int64           `json:"pending_count"`
		LastSnapshotAge *float64         `json:"last_snapshot_age"`
		Epoch           *int64           `json:"epoch"`
		FenceMode       *continuity.Mode `json:"fence_mode"`
		Phase           Phase            `json:"phase"`
		Version         string           `json:"version"`
	}{CircuitState: e.opts.Router.State(), Phase: e.opts.Phase, Version: e.opts.Version}
	if fence, known := e.opts.Router.FenceKnown(); known {
		epoch := int64(fence.Epoch)
		answer.Epoch, answer.FenceMode = &epoch, &fence.Mode
	}
	if stats, ok := e.opts.Watch.Last(); ok {
		pending := stats.Unsettled()
		answer.PendingCount = &pending
		if stats.SnapshotAge != nil {
			age := stats.SnapshotAge.Seconds()
			answer.LastSnapshotAge = &age
		}
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, answer)
}
