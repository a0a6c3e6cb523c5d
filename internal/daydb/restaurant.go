package daydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrUnknownRestaurant is returned for a restaurant that is not registered.
var ErrUnknownRestaurant = errors.New("no such restaurant")

// DefaultTimezone is the zone of a restaurant that names none.
const DefaultTimezone = "America/Santiago"

// Registration is a restaurant of the fleet.
type Registration struct {
	Restaurant
	Timezone string
	LegacyDB string
	Active   bool
	// CoreGeneration is the marker in the _security of its core database.
	CoreGeneration uuid.UUID
	// CoreWarmedAt is when core first held the whole catalogue; nil before.
	CoreWarmedAt *time.Time
	// ManifestGeneration is that of the last manifest written; nil before.
	ManifestGeneration *int64
}

const registrationColumns = `
  company_id,
  restaurant_id,
  timezone,
  legacy_db,
  active,
  core_generation,
  core_warmed_at,
  manifest_generation`

func scanRegistration(row pgx.CollectableRow) (Registration, error) {
	var r Registration
	err := row.Scan(&r.CompanyID, &r.RestaurantID, &r.Timezone, &r.LegacyDB, &r.Active,
		&r.CoreGeneration, &r.CoreWarmedAt, &r.ManifestGeneration)
	return r, err
}

// Register enters a restaurant or changes its zone, legacy database and whether
// it is active.
func Register(ctx context.Context, tx pgx.Tx, r Registration) error {
	_, err := tx.Exec(ctx, `
		insert into restaurants (company_id, restaurant_id, timezone, legacy_db, active)
		values (@company, @restaurant, @timezone, @legacy, @active)
		on conflict on constraint restaurants_pkey do update set
		  timezone = excluded.timezone,
		  legacy_db = excluded.legacy_db,
		  active = excluded.active,
		  updated_at = now()`,
		pgx.NamedArgs{
			"company":    r.CompanyID,
			"restaurant": r.RestaurantID,
			"timezone":   r.Timezone,
			"legacy":     r.LegacyDB,
			"active":     r.Active,
		})
	if err != nil {
		return fmt.Errorf("register %s: %w", r.Restaurant, err)
	}
	return nil
}

// LoadRestaurant returns a registration, or ErrUnknownRestaurant.
func LoadRestaurant(ctx context.Context, db Querier, r Restaurant) (Registration, error) {
	rows, err := db.Query(ctx, `select `+registrationColumns+` from restaurants
		where company_id = $1 and restaurant_id = $2`, r.CompanyID, r.RestaurantID)
	if err != nil {
		return Registration{}, fmt.Errorf("load restaurant: %w", err)
	}
	reg, err := pgx.CollectExactlyOneRow(rows, scanRegistration)
	if errors.Is(err, pgx.ErrNoRows) {
		return Registration{}, fmt.Errorf("%w: %s", ErrUnknownRestaurant, r)
	}
	if err != nil {
		return Registration{}, fmt.Errorf("load restaurant: %w", err)
	}
	return reg, nil
}

// Restaurants returns all registrations, in the order of their ids.
func Restaurants(ctx context.Context, db Querier) ([]Registration, error) {
	rows, err := db.Query(ctx, `select `+registrationColumns+` from restaurants order by company_id, restaurant_id`)
	if err != nil {
		return nil, fmt.Errorf("list restaurants: %w", err)
	}
	regs, err := pgx.CollectRows(rows, scanRegistration)
	if err != nil {
		return nil, fmt.Errorf("list restaurants: %w", err)
	}
	return regs, nil
}
