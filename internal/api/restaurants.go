package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

type restaurantBody struct {
	daydb.Restaurant
	Timezone string `json:"timezone"`
	LegacyDB string `json:"legacyDb"`
	Active   bool   `json:"active"`
	// CoreWarmedAt is when core first held the whole catalogue; nil before.
	CoreWarmedAt *time.Time `json:"coreWarmedAt"`
}

func restaurantOf(r daydb.Registration) restaurantBody {
	return restaurantBody{
		Restaurant:   r.Restaurant,
		Timezone:     r.Timezone,
		LegacyDB:     r.LegacyDB,
		Active:       r.Active,
		CoreWarmedAt: r.CoreWarmedAt,
	}
}

func (a *API) listRestaurants(c echo.Context) error {
	q, err := query(c, "companyId")
	if err != nil {
		return err
	}
	if q["companyId"] != "" {
		if err := checkID("companyId", q["companyId"]); err != nil {
			return err
		}
	}
	all, err := daydb.Restaurants(c.Request().Context(), a.Pool)
	if err != nil {
		return err
	}
	listed := []restaurantBody{}
	for _, r := range all {
		if q["companyId"] == "" || r.CompanyID == q["companyId"] {
			listed = append(listed, restaurantOf(r))
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"restaurants": listed})
}

// putRestaurant registers a restaurant, or changes what the request names of
// one that is registered.
func (a *API) putRestaurant(c echo.Context) error {
	ctx := c.Request().Context()
	name := daydb.Restaurant{CompanyID: c.Param("companyId"), RestaurantID: c.Param("restaurantId")}
	if err := checkID("companyId", name.CompanyID); err != nil {
		return err
	}
	if err := checkID("restaurantId", name.RestaurantID); err != nil {
		return err
	}
	var (
		timezone, legacyDB *string
		active             *bool
	)
	if err := decode(c, fields{"timezone": &timezone, "legacyDb": &legacyDB, "active": &active}); err != nil {
		return err
	}
	if timezone != nil {
		if err := a.checkTimezone(ctx, *timezone); err != nil {
			return err
		}
	}
	if legacyDB != nil {
		if err := checkLegacyDB(*legacyDB); err != nil {
			return err
		}
	}
	var saved daydb.Registration
	err := pg.WithTx(ctx, a.Pool, func(tx pgx.Tx) error {
		// One change at a time: what is left out is taken from what is there.
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('restaurant/' || $1))`, name.String()); err != nil {
			return err
		}
		reg, err := daydb.LoadRestaurant(ctx, tx, name)
		if errors.Is(err, daydb.ErrUnknownRestaurant) {
			reg = daydb.Registration{
				Restaurant: name,
				Timezone:   daydb.DefaultTimezone,
				LegacyDB:   contracts.LegacyName(a.Env),
				Active:     true,
			}
		} else if err != nil {
			return err
		}
		if timezone != nil {
			reg.Timezone = *timezone
		}
		if legacyDB != nil {
			reg.LegacyDB = *legacyDB
		}
		if active != nil {
			reg.Active = *active
		}
		if err := daydb.Register(ctx, tx, reg); err != nil {
			return err
		}
		saved, err = daydb.LoadRestaurant(ctx, tx, name)
		return err
	})
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "restaurant registered", "company_id", name.CompanyID, "restaurant_id", name.RestaurantID,
		"timezone", saved.Timezone, "active", saved.Active, "actor", callerOf(c).actor)
	return c.JSON(http.StatusOK, restaurantOf(saved))
}

// checkTimezone refuses a zone that this process or Postgres does not know:
// both compute business days.
func (a *API) checkTimezone(ctx context.Context, zone string) error {
	refused := invalid("invalid_timezone", "timezone", "timezone must be the name of a zone of the tz database, such as %s", daydb.DefaultTimezone)
	// Go takes these two for UTC and for the zone of the process.
	if zone == "" || zone == "Local" {
		return refused
	}
	if _, err := time.LoadLocation(zone); err != nil {
		return refused
	}
	var found bool
	err := a.Pool.QueryRow(ctx, `select exists (select from pg_timezone_names where name = $1)`, zone).Scan(&found)
	if err != nil {
		return fmt.Errorf("look up time zone: %w", pg.Translate(err))
	}
	if !found {
		return refused
	}
	return nil
}

// legacyFormat is that of CouchDB's names, in the length at which it still
// makes files of them.
var legacyFormat = regexp.MustCompile(`^[a-z][a-z0-9_$()+/-]{0,237}$`)

func checkLegacyDB(name string) error {
	if !legacyFormat.MatchString(name) {
		return invalid("invalid_legacy_db", "legacyDb", "legacyDb must be the name of a CouchDB database: a letter, then up to 237 of a-z, 0-9 and _$()+/-")
	}
	if _, err := contracts.ParseDBName(name); err == nil {
		return invalid("invalid_legacy_db", "legacyDb", "%s is the name of a rolling database, which cannot be a legacy one", name)
	}
	return nil
}
