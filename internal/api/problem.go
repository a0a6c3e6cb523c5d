package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/rotation"
)

// Problem is the body of an answer that is an error (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Code is stable; programs go by it.
	Code string `json:"code"`
	// Detail says what is wrong and what to do.
	Detail string `json:"detail"`
	// Field names the part of the request that is wrong, if one is.
	Field string `json:"field,omitempty"`
	// RunID is the run that is in the way of another.
	RunID int64 `json:"runId,omitempty"`
}

const problemType = "application/problem+json"

// refusal is a request that the API itself refuses.
type refusal struct {
	status int
	code   string
	field  string
	detail string
}

func (r *refusal) Error() string { return r.detail }

// invalid refuses a field of the request.
func invalid(code, field, format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, code: code, field: field, detail: fmt.Sprintf(format, args...)}
}

// known maps the errors of the packages below to answers. The first that
// matches counts.
var known = []struct {
	err    error
	status int
	code   string
	field  string
	advice string
}{
	{cron.ErrUnknownCron, http.StatusNotFound, "unknown_cron", "name", "`rollingd crons` lists them"},
	{cron.ErrUnknownRun, http.StatusNotFound, "unknown_run", "id", "`rollingd runs` lists them"},
	{cron.ErrRunning, http.StatusConflict, "running", "", "wait until it has ended, one run of a cron goes on at a time"},
	{cron.ErrPaused, http.StatusConflict, "paused", "", "`rollingd crons resume` lets it run again"},
	{cron.ErrStopped, http.StatusServiceUnavailable, "stopping", "", "the server is being stopped; ask again when it is back"},
	{rotation.ErrBusinessDay, http.StatusUnprocessableEntity, "business_day_refused", "businessDay", "choose a day from the current ACTIVE day up to today"},
	{guard.ErrBusinessDay, http.StatusUnprocessableEntity, "business_day_refused", "businessDay", "with --dry-run, or \"dryRun\": true, it says what would happen on that day"},
	{daydb.ErrNotFound, http.StatusNotFound, "unknown_day_db", "dbName", "`rollingd day-dbs` lists them"},
	{daydb.ErrNoReport, http.StatusNotFound, "no_report", "deviceId", "`rollingd explain` names those that have"},
	{daydb.ErrUnknownRestaurant, http.StatusNotFound, "unknown_restaurant", "restaurantId", "`rollingd restaurants` lists them"},
	{daydb.ErrStale, http.StatusConflict, "stale", "", "a run has changed it meanwhile; look again and repeat"},
	{daydb.ErrIllegalMove, http.StatusConflict, "illegal_move", "", "`rollingd explain` says what state it is in"},
	{flags.ErrDropNeedsRolling, http.StatusUnprocessableEntity, "drop_needs_rolling", "rollingDbDrop", "turn rollingDb on as well, or leave rollingDbDrop off"},
	{device.ErrNoIssuer, http.StatusConflict, "no_device_issuer", "", "ask who signs for ROLLINGD_DEVICE_JWKS_URL, or set ROLLINGD_DEVICE_JWT_SECRET"},
	{archive.ErrNotArchived, http.StatusConflict, "not_archived", "dbName", "run archive first"},
	{fence.ErrHeld, http.StatusConflict, "lease_held", "", "another run works on it; repeat when that has ended"},
	{fence.ErrLost, http.StatusServiceUnavailable, "lease_lost", "", "the run was taken over by another process; `rollingd runs` shows how it ended"},
	{couch.ErrUnavailable, http.StatusServiceUnavailable, "couchdb_unavailable", "", "see `rollingd doctor`, and repeat when CouchDB is back"},
	{pg.ErrOutcomeUnknown, http.StatusServiceUnavailable, "outcome_unknown", "", "the connection to Postgres was lost in the commit; look whether it happened before you repeat it"},
	{pg.ErrUnavailable, http.StatusServiceUnavailable, "postgres_unavailable", "", "see /readyz, and repeat when it is back"},
	{continuity.ErrUnknownCommand, http.StatusNotFound, "unknown_command", "commandId", "GET /admin/continuity/commands lists them"},
	{continuity.ErrInvalid, http.StatusConflict, "not_dead", "commandId", "only a dead command is redriven or skipped"},
	{continuity.ErrNotOpen, http.StatusConflict, "gate_closed", "epoch", "GET /admin/continuity says which gate is open"},
	{continuity.ErrDrift, http.StatusServiceUnavailable, "hosted_schema", "", "the hosted schema has to be of this version"},
	{continuity.ErrOutcomeUnknown, http.StatusServiceUnavailable, "outcome_unknown", "", "look at GET /admin/continuity before you repeat it"},
	{continuity.ErrUnavailable, http.StatusServiceUnavailable, "hosted_unavailable", "", "repeat it when the hosted database answers"},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "timeout", "", "a database did not answer in time; see /readyz"},
}

// problemOf makes an answer of an error. What it does not know is internal, and
// its text stays in the log.
func problemOf(err error) Problem {
	var (
		refused *refusal
		scope   *cron.ScopeError
		running *cron.RunningError
		stale   *continuity.StaleEpochError
		web     *echo.HTTPError
	)
	switch {
	case errors.As(err, &refused):
		return titled(Problem{Status: refused.status, Code: refused.code, Field: refused.field, Detail: refused.detail})
	case errors.As(err, &scope):
		return titled(Problem{Status: http.StatusUnprocessableEntity, Code: "scope_refused", Field: scope.Field, Detail: scope.Reason})
	case errors.As(err, &stale):
		return problemOf(staleEpoch(stale))
	case errors.As(err, &web):
		return webProblem(web)
	}
	for _, k := range known {
		if errors.Is(err, k.err) {
			p := titled(Problem{Status: k.status, Code: k.code, Field: k.field, Detail: textOf(err, k.err) + "; " + k.advice})
			if errors.As(err, &running) {
				p.RunID = running.RunID
			}
			return p
		}
	}
	if isBusy(err) {
		return titled(Problem{Status: http.StatusServiceUnavailable, Code: "busy", Detail: "a run is changing it at this moment; repeat in a few seconds"})
	}
	// Not every store translates what it asks of the pool itself.
	if translated := pg.Translate(err); errors.Is(translated, pg.ErrUnavailable) {
		return problemOf(translated)
	}
	return titled(Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "an unexpected error; the server's log has it under this request's X-Request-Id"})
}

// byDriver are errors whose texts may hold a driver's.
var byDriver = []error{pg.ErrUnavailable, pg.ErrOutcomeUnknown, continuity.ErrUnavailable, continuity.ErrOutcomeUnknown}

// textOf is what is said of an error that is one of those known. A driver's text
// names hosts and users, and stays in the log; what the hosted database itself
// has answered does not.
func textOf(err, sentinel error) string {
	if refused := (*hosted.Refusal)(nil); errors.As(err, &refused) {
		return refused.Error()
	}
	if slices.ContainsFunc(byDriver, func(hidden error) bool { return errors.Is(sentinel, hidden) }) {
		return sentinel.Error()
	}
	return err.Error()
}

// isBusy reports whether Postgres gave up on waiting for another transaction.
func isBusy(err error) bool {
	switch pg.Code(err) {
	case "40001", // serialization_failure
		"40P01", // deadlock_detected
		"55P03": // lock_not_available
		return true
	}
	return false
}

// webProblem translates what the router itself refuses.
func webProblem(err *echo.HTTPError) Problem {
	p := Problem{Status: err.Code, Code: "bad_request", Detail: fmt.Sprint(err.Message)}
	switch err.Code {
	case http.StatusNotFound:
		p.Code, p.Detail = "not_found", "there is no such route"
	case http.StatusMethodNotAllowed:
		p.Code, p.Detail = "method_not_allowed", "the route does not take this method; the header Allow lists those it takes"
	}
	return titled(p)
}

func titled(p Problem) Problem {
	p.Title = http.StatusText(p.Status)
	return p
}

// statusHungUp stands in logs and metrics for a client that did not wait.
const statusHungUp = 499

// answerError writes the answer to a request that failed.
func (a *API) answerError(err error, c echo.Context) {
	if c.Request().Context().Err() != nil && !c.Response().Committed {
		c.Response().Status = statusHungUp
		return
	}
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.Logger.ErrorContext(c.Request().Context(), "request failed",
			"route", c.Path(), "request_id", requestID(c), "code", p.Code, "error", err)
	}
	if c.Response().Committed {
		return
	}
	c.Response().Header().Set(echo.HeaderContentType, problemType)
	c.Response().Header().Set("Cache-Control", "no-store")
	c.Response().WriteHeader(p.Status)
	if c.Request().Method == http.MethodHead {
		return
	}
	// The client has hung up if this fails.
	_ = c.Echo().JSONSerializer.Serialize(c, p, "")
}
