package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device"
	"github.com/rollingd/rollingd/internal/pg"
)

// Devices is the device plane; *device.Proxy has it.
type Devices interface {
	// Issue signs a token from now on; device.ErrNoIssuer.
	Issue(who device.Identity, now time.Time, ttl time.Duration) (token string, expiresAt time.Time, err error)
	// Probe fails unless CouchDB takes the proxy's word for who a device is.
	Probe(ctx context.Context) error
}

const (
	leastDeviceTTL = time.Minute
	mostDeviceTTL  = 366 * 24 * time.Hour
)

// errNoDevices answers what needs a device plane that is off.
var errNoDevices = &refusal{
	status: http.StatusConflict,
	code:   "device_plane_off",
	detail: "the device plane is off; set ROLLINGD_DEVICE_JWT_SECRET and ROLLINGD_COUCHDB_PROXY_SECRET, and start the server again",
}

// issueDeviceToken signs a token for a device of a restaurant that is registered.
func (a *API) issueDeviceToken(c echo.Context) error {
	ctx := c.Request().Context()
	var (
		company, restaurant, id *string
		seconds                 *int64
	)
	err := decode(c, fields{"companyId": &company, "restaurantId": &restaurant, "deviceId": &id, "ttlSeconds": &seconds})
	if err != nil {
		return err
	}
	who := device.Identity{
		Restaurant: daydb.Restaurant{CompanyID: orZero(company), RestaurantID: orZero(restaurant)},
		DeviceID:   orZero(id),
	}
	if err := checkDevice(who); err != nil {
		return err
	}
	ttl, ok := secondsWithin(orZero(seconds), leastDeviceTTL, mostDeviceTTL)
	if !ok {
		return invalid("invalid_ttl", "ttlSeconds", "ttlSeconds must be a whole number from %d to %d",
			int64(leastDeviceTTL.Seconds()), int64(mostDeviceTTL.Seconds()))
	}
	if a.Devices == nil {
		return errNoDevices
	}
	if _, err := daydb.LoadRestaurant(ctx, a.Pool, who.Restaurant); err != nil {
		return err
	}
	var now time.Time
	if err := a.Pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return fmt.Errorf("read the clock: %w", pg.Translate(err))
	}
	token, expiresAt, err := a.Devices.Issue(who, now, ttl)
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "device token issued", "company_id", who.CompanyID, "restaurant_id", who.RestaurantID,
		"device_id", who.DeviceID, "expires_at", expiresAt, "actor", callerOf(c).actor)
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, map[string]any{"token": token, "expiresAt": expiresAt})
}

// revokeDeviceTokens refuses what a device, or each device of a restaurant, has
// been given so far. It works with the device plane off too: tokens outlive it.
func (a *API) revokeDeviceTokens(c echo.Context) error {
	ctx, actor := c.Request().Context(), callerOf(c).actor
	who := device.Identity{
		Restaurant: daydb.Restaurant{CompanyID: c.Param("companyId"), RestaurantID: c.Param("restaurantId")},
		DeviceID:   c.Param("deviceId"),
	}
	named := who
	if named.DeviceID == "" {
		named.DeviceID = "all"
	}
	if err := checkDevice(named); err != nil {
		return err
	}
	var at time.Time
	err := pg.WithTx(ctx, a.Pool, func(tx pgx.Tx) error {
		if _, err := daydb.LoadRestaurant(ctx, tx, who.Restaurant); err != nil {
			return err
		}
		var err error
		at, err = device.Revoke(ctx, tx, who, actor)
		return err
	})
	if err != nil {
		return err
	}
	a.Logger.InfoContext(ctx, "device tokens revoked", "company_id", who.CompanyID, "restaurant_id", who.RestaurantID,
		"device_id", who.DeviceID, "actor", actor)
	return c.JSON(http.StatusOK, map[string]any{
		"companyId": who.CompanyID, "restaurantId": who.RestaurantID, "deviceId": who.DeviceID, "revokedAt": at,
	})
}

func checkDevice(who device.Identity) error {
	if err := checkID("companyId", who.CompanyID); err != nil {
		return err
	}
	if err := checkID("restaurantId", who.RestaurantID); err != nil {
		return err
	}
	return checkDeviceID(who.DeviceID)
}

func checkDeviceID(id string) error {
	if !device.ValidDeviceID(id) {
		return invalid("invalid_id", "deviceId", "deviceId must be 1 to 64 letters, digits or ._-, the first a letter or a digit")
	}
	return nil
}

// secondsWithin reads a number of seconds, of which no product overflows.
func secondsWithin(n int64, least, most time.Duration) (time.Duration, bool) {
	if n < int64(least.Seconds()) || n > int64(most.Seconds()) {
		return 0, false
	}
	return time.Duration(n) * time.Second, true
}
