package rotation

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// ensureCore makes sure that a restaurant's core database exists and is secured.
// A core that was deleted is created again only while devices are not routed to
// it, since the legacy database then still holds the whole catalogue: it becomes
// another database, with another marker, and is warmed from the start. The
// change is committed before the database is created. A crash between the two
// leaves a restaurant that has no core yet.
func (ro *Rotator) ensureCore(ctx context.Context, lease fence.Lease, m *member) (created bool, err error) {
	name, err := contracts.CoreName(ro.env, m.CompanyID, m.RestaurantID)
	if err != nil {
		return false, err
	}
	if m.CoreWarmedAt != nil || m.ManifestGeneration != nil {
		err := ro.verify(ctx, name, m.Restaurant, m.CoreGeneration)
		if !errors.Is(err, ErrDeleted) || m.routed {
			return false, err
		}
		if err := ro.forgetCore(ctx, lease, m); err != nil {
			return false, err
		}
		ro.log.Warn("core was deleted; it is created and warmed again", "company", m.CompanyID, "restaurant", m.RestaurantID)
	}
	return ro.create(ctx, name, m.Restaurant, m.CoreGeneration)
}

// forgetCore gives a restaurant's core a new identity, of which nothing was
// copied yet.
func (ro *Rotator) forgetCore(ctx context.Context, lease fence.Lease, m *member) error {
	next := uuid.New()
	err := pg.WithTx(ctx, ro.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			update restaurants set
			  core_generation = @next,
			  core_warmed_at = null,
			  manifest_generation = null,
			  fencing_token = @token
			where company_id = @company and restaurant_id = @restaurant
			  and core_generation = @generation and fencing_token <= @token`,
			pgx.NamedArgs{
				"next":       next,
				"generation": m.CoreGeneration,
				"token":      lease.Token,
				"company":    m.CompanyID,
				"restaurant": m.RestaurantID,
			})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fence.ErrLost
		}
		_, err = tx.Exec(ctx, `
			delete from legacy_copies
			where company_id = $1 and restaurant_id = $2 and kind = 'core'`, m.CompanyID, m.RestaurantID)
		return err
	})
	if err != nil {
		return fmt.Errorf("forget core of %s: %w", m.Restaurant, err)
	}
	m.CoreGeneration, m.CoreWarmedAt, m.ManifestGeneration = next, nil, nil
	return nil
}
