package device

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
)

// Revoke refuses, from now on and on every replica, the tokens that a device has
// been given so far; an empty device id stands for all devices of the restaurant.
// Tokens that are issued later are good. It returns the time of the revocation.
func Revoke(ctx context.Context, tx pgx.Tx, who Identity, actor string) (time.Time, error) {
	var at time.Time
	err := tx.QueryRow(ctx, `
		insert into device_revocations (company_id, restaurant_id, device_id, revoked_by)
		values (@company, @restaurant, @device, @actor)
		on conflict on constraint device_revocations_pkey do update set
		  revoked_at = now(),
		  revoked_by = excluded.revoked_by
		returning revoked_at`,
		pgx.NamedArgs{
			"company":    who.CompanyID,
			"restaurant": who.RestaurantID,
			"device":     who.DeviceID,
			"actor":      actor,
		}).Scan(&at)
	if err != nil {
		return time.Time{}, fmt.Errorf("revoke tokens of %s: %w", who.Restaurant, pg.Translate(err))
	}
	return at, nil
}
