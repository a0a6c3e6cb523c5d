package rotation

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// copyKind is what is copied from a legacy database, as legacy_copies has it.
type copyKind string

const (
	// copyCore: the catalogue, into core.
	copyCore copyKind = "core"
	// copyDaily: operational documents, into the open day.
	copyDaily copyKind = "daily"
)

// checkpoint is how far a legacy database was copied for one restaurant.
type checkpoint struct {
	legacyDB string
	// incarnation is CouchDB's creation time, empty for a database that does not
	// exist.
	incarnation string
	since       couch.Seq
	completed   bool
	// leaves says, of one to be written, that finished documents before it were
	// left to the archive.
	leaves bool
}

type copyKey struct {
	daydb.Restaurant
	kind copyKind
}

// loadCheckpoints returns the checkpoints of the restaurants' companies.
func loadCheckpoints(ctx context.Context, db daydb.Querier, copies []*legacyCopy) (map[copyKey]checkpoint, error) {
	companies := make([]string, 0, len(copies))
	for _, c := range copies {
		companies = append(companies, c.m.CompanyID)
	}
	rows, err := db.Query(ctx, `
		select company_id, restaurant_id, kind, legacy_db, incarnation, since, completed_at is not null
		from legacy_copies
		where company_id = any($1)`, companies)
	if err != nil {
		return nil, fmt.Errorf("load checkpoints: %w", err)
	}
	all := make(map[copyKey]checkpoint)
	var (
		key copyKey
		cp  checkpoint
	)
	scan := []any{&key.CompanyID, &key.RestaurantID, &key.kind, &cp.legacyDB, &cp.incarnation, &cp.since, &cp.completed}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		all[key] = cp
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load checkpoints: %w", err)
	}
	return all, nil
}

// begin writes the checkpoint of copies that start anew, before their first
// document is copied.
func (ro *Rotator) begin(ctx context.Context, lease fence.Lease, copies []*legacyCopy) error {
	return ro.writeCheckpoints(ctx, lease, copies, func(c *legacyCopy) (checkpoint, int64) {
		return checkpoint{legacyDB: c.m.LegacyDB, incarnation: c.incarnation, since: couch.SeqStart}, 0
	})
}

// complete moves the checkpoints of copies on to the given sequence; everything
// before it has been verified to be there. A copy whose checkpoint, or whose
// core, is another one meanwhile is marked as failed and the others are saved.
func (ro *Rotator) complete(ctx context.Context, lease fence.Lease, copies []*legacyCopy, since couch.Seq) error {
	return ro.writeCheckpoints(ctx, lease, copies, func(c *legacyCopy) (checkpoint, int64) {
		return checkpoint{
			legacyDB:    c.m.LegacyDB,
			incarnation: c.incarnation,
			since:       since,
			completed:   true,
			leaves:      c.kind == copyDaily && c.openOnly && c.incarnation != "",
		}, c.copied.Load()
	})
}

func (ro *Rotator) writeCheckpoints(ctx context.Context, lease fence.Lease, copies []*legacyCopy, next func(*legacyCopy) (checkpoint, int64)) error {
	if len(copies) == 0 {
		return nil
	}
	err := pg.WithTx(ctx, ro.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		// One round trip, however many restaurants share the legacy database.
		batch := &pgx.Batch{}
		for _, c := range copies {
			cp, documents := next(c)
			queueCheckpoint(batch, lease, c, cp, documents)
		}
		results := tx.SendBatch(ctx, batch)
		for _, c := range copies {
			tag, err := results.Exec()
			if err != nil {
				_ = results.Close() // The first error is the one to know.
				return err
			}
			if tag.RowsAffected() == 0 {
				c.fail(fmt.Errorf("checkpoint: %w", daydb.ErrStale))
				continue
			}
			cp, _ := next(c)
			c.from, c.known = cp, true
		}
		return results.Close()
	})
	if err != nil {
		return fmt.Errorf("write checkpoints: %w", err)
	}
	return nil
}

// queueCheckpoint writes one checkpoint by compare and set. A copy into core
// also needs the core that it was made into, and its completion is what makes
// core warm.
func queueCheckpoint(batch *pgx.Batch, lease fence.Lease, c *legacyCopy, cp checkpoint, documents int64) {
	batch.Queue(`
		with target as (
		  select company_id, restaurant_id
		  from restaurants
		  where company_id = @company and restaurant_id = @restaurant
		    and (@kind::text <> 'core' or core_generation = @core::uuid)
		  for update
		), saved as (
		  insert into legacy_copies as l
		    (company_id, restaurant_id, kind, legacy_db, incarnation, since, documents, completed_at, left_to_archive_at, fencing_token)
		  select company_id, restaurant_id, @kind::text, @legacy::text, @incarnation::text, @since::text,
		         @documents::bigint, case when @completed::boolean then now() end,
		         case when @leaves::boolean then now() end, @token::bigint
		  from target
		  where @known::boolean or not exists (
		    select from legacy_copies
		    where company_id = @company and restaurant_id = @restaurant and kind = @kind)
		  on conflict on constraint legacy_copies_pkey do update set
		    legacy_db = excluded.legacy_db,
		    incarnation = excluded.incarnation,
		    since = excluded.since,
		    documents = l.documents + excluded.documents,
		    completed_at = case when @completed then coalesce(l.completed_at, now()) end,
		    left_to_archive_at = case when @leaves then now() else l.left_to_archive_at end,
		    fencing_token = excluded.fencing_token,
		    updated_at = now()
		  where @known::boolean and l.legacy_db = @from_legacy::text and l.incarnation = @from_incarnation::text
		    and l.since = @from_since::text and l.fencing_token <= excluded.fencing_token
		  returning company_id, restaurant_id
		), warm as (
		  update restaurants r set core_warmed_at = case when @completed then now() end
		  from saved
		  where r.company_id = saved.company_id and r.restaurant_id = saved.restaurant_id
		    and @kind = 'core' and (r.core_warmed_at is null) = @completed
		)
		select from saved`,
		pgx.NamedArgs{
			"company":          c.m.CompanyID,
			"restaurant":       c.m.RestaurantID,
			"kind":             c.kind,
			"core":             c.m.CoreGeneration,
			"legacy":           cp.legacyDB,
			"incarnation":      cp.incarnation,
			"since":            cp.since,
			"documents":        documents,
			"completed":        cp.completed,
			"leaves":           cp.leaves,
			"token":            lease.Token,
			"known":            c.known,
			"from_legacy":      c.from.legacyDB,
			"from_incarnation": c.from.incarnation,
			"from_since":       c.from.since,
		})
}
