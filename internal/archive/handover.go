package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// handover is how far rotation has taken a restaurant over from the archive of
// its legacy database.
//
// Rotation carries what is open, and later all that arrives late. What is
// finished at the cutover it leaves, and notes when: left_to_archive_at, in the
// transaction that says how far it has read. The archive looks after the
// restaurant until a reading that began later has come to its end. So each
// document is before that moment, and archived from the legacy database, or
// after it, and carried.
type handover int

const (
	// The zero handover: rotation has not read the legacy database to its end.
	_ handover = iota
	// leftToArchive: it has, and left what was finished.
	leftToArchive
	// handedOver: what it has left is in the archive.
	handedOver
)

// handovers returns how far rotation is with each restaurant that it has begun.
func handovers(ctx context.Context, db querier) (map[daydb.Restaurant]handover, error) {
	rows, err := db.Query(ctx, `
		select r.company_id, r.restaurant_id, l.left_to_archive_at is not null
		from restaurants r
		join legacy_copies l on l.company_id = r.company_id and l.restaurant_id = r.restaurant_id
		where l.kind = 'daily' and l.legacy_db = r.legacy_db and l.completed_at is not null`)
	if err != nil {
		return nil, fmt.Errorf("handovers: %w", pg.Translate(err))
	}
	all := make(map[daydb.Restaurant]handover)
	var (
		r    daydb.Restaurant
		left bool
	)
	_, err = pgx.ForEachRow(rows, []any{&r.CompanyID, &r.RestaurantID, &left}, func() error {
		all[r] = handedOver
		if left {
			all[r] = leftToArchive
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("handovers: %w", pg.Translate(err))
	}
	return all, nil
}

// takeOver notes that everything that was in a legacy database at start is in the
// archive, as far as it is the tenants'.
func (a *Archiver) takeOver(ctx context.Context, lease fence.Lease, id identity, tenants []string, start time.Time) error {
	err := a.fenced(ctx, lease, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			update legacy_copies set left_to_archive_at = null
			where kind = 'daily'
			  and legacy_db = @db
			  and incarnation = @incarnation
			  and left_to_archive_at < @start
			  and company_id || '/' || restaurant_id = any(@tenants)`,
			pgx.NamedArgs{"db": id.db, "incarnation": id.incarnation, "start": start, "tenants": tenants})
		return err
	})
	if err != nil {
		return fmt.Errorf("take over %s: %w", id.db, err)
	}
	return nil
}

// now returns the time by Postgres' clock.
func (a *Archiver) now(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := a.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("time: %w", pg.Translate(err))
	}
	return now, nil
}
