package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// day is a day database as the projection sees it.
type day struct {
	ID         int64
	Name       string
	Business   daydb.Day
	State      daydb.State
	Generation uuid.UUID
}

// gone reports whether nothing can be written to the day any more.
func (d *day) gone() bool { return d.State == daydb.Droppable || d.State == daydb.Dropped }

// item is an order or a payment, with the day that it is bound to.
type item struct {
	daydb.Restaurant
	ID        string
	Status    string
	Version   int64
	Details   json.RawMessage
	Amount    *string
	Other     *string // the payment of an order, the order of a payment
	Method    *string
	CreatedAt time.Time
	UpdatedAt time.Time
	// Day is nil for what left a sealed day while the restaurant has no ACTIVE one.
	Day *day
	// Origin is the sealed day in which it was before.
	Origin daydb.Day
}

// passOver marks what had ended before the restaurant had its first day: years of
// orders would flood its tills. What changes again is in the ACTIVE day then.
func (s *shop) passOver(ctx context.Context, k kind) error {
	err := pg.WithTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.lease.Check(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			update `+k.table+` set
			  projected_version = version
			where (company_id, restaurant_id) = (@company, @restaurant)
			  and projected_version < version
			  and day_database_id is null
			  and status = any(@ended)
			  and updated_at < (
			    select min(prewarmed_at)
			    from day_databases
			    where (company_id, restaurant_id) = (@company, @restaurant))`,
			pgx.NamedArgs{"company": s.CompanyID, "restaurant": s.RestaurantID, "ended": k.ended()})
		return err
	})
	if err != nil {
		return fmt.Errorf("pass over old %ss: %w", k.name, err)
	}
	return nil
}

// bind reads the next items behind an id and binds each to a day, before it is
// written there. Without an ACTIVE day it reads those alone that are in a day.
func (s *shop) bind(ctx context.Context, k kind, after string) (items []item, err error) {
	err = pg.WithTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.lease.Check(ctx, tx); err != nil {
			return err
		}
		active, err := s.active(ctx, tx)
		if err != nil {
			return err
		}
		if items, err = s.unprojected(ctx, tx, k, after, active != nil); err != nil {
			return err
		}
		for i := range items {
			if items[i].Day != nil {
				continue
			}
			if err := s.bindTo(ctx, tx, k, &items[i], active); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("bind %ss: %w", k.name, err)
	}
	for i := range items {
		// CouchDB is asked outside of the transaction, which holds locks.
		if it := &items[i]; it.Day != nil && it.Day.gone() {
			if err := s.leave(ctx, k, it); err != nil {
				return nil, err
			}
		}
	}
	return items, nil
}

// active returns the restaurant's ACTIVE day, or nil; nil also while no day takes
// what is in none.
func (s *shop) active(ctx context.Context, db pg.Querier) (*day, error) {
	if s.closed {
		return nil, nil
	}
	var d day
	err := db.QueryRow(ctx, `
		select
		  id,
		  db_name,
		  business_day,
		  state,
		  generation
		from day_databases
		where (company_id, restaurant_id) = ($1, $2)
		  and state = 'ACTIVE'`, s.CompanyID, s.RestaurantID).Scan(&d.ID, &d.Name, &d.Business, &d.State, &d.Generation)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

func (s *shop) unprojected(ctx context.Context, tx pgx.Tx, k kind, after string, unbound bool) ([]item, error) {
	rows, err := tx.Query(ctx, `
		select
		  a.`+k.id+`,
		  a.status,
		  a.version,
		  a.details,
		  `+k.amount+`,
		  a.`+k.other+`,
		  `+k.method+`,
		  a.created_at,
		  a.updated_at,
		  o.business_day,
		  d.id,
		  d.db_name,
		  d.business_day,
		  d.state,
		  d.generation
		from `+k.table+` a
		left join day_databases d on d.id = a.day_database_id
		left join day_databases o on o.id = a.origin_day_database_id
		where (a.company_id, a.restaurant_id) = (@company, @restaurant)
		  and a.projected_version < a.version
		  and a.`+k.id+` > @after
		  and (@unbound or a.day_database_id is not null)
		order by a.`+k.id+`
		limit @limit
		for update of a`,
		pgx.NamedArgs{"company": s.CompanyID, "restaurant": s.RestaurantID, "after": after, "unbound": unbound, "limit": batch})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (item, error) {
		var (
			it         = item{Restaurant: s.Restaurant}
			id         *int64
			name       *string
			business   daydb.Day
			state      *daydb.State
			generation *uuid.UUID
		)
		err := row.Scan(&it.ID, &it.Status, &it.Version, &it.Details, &it.Amount, &it.Other, &it.Method, &it.CreatedAt, &it.UpdatedAt,
			&it.Origin, &id, &name, &business, &state, &generation)
		if err == nil && id != nil {
			it.Day = &day{ID: *id, Name: *name, Business: business, State: *state, Generation: *generation}
		}
		return it, err
	})
}

// bindTo binds an item to a day.
func (s *shop) bindTo(ctx context.Context, tx pgx.Tx, k kind, it *item, d *day) error {
	former := it.Day
	it.Day = d
	if d == nil {
		return nil
	}
	var origin *int64
	if former != nil {
		origin = &former.ID
		if it.Origin.IsZero() {
			it.Origin = former.Business
		}
	}
	_, err := tx.Exec(ctx, `
		update `+k.table+` set
		  day_database_id = @day,
		  origin_day_database_id = coalesce(origin_day_database_id, @origin)
		where `+k.id+` = @id`,
		pgx.NamedArgs{"day": d.ID, "origin": origin, "id": it.ID})
	return err
}

// leave binds an item to the ACTIVE day whose own day is sealed, unless that shows
// it already.
func (s *shop) leave(ctx context.Context, k kind, it *item) error {
	shown, err := s.shown(ctx, k, it)
	if err != nil || shown {
		return err
	}
	err = pg.WithTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.lease.Check(ctx, tx); err != nil {
			return err
		}
		active, err := s.active(ctx, tx)
		if err != nil {
			return err
		}
		return s.bindTo(ctx, tx, k, it, active)
	})
	if err != nil {
		return fmt.Errorf("leave %s: %w", it.Day.Name, err)
	}
	return nil
}

// shown reports whether a sealed day has the version already: it was written, and
// the answer was lost. A day that was dropped has no such document, since one
// that is not marked keeps its day from being dropped.
func (s *shop) shown(ctx context.Context, k kind, it *item) (bool, error) {
	if it.Day.State == daydb.Dropped {
		return false, nil
	}
	present, err := s.Couch.Doc(ctx, it.Day.Name, k.docID(it.ID), "")
	if errors.Is(err, couch.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look into sealed %s: %w", it.Day.Name, err)
	}
	return shows(present, *it), nil
}

// mark notes which version of each document is in its day.
func (s *shop) mark(ctx context.Context, k kind, written []item) error {
	if len(written) == 0 {
		return nil
	}
	ids, versions := make([]string, len(written)), make([]int64, len(written))
	for i, it := range written {
		ids[i], versions[i] = it.ID, it.Version
	}
	err := pg.WithTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.lease.Check(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			update `+k.table+` a set
			  projected_version = greatest(a.projected_version, w.version)
			from unnest(@ids::text[], @versions::bigint[]) w (id, version)
			where a.`+k.id+` = w.id`,
			pgx.NamedArgs{"ids": ids, "versions": versions})
		return err
	})
	if err != nil {
		return fmt.Errorf("mark %ss: %w", k.name, err)
	}
	return nil
}
