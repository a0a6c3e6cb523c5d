package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
)

// companySize is how many restaurants a company has.
const companySize = 10

// restaurantOf names the i-th restaurant.
func restaurantOf(i int) daydb.Restaurant {
	return daydb.Restaurant{CompanyID: fmt.Sprintf("c%d", i/companySize), RestaurantID: fmt.Sprintf("r%d", i)}
}

// register enters n restaurants, in companies whose rollingDb is on. Their legacy
// database does not exist: a fleet without a past.
func (w *world) register(ctx context.Context, n int, routed bool) error {
	return pg.WithTx(ctx, w.pool, func(tx pgx.Tx) error {
		for i := range n {
			r := restaurantOf(i)
			err := daydb.Register(ctx, tx, daydb.Registration{
				Restaurant: r,
				Timezone:   daydb.DefaultTimezone,
				LegacyDB:   w.env + "-legacy",
				Active:     true,
			})
			if err != nil {
				return err
			}
			if i%companySize != 0 {
				continue
			}
			if _, err := flags.Set(ctx, tx, r.CompanyID, true, false, "bench"); err != nil {
				return err
			}
			if !routed {
				continue
			}
			if _, err := flags.Route(ctx, tx, r.CompanyID, "bench"); err != nil {
				return err
			}
		}
		return nil
	})
}

// drainedDay makes a day database of a restaurant, or adopts the one that an
// earlier world of this environment has made, and enters it as DRAINING.
func (w *world) drainedDay(ctx context.Context, r daydb.Restaurant, day daydb.Day, token int64) (daydb.DayDB, error) {
	name, err := daydb.ComposeName(w.env, r, day)
	if err != nil {
		return daydb.DayDB{}, err
	}
	mark := daydb.Mark{Actor: "bench", Token: token}
	var d daydb.DayDB
	err = pg.WithTx(ctx, w.pool, func(tx pgx.Tx) error {
		d, err = daydb.Insert(ctx, tx, r, day, name, mark)
		return err
	})
	if err != nil {
		return daydb.DayDB{}, err
	}
	if _, err := w.couch.Create(ctx, name); err != nil {
		return daydb.DayDB{}, err
	}
	if err := w.couch.PutSecurity(ctx, name, couch.OpenTo(r.Role(), d.Generation)); err != nil {
		return daydb.DayDB{}, err
	}
	info, err := w.couch.Info(ctx, name)
	if err != nil {
		return daydb.DayDB{}, err
	}
	err = pg.WithTx(ctx, w.pool, func(tx pgx.Tx) error {
		err := daydb.Update(ctx, tx, d, token, `instance_start_time = @created`, pgx.NamedArgs{"created": info.InstanceStartTime})
		if err != nil {
			return err
		}
		for _, event := range []daydb.Event{daydb.Activate, daydb.Drain} {
			if d, err = daydb.Move(ctx, tx, d, event, mark, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return d, err
}

// withToken runs fn under a lease and gives it its token.
func (w *world) withToken(ctx context.Context, fn func(ctx context.Context, lease fence.Lease) error) error {
	return w.leases.Hold(ctx, "bench", fn)
}
