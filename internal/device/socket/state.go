package socket

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/manifest"
)

// State is what the devices of a restaurant are told.
type State struct {
	Flags contracts.DeviceFlags `json:"flags"`
	// Manifest is nil until the first one was written to core.
	Manifest *contracts.DayManifest `json:"manifest"`
}

// since returns what a device that knows old has to be told, empty for nothing.
func (s State) since(old State) map[string]any {
	delta := make(map[string]any, 2)
	if s.Flags != old.Flags {
		delta["flags"] = s.Flags
	}
	if !sameManifest(s.Manifest, old.Manifest) {
		delta["manifest"] = s.Manifest
	}
	return delta
}

// sameManifest leaves out the time, which informs people.
func sameManifest(a, b *contracts.DayManifest) bool {
	if a == nil || b == nil {
		return a == b
	}
	left, right := *a, *b
	left.UpdatedAt, right.UpdatedAt = "", ""
	return reflect.DeepEqual(left, right)
}

// Ledger reads states from Postgres.
type Ledger struct{ db daydb.Querier }

// NewLedger returns a source that reads the primary's Postgres.
func NewLedger(db daydb.Querier) Ledger { return Ledger{db: db} }

// Load reads one restaurant, or the fleet at once: when a listener has been away
// all of them are asked for.
//
// The manifest is derived from the ledger like the one in core. Its generation is
// that of the last one that core is known to hold: between a move in the ledger
// and the write to core a device is told the new days under the old generation.
func (l Ledger) Load(ctx context.Context, restaurants []daydb.Restaurant) (map[daydb.Restaurant]State, error) {
	var only daydb.Restaurant
	if len(restaurants) == 1 {
		only = restaurants[0]
	}
	byCompany, err := l.flags(ctx, only.CompanyID)
	if err != nil {
		return nil, err
	}
	days, err := daydb.List(ctx, l.db, daydb.Filter{
		CompanyID:    only.CompanyID,
		RestaurantID: only.RestaurantID,
		States:       []daydb.State{daydb.Active, daydb.Draining},
	})
	if err != nil {
		return nil, err
	}
	byRestaurant := make(map[daydb.Restaurant][]daydb.DayDB)
	for _, d := range days {
		byRestaurant[d.Restaurant] = append(byRestaurant[d.Restaurant], d)
	}
	rows, err := l.db.Query(ctx, `
		select company_id, restaurant_id, manifest_generation, updated_at
		from restaurants
		where (@company = '' or company_id = @company)
		  and (@restaurant = '' or restaurant_id = @restaurant)`,
		pgx.NamedArgs{"company": only.CompanyID, "restaurant": only.RestaurantID})
	if err != nil {
		return nil, fmt.Errorf("load what devices are told: %w", err)
	}
	states := make(map[daydb.Restaurant]State)
	var (
		r          daydb.Restaurant
		generation *int64
		updated    time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&r.CompanyID, &r.RestaurantID, &generation, &updated}, func() error {
		state := State{Flags: byCompany[r.CompanyID].Device()}
		if generation != nil {
			m := manifest.Build(byRestaurant[r])
			for _, d := range byRestaurant[r] {
				if d.Since.After(updated) {
					updated = d.Since
				}
			}
			m.Generation, m.UpdatedAt = *generation, updated.Format(time.RFC3339)
			state.Manifest = &m
		}
		states[r] = state
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load what devices are told: %w", err)
	}
	return states, nil
}

func (l Ledger) flags(ctx context.Context, only string) (map[string]flags.Flags, error) {
	if only == "" {
		return flags.All(ctx, l.db)
	}
	f, err := flags.Load(ctx, l.db, only)
	return map[string]flags.Flags{only: f}, err
}
