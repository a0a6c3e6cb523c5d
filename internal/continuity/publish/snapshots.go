package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/pg"
)

// keys returns those of the snapshots that events make stale.
func keys(events []event) []string {
	var all []string
	for _, e := range events {
		switch e.AggregateType {
		case "order":
			all = append(all, primary.OrderKey(e.AggregateID), primary.OrdersKey(e.CompanyID, e.RestaurantID))
		case "payment":
			all = append(all, primary.PaymentKey(e.AggregateID))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (w *work) snapshots(ctx context.Context, keys []string) error {
	var stored atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, key := range keys {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			err := w.snapshot(ctx, key)
			if isRefusal(err) {
				// A key that no snapshot can have keeps no event back.
				w.Logger.ErrorContext(ctx, "snapshot refused", "error", err)
				return nil
			}
			if err == nil {
				stored.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	w.result.Snapshots += int(stored.Load())
	return err
}

// versionsOfEpoch is how many versions an epoch has: the low bits of a version
// count, the high ones are the epoch, which rises across a restore.
const versionsOfEpoch = 1 << 32

// snapshot publishes what is under a key now. The version is drawn before the
// state is read, so a higher one never shows an older state.
func (w *work) snapshot(ctx context.Context, key string) error {
	version, err := w.version(ctx)
	if err != nil {
		return err
	}
	state, err := w.Primary.Read(ctx, key)
	if errors.Is(err, primary.ErrUnknownKey) {
		return nil
	}
	if err != nil {
		return err
	}
	stored, err := w.Snapshots.Put(ctx, key, state, version)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if !stored {
		return w.catchUp(ctx, key)
	}
	return nil
}

func (w *work) version(ctx context.Context) (int64, error) {
	var version int64
	err := w.Pool.QueryRow(ctx, `select epoch * $1 + nextval('primary_snapshot_versions') from primary_fence`, int64(versionsOfEpoch)).Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("draw a version: %w", pg.Translate(err))
	}
	return version, nil
}

// errBehind is a snapshot that a newer one has been there before.
var errBehind = errors.New("a newer snapshot is there")

// catchUp makes versions go on above one that is there. Under the lease there is
// no newer state than the primary's, so the primary was restored from a backup
// and counts anew. The next run publishes again.
func (w *work) catchUp(ctx context.Context, key string) error {
	there, err := w.Snapshots.Read(ctx, key)
	if err != nil {
		return fmt.Errorf("read a newer snapshot: %w", err)
	}
	err = pg.WithTx(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := w.lease.Check(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			select setval('primary_snapshot_versions', $1 - epoch * $2)
			from primary_fence, primary_snapshot_versions
			where last_value < $1 - epoch * $2`, there.Version, int64(versionsOfEpoch))
		return err
	})
	return errors.Join(fmt.Errorf("%w: version %d", errBehind, there.Version), err)
}

// refresh publishes the lists of open orders, once in a while.
func (w *work) refresh(ctx context.Context) error {
	now := time.Since(w.began)
	if w.refreshed != nil && now-*w.refreshed < w.Refresh {
		return nil
	}
	rows, err := w.Pool.Query(ctx, `
		select distinct
		  company_id,
		  restaurant_id
		from orders
		where status in ('pending', 'paid', 'preparing')`)
	if err != nil {
		return fmt.Errorf("list restaurants: %w", pg.Translate(err))
	}
	lists, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var company, restaurant string
		err := row.Scan(&company, &restaurant)
		return primary.OrdersKey(company, restaurant), err
	})
	if err != nil {
		return fmt.Errorf("list restaurants: %w", pg.Translate(err))
	}
	if err := w.snapshots(ctx, lists); err != nil {
		return err
	}
	w.refreshed = &now
	return nil
}
