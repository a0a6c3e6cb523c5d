package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/pg"
)

// probeTimeout bounds a look at whether the process is ready.
const probeTimeout = 5 * time.Second

// checkStatus is how a check came out.
type checkStatus string

const (
	statusOK   checkStatus = "ok"
	statusWarn checkStatus = "warn"
	statusFail checkStatus = "fail"
)

// check is one thing that was looked at.
type check struct {
	Name   string      `json:"name"`
	Status checkStatus `json:"status"`
	Detail string      `json:"detail"`
	// Advice says what to do, unless all is well.
	Advice string `json:"advice,omitempty"`
}

func ok(name, format string, args ...any) check {
	return check{Name: name, Status: statusOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(name, advice, format string, args ...any) check {
	return check{Name: name, Status: statusWarn, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(name, advice, format string, args ...any) check {
	return check{Name: name, Status: statusFail, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

// worst is the worst status of the checks.
func worst(checks []check) checkStatus {
	status := statusOK
	for _, c := range checks {
		if c.Status == statusFail || c.Status == statusWarn && status == statusOK {
			status = c.Status
		}
	}
	return status
}

// healthz says that the process lives, and asks nobody.
func (a *API) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says whether the process can do its work. A warning does not make it
// unready.
func (a *API) readyz(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), probeTimeout)
	defer cancel()
	checks := []check{a.checkMigrations(ctx), a.checkCouch(ctx)}
	if checks[1].Status == statusOK {
		checks = append(checks, a.checkRecovery(ctx))
	}
	status, ready := http.StatusOK, worst(checks) != statusFail
	if !ready {
		status = http.StatusServiceUnavailable
	}
	return c.JSON(status, map[string]any{"ready": ready, "checks": checks})
}

// checkMigrations also is the check that Postgres answers.
func (a *API) checkMigrations(ctx context.Context) check {
	for _, set := range a.Migrations {
		current, err := pg.Current(ctx, a.Pool, set)
		switch {
		case errors.Is(err, pg.ErrNewerSchema):
			return fail("postgres", "start the newer rollingd", "%v", err)
		case err != nil:
			a.Logger.WarnContext(ctx, "postgres does not answer", "error", err)
			return fail("postgres", "see whether Postgres runs, and ROLLINGD_DATABASE_URL", "Postgres does not answer")
		case !current:
			return fail("postgres", "run `rollingd migrate`", "migrations are pending")
		}
	}
	return ok("postgres", "answers, and its migrations are current")
}

func (a *API) checkCouch(ctx context.Context) check {
	if err := a.Couch.Ping(ctx); err != nil {
		a.Logger.WarnContext(ctx, "couchdb does not answer", "error", err)
		return fail("couchdb", "see whether CouchDB runs, and ROLLINGD_COUCHDB_URL", "CouchDB at %s does not answer", a.Couch.Addr())
	}
	return ok("couchdb", "answers at %s", a.Couch.Addr())
}

// checkRecovery: with the setting, CouchDB's DELETE is a rename that an
// operator can undo.
func (a *API) checkRecovery(ctx context.Context) check {
	const (
		name   = "couchdb recovery"
		advice = `set [couchdb] enable_database_recovery = true: a dropped database is then renamed, and can be brought back`
	)
	value, err := a.Couch.Config(ctx, "couchdb", "enable_database_recovery")
	if err != nil {
		return warn(name, advice, "enable_database_recovery cannot be read")
	}
	if value != "true" {
		return warn(name, advice, "enable_database_recovery is off: a DELETE is final")
	}
	return ok(name, "enable_database_recovery is on")
}
