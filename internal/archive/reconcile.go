package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	// closeTimeout bounds the clean-up after a comparison.
	closeTimeout = 5 * time.Second
	// compareTimeout bounds one statement that compares, hashes or reads a whole
	// day, and the wait for whoever takes what it reads.
	compareTimeout = "30min"
)

// Reconciliation compares a day database with its archive by ids, winning
// revisions, deletions and leaves, without bodies.
type Reconciliation struct {
	// Documents are the live ones in CouchDB, Deleted the deleted ones, both
	// without design documents.
	Documents int64
	Deleted   int64
	// Archived are the rows in the archive, deleted ones among them.
	Archived int64
	// Missing are in CouchDB only, a leaf of them at least. Extra are in the
	// archive only; a purge makes such. Changed differ in revision or deletion.
	Missing Delta
	Extra   Delta
	Changed Delta
	// Attachments are documents whose attachments the archive does not hold whole.
	Attachments Delta
	// Rejected are documents that Postgres would not take.
	Rejected Delta
	// Pending is how many changes came in while the two were compared.
	Pending int64
	// Unread are documents that differ although the archive should have read them:
	// what they are now is neither archived nor a blocker nor rejected. While
	// nothing is pending their change is behind the checkpoint, as after the files
	// of the database were put back to an older state; Rewind heals it.
	Unread int64
	// Since and Info are the position's: what was compared is what CouchDB held then.
	Since couch.Seq
	Info  couch.Info
}

// Green reports whether the two are equal and nothing came in meanwhile.
func (r Reconciliation) Green() bool {
	return r.Missing.Count+r.Extra.Count+r.Changed.Count+r.Attachments.Count+r.Rejected.Count+r.Pending == 0
}

// Reconcile compares a day database with its archive, as of a position that
// CatchUp has just returned. ErrIncarnation when the database is another one by
// now, ErrPurged when documents were purged since the position; changes since
// are counted, and the result is then not green.
func (a *Archiver) Reconcile(ctx context.Context, day daydb.DayDB, pos Position) (Reconciliation, error) {
	r, err := a.reconcile(ctx, day, pos)
	if err != nil {
		return Reconciliation{}, fmt.Errorf("reconcile %s: %w", day.Name, err)
	}
	return r, nil
}

func (a *Archiver) reconcile(ctx context.Context, day daydb.DayDB, pos Position) (Reconciliation, error) {
	l, err := a.openListing(ctx)
	if err != nil {
		return Reconciliation{}, err
	}
	defer l.close(ctx)
	if err := a.fill(ctx, l, day.Name, false); err != nil {
		return Reconciliation{}, err
	}
	r := Reconciliation{Since: pos.Since, Info: pos.Info}
	if r.Pending, err = a.unchangedSince(ctx, day, pos); err != nil {
		return Reconciliation{}, err
	}
	err = comparing(ctx, l.conn, func(tx pgx.Tx) error { return r.compare(ctx, tx, pos.SourceID, day.BusinessDay) })
	return r, err
}

// Rewind sets the archive of a day database back to the start, so that the next
// CatchUp reads everything again. What is there already does not change. The
// caller holds the lease LeaseName(day.Name).
func (a *Archiver) Rewind(ctx context.Context, day daydb.DayDB, pos Position, lease fence.Lease) error {
	s, err := findSource(ctx, a.pool, identityOf(day))
	if err != nil {
		return err
	}
	if s == nil || s.id != pos.SourceID {
		return fmt.Errorf("rewind %s: %w", day.Name, ErrIncarnation)
	}
	return a.rewind(ctx, lease, s, s.purges, s.tenants)
}

// unchangedSince checks that the database is the one of the position, with
// nothing purged, and returns how many changes came in since.
func (a *Archiver) unchangedSince(ctx context.Context, day daydb.DayDB, pos Position) (pending int64, err error) {
	info, err := a.checkIncarnation(ctx, day)
	if err != nil {
		return 0, err
	}
	if info.InstanceStartTime != pos.Info.InstanceStartTime {
		return 0, ErrIncarnation
	}
	if info.PurgeSeq != pos.Info.PurgeSeq {
		return 0, fmt.Errorf("%w: %d purges instead of %d", ErrPurged, info.PurgeSeq, pos.Info.PurgeSeq)
	}
	return a.couch.Pending(ctx, day.Name, pos.Since)
}

// comparing runs fn in a transaction that sees one state of the archive and may
// take its time.
func comparing(ctx context.Context, db pg.Beginner, fn func(pgx.Tx) error) error {
	return pg.WithTx(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `set transaction isolation level repeatable read;
			set local statement_timeout = '`+compareTimeout+`';
			set local idle_in_transaction_session_timeout = '`+compareTimeout+`'`)
		if err != nil {
			return err
		}
		return fn(tx)
	})
}

func (r *Reconciliation) compare(ctx context.Context, tx pgx.Tx, sourceID int64, day daydb.Day) error {
	err := tx.QueryRow(ctx, `
		select
		  count(*) filter (where not deleted),
		  count(*) filter (where deleted),
		  (select count(*) from archived_docs where source_id = $1 and business_day = $2)
		from (select distinct id_hash, deleted from pg_temp.couch_listing where kind = 0) c`, sourceID, day).Scan(&r.Documents, &r.Deleted, &r.Archived)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	differences, err := deltas(ctx, tx, `
		select
		  case
		    when a.id_hash is null then 'missing'
		    when c.id_hash is null then 'extra'
		    else 'changed'
		  end as what,
		  coalesce(c.id_hash, a.id_hash) as id_hash,
		  coalesce(c.doc_id, a.doc_id) as doc_id
		from (select * from pg_temp.couch_listing where kind = 0) c
		full join (
		  select *, convert_to(rev, 'UTF8') as rev_bytes
		  from archived_docs
		  where source_id = @source and business_day = @day
		) a on a.id_hash = c.id_hash
		where a.id_hash is null
		  or c.id_hash is null
		  or (a.rev_bytes, a.deleted) is distinct from (c.rev, c.deleted)
		union
		select
		  case when a.id_hash is null then 'missing' else 'extra' end,
		  coalesce(c.id_hash, a.id_hash),
		  coalesce(c.doc_id, a.doc_id)
		from (select * from pg_temp.couch_listing where kind = 1) c
		full join (
		  select *, convert_to(rev, 'UTF8') as rev_bytes
		  from archived_leaves
		  where source_id = @source
		) a on a.id_hash = c.id_hash and a.rev_bytes = c.rev
		where a.id_hash is null or c.id_hash is null
		union
		select 'attachments', o.id_hash, o.doc_id
		from (
		  select id_hash, doc_id, attachments
		  from archived_docs
		  where source_id = @source and business_day = @day and attachments is not null
		  union all
		  select id_hash, doc_id, attachments
		  from archived_leaves
		  where source_id = @source and attachments is not null
		) o
		cross join unnest(o.attachments) as named (id)
		left join archived_attachments t on t.id = named.id and t.source_id = @source and t.id_hash = o.id_hash
		left join lateral (
		  select sum(octet_length(data)) as stored
		  from archived_attachment_chunks
		  where attachment_id = t.id
		) p on true
		where t.id is null or coalesce(p.stored, 0) <> t.length
		union
		select 'rejected', id_hash, doc_id
		from archive_rejects
		where source_id = @source`,
		pgx.NamedArgs{"source": sourceID, "day": day})
	if err != nil {
		return err
	}
	r.Missing, r.Extra, r.Changed = differences["missing"], differences["extra"], differences["changed"]
	r.Attachments, r.Rejected = differences["attachments"], differences["rejected"]
	return r.countUnread(ctx, tx, sourceID, day)
}

// countUnread counts the documents of which the archive does not know the winning
// revision, be it as a row, a blocker or a reject, or a losing one although the
// document neither blocks nor was rejected, and the blockers of documents that are
// not there.
func (r *Reconciliation) countUnread(ctx context.Context, tx pgx.Tx, sourceID int64, day daydb.Day) error {
	err := tx.QueryRow(ctx, `
		with documents as (
		  select id_hash, rev, deleted from pg_temp.couch_listing where kind = 0
		), leaves as (
		  select id_hash, rev from pg_temp.couch_listing where kind = 1
		), archived as (
		  select id_hash, convert_to(rev, 'UTF8') as rev from archived_leaves where source_id = @source
		), blockers as (
		  select distinct id_hash, convert_to(rev, 'UTF8') as rev from archive_blockers where source_id = @source
		)
		select
		  (select count(*)
		   from (
		     select c.id_hash, c.rev
		     from documents c
		     where not exists (
		       select from archived_docs a
		       where a.source_id = @source and a.business_day = @day and a.id_hash = c.id_hash
		         and convert_to(a.rev, 'UTF8') = c.rev and a.deleted = c.deleted)
		     union
		     select c.id_hash, c.rev
		     from documents c
		     join leaves l on l.id_hash = c.id_hash
		     where not exists (select from archived a where a.id_hash = l.id_hash and a.rev = l.rev)
		   ) c
		   where not exists (select from blockers b where b.id_hash = c.id_hash and b.rev = c.rev)
		     and not exists (select from archive_rejects j where j.source_id = @source and j.id_hash = c.id_hash))
		  + (select count(*)
		     from blockers b
		     where not exists (select from documents c where c.id_hash = b.id_hash))`,
		pgx.NamedArgs{"source": sourceID, "day": day}).Scan(&r.Unread)
	if err != nil {
		return fmt.Errorf("count what was not read: %w", err)
	}
	return nil
}

// deltas counts the documents that a query names, by what is the matter with
// them, and keeps the first few ids of each. The query has the columns what,
// id_hash and doc_id.
func deltas(ctx context.Context, tx pgx.Tx, query string, args pgx.NamedArgs) (map[string]Delta, error) {
	args["few"], args["width"] = fewIDs, idBytesRead
	rows, err := tx.Query(ctx, `
		select what, total, substring(doc_id from 1 for @width::int)
		from (
		  select
		    what,
		    doc_id,
		    count(*) over (partition by what) as total,
		    row_number() over (partition by what order by id_hash) as n
		  from (`+query+`) found
		) counted
		where n <= @few
		order by what, n`, args)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	found := make(map[string]Delta)
	var (
		what  string
		total int64
		id    []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&what, &total, &id}, func() error {
		d := found[what]
		d.Count = total
		d.IDs = append(d.IDs, printable(string(id)))
		found[what] = d
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	return found, nil
}
