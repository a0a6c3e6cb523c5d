package archive

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// tally counts what was committed.
type tally struct {
	// documents are rows that are new or have changed.
	documents   int64
	attachments int64
	rejected    int64
}

// writer commits the batches of one source, one after the other.
type writer struct {
	*Archiver
	source *source
	lease  fence.Lease
	tally  tally
	// place gives entries of a legacy database their day; nil for a day database.
	place func(ctx context.Context, b *batch) error
	// direct copies rows straight into the archive, as long as none of them was there before.
	direct bool
	// still leaves the checkpoint where it is.
	still bool
}

func (a *Archiver) newWriter(s *source, lease fence.Lease) *writer {
	return &writer{Archiver: a, source: s, lease: lease, direct: !s.hasRows}
}

// write completes a batch and commits it with the checkpoint that follows it.
//
// What is fetched in addition (losing leaves, attachments) comes first: a crash
// before the commit leaves attachments that no row names yet, and the next run
// finds them. The commit is all or nothing; when its outcome is not known, the
// next run reads the checkpoint.
func (w *writer) write(ctx context.Context, b *batch) error {
	if w.place != nil {
		if err := w.place(ctx, b); err != nil {
			return err
		}
	}
	if err := w.fetchLeaves(ctx, b); err != nil {
		return err
	}
	if err := w.fetchAttachments(ctx, b); err != nil {
		return err
	}
	rows := b.archived()
	if err := w.ensureMonths(ctx, rows); err != nil {
		return err
	}
	err := w.commit(ctx, b, rows, w.put)
	if w.direct && pg.Code(err) == uniqueViolation {
		// Some rows are there after all: from here on rows are merged.
		w.direct = false
		err = w.commit(ctx, b, rows, w.put)
	}
	if refused(err) {
		w.direct = false
		err = w.commit(ctx, b, rows, w.putApart)
	}
	return err
}

const uniqueViolation = "23505"

// commit writes a batch in one transaction, by put for the rows.
func (w *writer) commit(ctx context.Context, b *batch, rows []*entry, put func(context.Context, pgx.Tx, []*entry) (int64, error)) error {
	next := b.next
	if next == "" || w.still {
		next = w.source.since
	}
	var (
		changed  int64
		rejected []*entry
	)
	good := rows[:0:0]
	for _, e := range rows {
		if e.refusal == nil {
			good = append(good, e)
		}
	}
	err := w.fenced(ctx, w.lease, func(tx pgx.Tx) error {
		if err := w.source.advance(ctx, tx, w.lease, next); err != nil {
			return err
		}
		var err error
		if len(good) > 0 {
			if changed, err = put(ctx, tx, good); err != nil {
				return err
			}
		}
		if err := w.putBlockers(ctx, tx, b.entries); err != nil {
			return err
		}
		rejected, err = w.putRejects(ctx, tx, b.entries)
		return err
	})
	if err != nil {
		return fmt.Errorf("commit batch: %w", err)
	}
	w.source.since = next
	w.source.hasRows = w.source.hasRows || len(good) > 0
	w.tally.documents += changed
	w.tally.rejected += int64(len(rejected))
	return nil
}

// put writes rows and their leaves, and returns how many rows are new or have
// changed.
func (w *writer) put(ctx context.Context, tx pgx.Tx, rows []*entry) (int64, error) {
	if err := w.putLeaves(ctx, tx, rows); err != nil {
		return 0, err
	}
	if w.direct {
		tag, err := tx.Conn().PgConn().CopyFrom(ctx, &copyRows{source: w.source.id, entries: rows},
			`copy archived_docs (`+rowColumns+`) from stdin (format binary)`)
		return tag.RowsAffected(), err
	}
	return w.merge(ctx, tx, rows)
}

// merge writes rows some of which may be there. A row that is there as it should
// be is not touched; a deletion keeps the last body.
func (w *writer) merge(ctx context.Context, tx pgx.Tx, rows []*entry) (int64, error) {
	if err := w.move(ctx, tx, rows); err != nil {
		return 0, err
	}
	// A temporary table lasts as long as the session and is seen by it alone.
	if _, err := tx.Exec(ctx, createStage); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, `delete from pg_temp.archive_stage`); err != nil {
		return 0, err
	}
	_, err := tx.Conn().PgConn().CopyFrom(ctx, &copyRows{source: w.source.id, entries: rows},
		`copy pg_temp.archive_stage (`+rowColumns+`) from stdin (format binary)`)
	if err != nil {
		return 0, err
	}
	tag, err := tx.Exec(ctx, `
		insert into archived_docs as d (`+rowColumns+`)
		select `+rowColumns+`
		from pg_temp.archive_stage
		on conflict (source_id, id_hash, business_day) do update set
		  company_id = coalesce(excluded.company_id, d.company_id),
		  restaurant_id = coalesce(excluded.restaurant_id, d.restaurant_id),
		  rev = excluded.rev,
		  deleted = excluded.deleted,
		  doc_type = case when excluded.deleted then coalesce(d.doc_type, excluded.doc_type) else excluded.doc_type end,
		  status = case when excluded.deleted and d.body is not null then d.status else excluded.status end,
		  body = case when excluded.deleted then d.body else excluded.body end,
		  body_rev = case when excluded.deleted then d.body_rev else excluded.body_rev end,
		  body_sha256 = case when excluded.deleted then d.body_sha256 else excluded.body_sha256 end,
		  tombstone = excluded.tombstone,
		  attachments = excluded.attachments,
		  archived_at = now()
		where (d.rev, d.deleted, d.tombstone, d.attachments)
		    is distinct from (excluded.rev, excluded.deleted, excluded.tombstone, excluded.attachments)
		  or not excluded.deleted and d.body_sha256 is distinct from excluded.body_sha256`)
	return tag.RowsAffected(), err
}

const createStage = `
create temporary table if not exists archive_stage (
  business_day date,
  source_id bigint,
  id_hash bytea,
  doc_id bytea,
  company_id text,
  restaurant_id text,
  rev text,
  deleted boolean,
  doc_type text,
  status text,
  body text,
  body_rev text,
  body_sha256 bytea,
  tombstone text,
  attachments bigint[]
) on commit delete rows`

// move puts rows of a legacy database whose day has changed where they belong now.
func (w *writer) move(ctx context.Context, tx pgx.Tx, rows []*entry) error {
	for _, e := range rows {
		if e.movedFrom.IsZero() {
			continue
		}
		_, err := tx.Exec(ctx, `
			update archived_docs set business_day = @to
			where source_id = @source and id_hash = @hash and business_day = @from`,
			pgx.NamedArgs{"to": e.day, "source": w.source.id, "hash": e.hash[:], "from": e.movedFrom})
		if err != nil {
			return fmt.Errorf("move to another day: %w", err)
		}
	}
	return nil
}

// putApart finds the rows that Postgres refuses by halving: the good ones are
// written, each of the others is left with its refusal, for the rejects.
func (w *writer) putApart(ctx context.Context, tx pgx.Tx, rows []*entry) (int64, error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return 0, err
	}
	changed, err := w.put(ctx, savepoint, rows)
	if err == nil {
		return changed, savepoint.Commit(ctx)
	}
	if !refused(err) {
		return 0, err
	}
	if rollback := savepoint.Rollback(ctx); rollback != nil {
		return 0, rollback
	}
	if len(rows) == 1 {
		rows[0].refusal = err
		return 0, nil
	}
	half := len(rows) / 2
	first, err := w.putApart(ctx, tx, rows[:half])
	if err != nil {
		return 0, err
	}
	second, err := w.putApart(ctx, tx, rows[half:])
	return first + second, err
}

// errAttachment is why a document is rejected whose attachment CouchDB does not give.
var errAttachment = errors.New("attachment cannot be read")

// refused reports whether an error is Postgres' verdict on the data, which would
// be the same the next time; a lost connection or a full disk is none.
func refused(err error) bool {
	code := pg.Code(err)
	const (
		dataException    = "22"
		limitExceeded    = "54"
		checkViolation   = "23514"
		notNullViolation = "23502"
	)
	return strings.HasPrefix(code, dataException) || strings.HasPrefix(code, limitExceeded) ||
		code == checkViolation || code == notNullViolation
}
