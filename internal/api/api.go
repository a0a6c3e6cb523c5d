// Package api is the administration API of the primary, with the routes that
// say whether the process lives and is ready. Everything under /admin needs a
// bearer token; errors are problem details (RFC 9457) with a stable code.
package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/web"
)

// Crons is the registry of jobs; *cron.Registry has it.
type Crons interface {
	List(ctx context.Context) ([]cron.Entry, error)
	Trigger(ctx context.Context, name string, req cron.Request) (cron.Run, error)
	Pause(ctx context.Context, name, reason, actor string) error
	Resume(ctx context.Context, name, actor string) error
	Runs(ctx context.Context, f cron.Filter) ([]cron.Run, error)
	Run(ctx context.Context, id int64) (cron.Run, error)
	// Destructive reports whether a job may drop a database; cron.ErrUnknownCron.
	Destructive(name string) (bool, error)
}

// Guard explains day databases; *guard.Guard has it.
type Guard interface {
	Explain(ctx context.Context, name string) (guard.Explanation, error)
	List(ctx context.Context, f daydb.Filter) ([]guard.Explanation, error)
	Ghosts(ctx context.Context) ([]guard.Ghost, error)
}

// Archive gives back what was archived; *archive.Archiver has it.
type Archive interface {
	// Restore rebuilds a dropped day in a database of another name. It may take
	// as long as the day is large.
	Restore(ctx context.Context, day daydb.DayDB, reason, actor string) (archive.Restored, error)
	// WriteProofList streams the list over which the proof of a day was taken.
	WriteProofList(ctx context.Context, day daydb.DayDB, w io.Writer) error
}

// CouchDB is what readiness and the doctor ask of the database server;
// *couch.Client has it.
type CouchDB interface {
	Ping(ctx context.Context) error
	Addr() string
	Welcome(ctx context.Context) (couch.Welcome, error)
	Config(ctx context.Context, section, key string) (string, error)
	Info(ctx context.Context, db string) (couch.Info, error)
	Security(ctx context.Context, db string) (couch.Security, error)
}

// Options of the API; all are required but Devices and Continuity.
type Options struct {
	// Env is the prefix of all database names.
	Env string
	// Version of the program, for people.
	Version string
	Tokens  Tokens
	Pool    *pgxpool.Pool
	// Migrations are those that the primary's Postgres has to have.
	Migrations []pg.Migrations
	Couch      CouchDB
	Crons      Crons
	Guard      Guard
	Archive    Archive
	// Devices is nil while the device plane is off.
	Devices Devices
	// Continuity is nil while the continuity plane is off.
	Continuity *Continuity
	Metrics    *prometheus.Registry
	Logger     *slog.Logger
}

// API serves the routes.
type API struct {
	Options
	echo    *echo.Echo
	metrics *metrics
}

// New returns the API.
func New(opts Options) *API {
	a := &API{Options: opts, echo: echo.New(), metrics: newMetrics(opts.Metrics)}
	a.echo.HTTPErrorHandler = a.answerError
	a.echo.JSONSerializer = web.PlainJSON{}
	a.echo.Use(a.observe, web.Recover(a.Logger, identify), a.authenticate)

	// Load balancers ask by HEAD too.
	probes := []string{http.MethodGet, http.MethodHead}
	a.echo.Match(probes, "/healthz", a.healthz)
	a.echo.Match(probes, "/readyz", a.readyz)
	a.echo.GET("/metrics", a.serveMetrics())
	for _, r := range a.adminRoutes() {
		a.echo.Add(r.method, adminPrefix+r.path, r.handler, require(r.role))
	}
	return a
}

// ServeHTTP serves a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.echo.ServeHTTP(w, r) }

// adminPrefix is that of every path, known or not, which needs a token.
const adminPrefix = "/admin"

type route struct {
	method  string
	path    string
	role    Role
	handler echo.HandlerFunc
}

// adminRoutes says which role each route needs at least. Some handlers ask for
// more, depending on what is asked of them: whatever makes a drop possible
// needs destroyer.
func (a *API) adminRoutes() []route {
	return []route{
		{http.MethodGet, "/crons", Viewer, a.listCrons},
		{http.MethodPost, "/crons/:name/run", Operator, a.runCron},
		{http.MethodPost, "/crons/:name/pause", Operator, a.pauseCron},
		{http.MethodPost, "/crons/:name/resume", Operator, a.resumeCron},
		{http.MethodGet, "/runs", Viewer, a.listRuns},
		{http.MethodGet, "/runs/:id", Viewer, a.getRun},
		{http.MethodGet, "/day-dbs", Viewer, a.listDayDBs},
		{http.MethodGet, "/day-dbs/:dbName", Viewer, a.explainDayDB},
		{http.MethodGet, "/day-dbs/:dbName/proof", Viewer, a.downloadProof},
		{http.MethodPut, "/day-dbs/:dbName/hold", Operator, a.holdDayDB},
		{http.MethodDelete, "/day-dbs/:dbName/hold", Destroyer, a.releaseDayDB},
		{http.MethodPut, "/day-dbs/:dbName/devices/:deviceId/waiver", Destroyer, a.waiveDevice},
		{http.MethodDelete, "/day-dbs/:dbName/devices/:deviceId/waiver", Operator, a.endWaiver},
		{http.MethodPost, "/day-dbs/:dbName/restore", Operator, a.restoreDayDB},
		{http.MethodGet, "/flags/:companyId", Viewer, a.getFlags},
		{http.MethodPut, "/flags/:companyId", Operator, a.putFlags},
		{http.MethodGet, "/restaurants", Viewer, a.listRestaurants},
		{http.MethodPut, "/restaurants/:companyId/:restaurantId", Operator, a.putRestaurant},
		{http.MethodPost, "/device-tokens", Operator, a.issueDeviceToken},
		{http.MethodDelete, "/device-tokens/:companyId/:restaurantId", Operator, a.revokeDeviceTokens},
		{http.MethodDelete, "/device-tokens/:companyId/:restaurantId/:deviceId", Operator, a.revokeDeviceTokens},
		{http.MethodGet, "/doctor", Viewer, a.doctor},
		{http.MethodGet, "/continuity", Viewer, a.getContinuity},
		{http.MethodGet, "/continuity/commands", Viewer, a.listCommands},
		{http.MethodPost, "/continuity/commands/:commandId/redrive", Operator, a.redriveCommand},
		{http.MethodPost, "/continuity/commands/:commandId/skip", Destroyer, a.skipCommand},
		{http.MethodPost, "/continuity/force-queue", Destroyer, a.forceQueue},
		{http.MethodPost, "/continuity/force-direct", Destroyer, a.forceDirect},
	}
}
