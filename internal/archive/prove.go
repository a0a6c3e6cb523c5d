package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// State is what CouchDB said of a day database when its proof was taken. As long
// as it says the same, the proof holds.
type State struct {
	DocCount          int64     `json:"docCount"`
	DocDelCount       int64     `json:"docDelCount"`
	PurgeSeq          int64     `json:"purgeSeq"`
	InstanceStartTime string    `json:"instanceStartTime"`
	Since             couch.Seq `json:"since"`
	Generation        string    `json:"generation"`
}

// Proof is the result of a comparison that found no difference in any byte.
type Proof struct {
	// SHA256 is the digest of the list that WriteProofList writes.
	SHA256 [sha256.Size]byte
	// Documents are those in the list, deleted ones among them; Attachments the
	// attachments of their revisions.
	Documents   int64
	Attachments int64
	State       State
}

// NotProvenError is an ErrNotProven with the documents that differ, in whatever
// of them: body, losing leaf or attachment.
type NotProvenError struct {
	Missing Delta
	Extra   Delta
	Changed Delta
}

func (e *NotProvenError) Error() string {
	return fmt.Sprintf("%v: %d missing, %d extra, %d changed; first %v",
		ErrNotProven, e.Missing.Count, e.Extra.Count, e.Changed.Count,
		append(append(append([]string{}, e.Missing.IDs...), e.Extra.IDs...), e.Changed.IDs...))
}

// Is makes a NotProvenError an ErrNotProven.
func (e *NotProvenError) Is(target error) bool { return target == ErrNotProven }

// Prove reads each document, losing leaf and attachment of a day database again
// and compares its revision, deletion, length and sha256 with what Postgres
// hashes from the bytes that it stores. A revision alone proves nothing of the
// content, which a client that replicates chooses together with it.
//
// The error is a NotProvenError when anything differs, ErrMoving when the
// database was written since the position, ErrIncarnation or ErrPurged when it
// is not what the position was taken of.
func (a *Archiver) Prove(ctx context.Context, day daydb.DayDB, pos Position) (Proof, error) {
	p, err := a.prove(ctx, day, pos)
	if err != nil {
		return Proof{}, fmt.Errorf("prove %s: %w", day.Name, err)
	}
	return p, nil
}

func (a *Archiver) prove(ctx context.Context, day daydb.DayDB, pos Position) (Proof, error) {
	l, err := a.openListing(ctx)
	if err != nil {
		return Proof{}, err
	}
	defer l.close(ctx)
	if err := a.fill(ctx, l, day.Name, true); err != nil {
		return Proof{}, err
	}
	pending, err := a.unchangedSince(ctx, day, pos)
	if err != nil {
		return Proof{}, err
	}
	if pending != 0 {
		return Proof{}, fmt.Errorf("%w: %d changes since it was archived", ErrMoving, pending)
	}
	p := Proof{State: State{
		DocCount:          pos.Info.DocCount,
		DocDelCount:       pos.Info.DocDelCount,
		PurgeSeq:          pos.Info.PurgeSeq,
		InstanceStartTime: pos.Info.InstanceStartTime,
		Since:             pos.Since,
		Generation:        day.Generation.String(),
	}}
	err = comparing(ctx, l.conn, func(tx pgx.Tx) error {
		if err := hashArchive(ctx, tx, pos.SourceID, day.BusinessDay); err != nil {
			return err
		}
		if err := compareBytes(ctx, tx); err != nil {
			return err
		}
		digest := sha256.New()
		if p.Documents, p.Attachments, err = writeList(ctx, tx, digest); err != nil {
			return err
		}
		digest.Sum(p.SHA256[:0])
		return nil
	})
	return p, err
}

// WriteProofList writes what Postgres holds of a day, one line for each document
// (or deletion), losing leaf, attachment and piece of an attachment, sorted by
// the bytes of the ids:
//
//	sha256 TAB what TAB length TAB revision TAB id TAB attachment
//
// with revision, id and attachment as JSON strings. The digests are Postgres'
// own, made now from the stored bytes, so sha256sum of the list equals the proof
// as long as the archive is what was proven. ErrNotArchived for a day that was
// never archived.
func (a *Archiver) WriteProofList(ctx context.Context, day daydb.DayDB, w io.Writer) error {
	s, err := findSource(ctx, a.pool, identityOf(day))
	if err != nil {
		return fmt.Errorf("proof of %s: %w", day.Name, err)
	}
	if s == nil {
		return fmt.Errorf("proof of %s: %w", day.Name, ErrNotArchived)
	}
	err = comparing(ctx, a.pool, func(tx pgx.Tx) error {
		if err := hashArchive(ctx, tx, s.id, day.BusinessDay); err != nil {
			return err
		}
		_, _, err := writeList(ctx, tx, w)
		return err
	})
	if err != nil {
		return fmt.Errorf("proof of %s: %w", day.Name, err)
	}
	return nil
}

// hashArchive lists what Postgres holds of a day, hashed by Postgres from the
// stored bytes, in a table that ends with the transaction.
func hashArchive(ctx context.Context, tx pgx.Tx, sourceID int64, day daydb.Day) error {
	_, err := tx.Exec(ctx, `
		create temporary table archive_listing (
		  id_hash bytea,
		  doc_id bytea,
		  kind smallint,
		  rev bytea,
		  part bytea,
		  deleted boolean,
		  length bigint,
		  sha256 bytea
		) on commit drop`)
	if err != nil {
		return fmt.Errorf("list archive: %w", err)
	}
	_, err = tx.Exec(ctx, `
		insert into pg_temp.archive_listing
		with revisions as (
		  select id_hash, doc_id, 0 as kind, rev, deleted, attachments, case when deleted then tombstone else body end as body
		  from archived_docs
		  where source_id = @source and business_day = @day
		  union all
		  select id_hash, doc_id, 1, rev, true, attachments, body
		  from archived_leaves
		  where source_id = @source
		), attached as (
		  select r.id_hash, r.doc_id, convert_to(r.rev, 'UTF8') as rev, t.id, t.name, t.length, t.sha256
		  from revisions r
		  cross join unnest(r.attachments) as named (id)
		  join archived_attachments t on t.id = named.id and t.source_id = @source and t.id_hash = r.id_hash
		)
		select id_hash, doc_id, kind, convert_to(rev, 'UTF8'), null, deleted, octet_length(body), sha256(convert_to(body, 'UTF8'))
		from revisions
		union all
		select id_hash, doc_id, 2, rev, name, false, length, sha256
		from attached
		union all
		select id_hash, doc_id, 3, rev, int4send(n) || name, false, octet_length(data), sha256(data)
		from attached
		join archived_attachment_chunks c on c.attachment_id = attached.id`,
		pgx.NamedArgs{"source": sourceID, "day": day})
	if err != nil {
		return fmt.Errorf("list archive: %w", err)
	}
	return nil
}

// compareBytes compares what CouchDB has with what Postgres has, line by line,
// and returns a NotProvenError unless they are equal.
func compareBytes(ctx context.Context, tx pgx.Tx) error {
	found, err := deltas(ctx, tx, `
		select
		  case
		    when a.id_hash is null then 'missing'
		    when c.id_hash is null then 'extra'
		    else 'changed'
		  end as what,
		  coalesce(c.id_hash, a.id_hash) as id_hash,
		  coalesce(c.doc_id, a.doc_id) as doc_id
		from (
		  select distinct id_hash, doc_id
		  from (table pg_temp.couch_listing except table pg_temp.archive_listing) x
		) c
		full join (
		  select distinct id_hash, doc_id
		  from (table pg_temp.archive_listing except table pg_temp.couch_listing) x
		) a on a.id_hash = c.id_hash`, pgx.NamedArgs{})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	return &NotProvenError{Missing: found["missing"], Extra: found["extra"], Changed: found["changed"]}
}

// writeList writes the list of the archive's side.
func writeList(ctx context.Context, tx pgx.Tx, w io.Writer) (documents, attachments int64, err error) {
	rows, err := tx.Query(ctx, `
		select doc_id, kind, rev, part, deleted, length, sha256
		from pg_temp.archive_listing
		order by doc_id, kind, rev, part`)
	if err != nil {
		return 0, 0, fmt.Errorf("write list: %w", err)
	}
	out := bufio.NewWriter(w)
	var (
		n       line
		id, rev []byte
		text    bytes.Buffer
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &n.kind, &rev, &n.part, &n.deleted, &n.length, &n.sha}, func() error {
		switch n.kind {
		case kindDocument:
			documents++
		case kindAttachment:
			attachments++
		}
		n.id, n.rev = string(id), string(rev)
		text.Reset()
		n.print(&text)
		_, err := out.Write(text.Bytes())
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("write list: %w", err)
	}
	return documents, attachments, nil
}

// print appends the line as WriteProofList promises it.
func (n *line) print(b *bytes.Buffer) {
	var what, name string
	switch {
	case n.kind == kindDocument && n.deleted:
		what = "deletion"
	case n.kind == kindDocument:
		what = "document"
	case n.kind == kindLeaf:
		what = "leaf"
	case n.kind == kindAttachment:
		what, name = "attachment", string(n.part)
	case n.kind == kindChunk:
		what = "piece " + strconv.FormatUint(uint64(binary.BigEndian.Uint32(n.part)), 10)
		name = string(n.part[4:])
	}
	fmt.Fprintf(b, "%s\t%s\t%d\t", hex.EncodeToString(n.sha), what, n.length)
	writeJSON(b, n.rev)
	b.WriteByte('\t')
	writeJSON(b, n.id)
	b.WriteByte('\t')
	writeJSON(b, name)
	b.WriteByte('\n')
}

// writeJSON appends text as a JSON string, on one line whatever it holds.
func writeJSON(b *bytes.Buffer, text string) {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // A string and a buffer do not fail.
	b.Truncate(b.Len() - 1)  // The encoder ends its value with a line break.
}
