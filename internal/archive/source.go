package archive

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// source is a database in one incarnation, and how far it is archived. Under
// its lease nobody else changes the row, so the copy here is the row.
type source struct {
	id int64
	db string
	// since is the checkpoint: everything up to it is in the archive.
	since couch.Seq
	// purges is how many purges the database had seen when since was 0.
	purges int64
	// tenants of a legacy database whose documents are in the archive up to since.
	tenants []string

	// Whether there is anything to heal, which spares each batch a look.
	hasRows, hasBlockers, hasRejects, hasLeaves bool
}

// identity is what tells sources apart.
type identity struct {
	db          string
	incarnation string
	// dayID and day are of the ledger; zero for a legacy database.
	dayID int64
	day   daydb.Day
}

func identityOf(day daydb.DayDB) identity {
	return identity{db: day.Name, incarnation: day.Generation.String(), dayID: day.ID, day: day.BusinessDay}
}

// querier is what reading needs: a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// findSource returns the source, or nil when it was never archived.
func findSource(ctx context.Context, db querier, id identity) (*source, error) {
	s := &source{db: id.db}
	err := db.QueryRow(ctx, `
		select
		  c.id,
		  c.since,
		  c.purge_seq,
		  c.tenants,
		  exists (select from archived_docs d where d.source_id = c.id),
		  exists (select from archive_blockers b where b.source_id = c.id),
		  exists (select from archive_rejects r where r.source_id = c.id),
		  exists (select from archived_leaves l where l.source_id = c.id)
		from archive_checkpoints c
		where c.db_name = $1 and c.incarnation = $2`, id.db, id.incarnation).
		Scan(&s.id, &s.since, &s.purges, &s.tenants, &s.hasRows, &s.hasBlockers, &s.hasRejects, &s.hasLeaves)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint of %s: %w", id.db, pg.Translate(err))
	}
	return s, nil
}

// openSource returns the source, which it enters when it is new.
func (a *Archiver) openSource(ctx context.Context, lease fence.Lease, id identity, purges int64, tenants []string) (*source, error) {
	s, err := findSource(ctx, a.pool, id)
	if s != nil || err != nil {
		return s, err
	}
	if tenants == nil {
		tenants = []string{}
	}
	err = a.fenced(ctx, lease, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			insert into archive_checkpoints (db_name, incarnation, day_database_id, purge_seq, tenants, fencing_token)
			values (@db, @incarnation, nullif(@day::bigint, 0), @purges, @tenants, @token)
			on conflict on constraint archive_checkpoints_source_key do nothing`,
			pgx.NamedArgs{
				"db":          id.db,
				"incarnation": id.incarnation,
				"day":         id.dayID,
				"purges":      purges,
				"tenants":     tenants,
				"token":       lease.Token,
			})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enter %s: %w", id.db, err)
	}
	s, err = findSource(ctx, a.pool, id)
	if s == nil && err == nil {
		err = fmt.Errorf("checkpoint of %s: %w", id.db, daydb.ErrStale)
	}
	return s, err
}

// advance moves the checkpoint within the transaction that writes the rows: a
// compare-and-set, so that a writer that is behind never sets it back.
func (s *source) advance(ctx context.Context, tx pgx.Tx, lease fence.Lease, next couch.Seq) error {
	tag, err := tx.Exec(ctx, `
		update archive_checkpoints set
		  since = @next,
		  fencing_token = @token,
		  updated_at = now()
		where id = @id and since = @since and fencing_token <= @token`,
		pgx.NamedArgs{"next": next, "token": lease.Token, "id": s.id, "since": s.since})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("checkpoint: %w", daydb.ErrStale)
	}
	return nil
}

// rewind sets the checkpoint back to the start, because what the feed shows
// since it is not all that has changed. Blockers are found again on the way, and
// those of documents that are gone are not; rejects stay, since theirs may be
// the only copy.
func (a *Archiver) rewind(ctx context.Context, lease fence.Lease, s *source, purges int64, tenants []string) error {
	if tenants == nil {
		tenants = []string{}
	}
	err := a.fenced(ctx, lease, func(tx pgx.Tx) error {
		if err := s.advance(ctx, tx, lease, couch.SeqStart); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update archive_checkpoints set purge_seq = $2, tenants = $3 where id = $1`, s.id, purges, tenants)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `delete from archive_blockers where source_id = $1`, s.id)
		return err
	})
	if err != nil {
		return fmt.Errorf("rewind %s: %w", s.db, err)
	}
	s.since, s.purges, s.tenants, s.hasBlockers = couch.SeqStart, purges, tenants, false
	return nil
}

// fenced runs fn in a transaction that begins with the check of the lease.
func (a *Archiver) fenced(ctx context.Context, lease fence.Lease, fn func(pgx.Tx) error) error {
	return pg.WithTx(ctx, a.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		return fn(tx)
	})
}
