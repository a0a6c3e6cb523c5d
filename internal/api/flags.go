package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
)

// flagsBody is a company's flags. Nobody sets deviceRouted by hand: the cutover
// does.
type flagsBody struct {
	CompanyID     string `json:"companyId"`
	RollingDb     bool   `json:"rollingDb"`
	RollingDbDrop bool   `json:"rollingDbDrop"`
	DeviceRouted  bool   `json:"deviceRouted"`
}

func bodyOf(companyID string, f flags.Flags) flagsBody {
	return flagsBody{
		CompanyID:     companyID,
		RollingDb:     f.RollingDb,
		RollingDbDrop: f.RollingDbDrop,
		DeviceRouted:  f.DeviceRouted,
	}
}

func (a *API) getFlags(c echo.Context) error {
	company, ctx := c.Param("companyId"), c.Request().Context()
	if err := checkID("companyId", company); err != nil {
		return err
	}
	if err := companyExists(ctx, a.Pool, company); err != nil {
		return err
	}
	f, err := flags.Load(ctx, a.Pool, company)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, bodyOf(company, f))
}

// putFlags changes the flags that the request names. Turning rollingDb off
// turns rollingDbDrop off with it, unless the request says that it is to be on.
func (a *API) putFlags(c echo.Context) error {
	company, ctx, who := c.Param("companyId"), c.Request().Context(), callerOf(c)
	if err := checkID("companyId", company); err != nil {
		return err
	}
	var rolling, drop *bool
	if err := decode(c, fields{"rollingDb": &rolling, "rollingDbDrop": &drop}); err != nil {
		return err
	}
	if rolling == nil && drop == nil {
		return invalid("field_required", "rollingDb", "send rollingDb, rollingDbDrop or both")
	}
	if orZero(drop) {
		if err := needs(c, Destroyer, "turning rollingDbDrop on"); err != nil {
			return err
		}
	}
	var set flags.Flags
	err := pg.WithTx(ctx, a.Pool, func(tx pgx.Tx) error {
		// One change at a time: what is left out is taken from what is there.
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('flags/' || $1))`, company); err != nil {
			return err
		}
		if err := companyExists(ctx, tx, company); err != nil {
			return err
		}
		now, err := flags.Load(ctx, tx, company)
		if err != nil {
			return err
		}
		if rolling == nil {
			rolling = &now.RollingDb
		}
		if drop == nil {
			kept := now.RollingDbDrop && *rolling
			drop = &kept
		}
		set, err = flags.Set(ctx, tx, company, *rolling, *drop, who.actor)
		return err
	})
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "flags changed", "company_id", company, "rolling_db", set.RollingDb, "rolling_db_drop", set.RollingDbDrop, "actor", who.actor)
	return c.JSON(http.StatusOK, bodyOf(company, set))
}

// companyExists refuses a company of which no restaurant is registered and that
// has no flags: its id is a typing error.
func companyExists(ctx context.Context, db pg.Querier, company string) error {
	var found bool
	err := db.QueryRow(ctx, `
		select exists (select from restaurants where company_id = $1)
		    or exists (select from company_feature_flags where company_id = $1)`, company).Scan(&found)
	if err != nil {
		return fmt.Errorf("look up company: %w", pg.Translate(err))
	}
	if !found {
		return &refusal{
			status: http.StatusNotFound,
			code:   "unknown_company",
			field:  "companyId",
			detail: fmt.Sprintf("no restaurant of company %q is registered; `rollingd restaurants put %s RESTAURANT` registers one", company, company),
		}
	}
	return nil
}
