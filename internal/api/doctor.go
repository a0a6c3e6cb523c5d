package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	// doctorTimeout bounds the whole examination.
	doctorTimeout = 30 * time.Second
	// oldestPostgres is the first version whose functions the schema uses.
	oldestPostgres = 140000
	// standardOpenDBs is CouchDB's own default of max_dbs_open.
	standardOpenDBs = 500
	// fewNames bounds how many names a line lists.
	fewNames = 5
)

// doctor examines what the process depends on.
func (a *API) doctor(c echo.Context) error {
	if _, err := query(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), doctorTimeout)
	defer cancel()
	checks := []check{ok("rollingd", "version %s, environment %s", a.Version, a.Env)}
	postgres := a.checkMigrations(ctx)
	checks = append(checks, postgres)
	if postgres.Status == statusOK {
		checks = append(checks, a.checkPostgres(ctx), a.checkZones(ctx))
	}
	couchdb := a.checkCouchSoon(ctx)
	checks = append(checks, couchdb)
	if couchdb.Status == statusOK {
		checks = append(checks, a.checkCouchVersion(ctx), a.checkRecovery(ctx), a.checkProxyAuth(ctx), a.checkGlobalChanges(ctx))
	}
	if postgres.Status == statusOK && couchdb.Status == statusOK {
		checks = append(checks, a.checkOpenDBs(ctx), a.checkGhosts(ctx))
		if a.Devices != nil {
			checks = append(checks, a.checkLegacyRoles(ctx))
		}
	}
	if postgres.Status == statusOK {
		checks = append(checks, a.checkCrons(ctx)...)
	}
	return c.JSON(http.StatusOK, map[string]any{"status": worst(checks), "checks": checks})
}

// checkCouchSoon leaves time for the checks behind it: a CouchDB that hangs
// would use up all of it.
func (a *API) checkCouchSoon(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return a.checkCouch(ctx)
}

func (a *API) checkPostgres(ctx context.Context) check {
	const name = "postgres version"
	var (
		version int
		shown   string
		zone    string
	)
	// The session's own zone is UTC, whatever the server's is.
	err := a.Pool.QueryRow(ctx, `
		select
		  current_setting('server_version_num')::int,
		  current_setting('server_version'),
		  coalesce((select reset_val from pg_settings where name = 'log_timezone'), '')`).Scan(&version, &shown, &zone)
	if err != nil {
		return fail(name, "see the server's log", "cannot be read: %v", pg.Translate(err))
	}
	if version < oldestPostgres {
		return fail(name, "upgrade to Postgres 14 or later", "Postgres %s", shown)
	}
	return ok(name, "Postgres %s; its log is in %s, sessions of rollingd are in UTC", shown, zone)
}

// checkZones looks for restaurants whose zone was typed by hand and is none:
// every cron leaves them out.
func (a *API) checkZones(ctx context.Context) check {
	const name = "time zones"
	rows, err := a.Pool.Query(ctx, `select distinct timezone from restaurants order by 1`)
	if err != nil {
		return fail(name, "", "cannot be read: %v", err)
	}
	zones, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fail(name, "", "cannot be read: %v", err)
	}
	var unknown []string
	for _, zone := range zones {
		if err := a.checkTimezone(ctx, zone); err != nil {
			unknown = append(unknown, zone)
		}
	}
	if len(unknown) > 0 {
		return fail(name, "correct them with `rollingd restaurants put`", "restaurants are in unknown zones, and every cron leaves them out: %s", strings.Join(unknown, ", "))
	}
	return ok(name, "%s", some(zones, "no restaurant is registered"))
}

func (a *API) checkCouchVersion(ctx context.Context) check {
	const name = "couchdb version"
	welcome, err := a.Couch.Welcome(ctx)
	if err != nil {
		return fail(name, "see CouchDB's log", "cannot be read: %v", err)
	}
	if !strings.HasPrefix(welcome.Version, "3.") {
		return warn(name, "use CouchDB 3.3 or later", "CouchDB %s; only 3.x is known to work", welcome.Version)
	}
	return ok(name, "CouchDB %s", welcome.Version)
}

// checkOpenDBs: a CouchDB that has to open and close databases all the time
// answers 500 for databases that are there.
func (a *API) checkOpenDBs(ctx context.Context) check {
	const (
		name   = "couchdb open databases"
		advice = "raise [couchdb] max_dbs_open, and the limit of open files with it"
	)
	limit := standardOpenDBs
	value, err := a.Couch.Config(ctx, "couchdb", "max_dbs_open")
	if err == nil && value != "" {
		limit, err = strconv.Atoi(value)
	}
	if err != nil {
		return warn(name, advice, "max_dbs_open cannot be read")
	}
	var busy int
	err = a.Pool.QueryRow(ctx, `
		select (select count(*) from restaurants where active)
		     + (select count(*) from day_databases where state in ('PREWARMED', 'ACTIVE', 'DRAINING'))`).Scan(&busy)
	if err != nil {
		return warn(name, advice, "open databases cannot be counted: %v", pg.Translate(err))
	}
	if busy > limit {
		return warn(name, advice, "%d databases are in use, max_dbs_open is %d", busy, limit)
	}
	return ok(name, "%d in use, max_dbs_open is %d", busy, limit)
}

func (a *API) checkGlobalChanges(ctx context.Context) check {
	const name = "couchdb _global_changes"
	_, err := a.Couch.Info(ctx, "_global_changes")
	switch {
	case errors.Is(err, couch.ErrNotFound):
		return ok(name, "absent")
	case err != nil:
		return warn(name, "", "cannot be looked for: %v", err)
	}
	return warn(name, "delete it, or raise max_dbs_open well above what is in use", "present: under load it was seen to bring CouchDB down")
}

func (a *API) checkGhosts(ctx context.Context) check {
	const name = "ghost databases"
	ghosts, err := a.Guard.Ghosts(ctx)
	if err != nil {
		return fail(name, "", "cannot be looked for: %v", err)
	}
	var again, strange []string
	for _, g := range ghosts {
		if g.Dropped {
			again = append(again, g.DBName)
		} else {
			strange = append(strange, g.DBName)
		}
	}
	switch {
	case len(again) > 0:
		return fail(name, "find the client that holds an administrator's password; copy what it wrote into the current day, then delete the database by hand",
			"dropped, and created again by somebody: %s", some(again, ""))
	case len(strange) > 0:
		return warn(name, "find out who made them; rollingd never touches them", "not in the ledger: %s", some(strange, ""))
	}
	return ok(name, "none")
}

func (a *API) checkCrons(ctx context.Context) []check {
	entries, err := a.Crons.List(ctx)
	if err != nil {
		return []check{fail("crons", "", "cannot be listed: %v", err)}
	}
	checks := make([]check, 0, len(entries))
	for _, e := range entries {
		checks = append(checks, checkCron(e))
	}
	return checks
}

func checkCron(e cron.Entry) check {
	name := fmt.Sprintf("cron %s (%s)", e.Name, e.Zone)
	if e.Paused {
		return warn(name, "rollingd crons resume "+e.Name, "paused by %s since %s: %s", e.Pause.Actor, e.Pause.Since.UTC().Format(timeFormat), e.Pause.Reason)
	}
	last := e.LastWholeRun
	if last == nil {
		return ok(name, "has not run yet as a whole; next at %s", e.NextRunAt.Format(timeFormat))
	}
	said := fmt.Sprintf("run %d %s at %s", last.ID, last.State, last.StartedAt.UTC().Format(timeFormat))
	switch last.State {
	case cron.Failed:
		return fail(name, fmt.Sprintf("`rollingd runs %d` says why", last.ID), "%s: %s", said, lastFailure(*last))
	case cron.Partial:
		return warn(name, fmt.Sprintf("`rollingd runs %d` says why", last.ID), "%s, failures: %d, the last: %s", said, len(last.Failures), lastFailure(*last))
	}
	return ok(name, "%s", said)
}

func lastFailure(r cron.Run) string {
	if len(r.Failures) == 0 {
		return "no failure is on record"
	}
	f := r.Failures[len(r.Failures)-1]
	// Errors mostly begin with the step that they are of.
	return f.Step + ": " + strings.TrimPrefix(f.Error, f.Step+": ")
}

// some joins the first few names.
func some(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	if len(names) <= fewNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:fewNames], ", "), len(names)-fewNames)
}
