package api

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/run"
)

func (a *API) listCrons(c echo.Context) error {
	if _, err := query(c); err != nil {
		return err
	}
	entries, err := a.Crons.List(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"crons": orEmpty(entries)})
}

// runCron starts a run: 202 with its id at once, or 200 with the run when it
// has ended, if the request waits.
func (a *API) runCron(c echo.Context) error {
	name := c.Param("name")
	destructive, err := a.Crons.Destructive(name)
	if err != nil {
		return err
	}
	var (
		company, restaurant, day *string
		dryRun, wait             *bool
	)
	err = decode(c, fields{
		"companyId":    &company,
		"restaurantId": &restaurant,
		"businessDay":  &day,
		"dryRun":       &dryRun,
		"wait":         &wait,
	})
	if err != nil {
		return err
	}
	req := cron.Request{Actor: callerOf(c).actor, DryRun: orZero(dryRun), Wait: orZero(wait)}
	if req.Scope, err = scopeOf(company, restaurant, day); err != nil {
		return err
	}
	if destructive && !req.DryRun {
		if err := needs(c, Destroyer, name+" without dryRun"); err != nil {
			return err
		}
	}
	started, err := a.Crons.Trigger(c.Request().Context(), name, req)
	if err != nil {
		return err
	}
	if req.Wait {
		return c.JSON(http.StatusOK, started)
	}
	return c.JSON(http.StatusAccepted, map[string]any{"runId": started.ID})
}

func scopeOf(company, restaurant, day *string) (scope run.Scope, err error) {
	for field, id := range map[string]*string{"companyId": company, "restaurantId": restaurant} {
		if id == nil {
			continue
		}
		if err := checkID(field, *id); err != nil {
			return run.Scope{}, err
		}
	}
	if day != nil && *day == "" {
		return run.Scope{}, invalid("invalid_day", "businessDay", "businessDay must be a calendar day as YYYYMMDD")
	}
	scope = run.Scope{CompanyID: orZero(company), RestaurantID: orZero(restaurant)}
	scope.BusinessDay, err = dayOf("businessDay", orZero(day))
	return scope, err
}

func (a *API) pauseCron(c echo.Context) error {
	if _, err := a.Crons.Destructive(c.Param("name")); err != nil {
		return err
	}
	reason, err := requiredReason(c)
	if err != nil {
		return err
	}
	if err := a.Crons.Pause(c.Request().Context(), c.Param("name"), reason, callerOf(c).actor); err != nil {
		return err
	}
	return a.answerCron(c, c.Param("name"))
}

// resumeCron takes a reason too, for the log, and does not insist on it.
func (a *API) resumeCron(c echo.Context) error {
	name := c.Param("name")
	destructive, err := a.Crons.Destructive(name)
	if err != nil {
		return err
	}
	if destructive {
		if err := needs(c, Destroyer, "resuming "+name); err != nil {
			return err
		}
	}
	if _, err := optionalReason(c); err != nil {
		return err
	}
	if err := a.Crons.Resume(c.Request().Context(), name, callerOf(c).actor); err != nil {
		return err
	}
	return a.answerCron(c, name)
}

// answerCron answers with the entries of one cron.
func (a *API) answerCron(c echo.Context, name string) error {
	entries, err := a.Crons.List(c.Request().Context())
	if err != nil {
		return err
	}
	var own []cron.Entry
	for _, e := range entries {
		if e.Name == name {
			own = append(own, e)
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"crons": orEmpty(own)})
}

const (
	standardRuns = 50
	mostRuns     = 500
)

func (a *API) listRuns(c echo.Context) error {
	q, err := query(c, "cron", "limit", "before")
	if err != nil {
		return err
	}
	f := cron.Filter{Cron: q["cron"]}
	if f.Cron != "" {
		if _, err := a.Crons.Destructive(f.Cron); err != nil {
			return invalid("unknown_cron", "cron", "there is no such cron; `rollingd crons` lists them")
		}
	}
	if f.Limit, err = limitOf(q["limit"], standardRuns, mostRuns); err != nil {
		return err
	}
	if q["before"] != "" {
		if f.BeforeID, err = strconv.ParseInt(q["before"], 10, 64); err != nil || f.BeforeID < 1 {
			return invalid("invalid_id", "before", "before must be the id of a run")
		}
	}
	runs, err := a.Crons.Runs(c.Request().Context(), f)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"runs": orEmpty(runs)})
}

func (a *API) getRun(c echo.Context) error {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil || id < 1 {
		return invalid("invalid_id", "id", "the id of a run is a number")
	}
	found, err := a.Crons.Run(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, found)
}

// orEmpty makes a list that is nil an empty one, which JSON tells apart.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
