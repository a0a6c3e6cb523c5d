package archive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/pg"
)

// kind is what a line of a listing is about; the order is that of the lines of
// one document.
type kind int16

const (
	kindDocument kind = iota
	kindLeaf
	kindAttachment
	kindChunk
)

// line is a document, a losing leaf that is deleted, or a piece of an
// attachment, as one of the two sides has it.
type line struct {
	id   string
	hash [sha256.Size]byte
	kind kind
	// rev is the revision itself, or the one that the attachment belongs to.
	rev string
	// part is the name of an attachment, or number and name of a piece of it; see partOf.
	part []byte
	// deleted, length and digest are what is compared.
	deleted bool
	length  int64
	sha     []byte
}

// partOf names a piece of an attachment: the number first, in fixed length.
func partOf(name string, n int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(n)), name...)
}

// listing is what CouchDB has, line by line, in a temporary table: however large
// the database is, comparing takes no memory here and Postgres joins the two
// sides. It occupies a connection; the table is gone with close.
type listing struct {
	conn *pgxpool.Conn
	// alike, where it is set, returns the archived body in place of one that
	// differs from it only in how CouchDB stores the attachments.
	alike func(ctx context.Context, n line, body []byte) ([]byte, error)
	lines [][]any
	bytes int
}

const (
	listingLines = 5000
	listingBytes = 4 << 20
)

// openListing makes an empty listing. It is filled in short statements, not in a
// transaction that would be open as long as the feed is read.
func (a *Archiver) openListing(ctx context.Context) (*listing, error) {
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing: %w", pg.Translate(err))
	}
	_, err = conn.Exec(ctx, `
		create temporary table if not exists couch_listing (
		  id_hash bytea,
		  doc_id bytea,
		  kind smallint,
		  rev bytea,
		  part bytea,
		  deleted boolean,
		  length bigint,
		  sha256 bytea
		);
		truncate pg_temp.couch_listing`)
	if err != nil {
		conn.Release()
		return nil, fmt.Errorf("listing: %w", pg.Translate(err))
	}
	return &listing{conn: conn}, nil
}

// close gives the connection back, and the table's memory.
func (l *listing) close(ctx context.Context) {
	// The comparison may have been cancelled; a connection that does not even
	// truncate is broken, and the pool throws it away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if _, err := l.conn.Exec(ctx, `truncate pg_temp.couch_listing`); err != nil {
		_ = l.conn.Conn().Close(ctx)
	}
	l.conn.Release()
}

func (l *listing) add(ctx context.Context, n line) error {
	l.lines = append(l.lines, []any{n.hash[:], []byte(n.id), int16(n.kind), []byte(n.rev), n.part, n.deleted, n.length, n.sha})
	if l.bytes += len(n.id); len(l.lines) < listingLines && l.bytes < listingBytes {
		return nil
	}
	return l.flush(ctx)
}

func (l *listing) flush(ctx context.Context) error {
	columns := []string{"id_hash", "doc_id", "kind", "rev", "part", "deleted", "length", "sha256"}
	_, err := l.conn.CopyFrom(ctx, pgx.Identifier{"pg_temp", "couch_listing"}, columns, pgx.CopyFromRows(l.lines))
	if err != nil {
		return fmt.Errorf("listing: %w", pg.Translate(err))
	}
	clear(l.lines)
	l.lines, l.bytes = l.lines[:0], 0
	return nil
}

// fill lists a whole database. Without bytes it lists documents and leaves by
// revision; with bytes it reads and hashes each body and attachment.
func (a *Archiver) fill(ctx context.Context, l *listing, db string, bytes bool) error {
	feed, err := a.couch.Changes(ctx, db, couch.ChangesOptions{Since: couch.SeqStart, Docs: bytes, SeqInterval: seqInterval})
	if err != nil {
		return err
	}
	defer feed.Close()
	for feed.Next() {
		c := feed.Change()
		if isDesign(c.ID) {
			continue
		}
		if err := a.list(ctx, l, db, c, bytes); err != nil {
			return err
		}
	}
	if err := feed.Err(); err != nil {
		return err
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	// Without statistics the planner would join a million lines one by one.
	if _, err := l.conn.Exec(ctx, `analyze pg_temp.couch_listing`); err != nil {
		return fmt.Errorf("listing: %w", pg.Translate(err))
	}
	return nil
}

func (a *Archiver) list(ctx context.Context, l *listing, db string, c *couch.Change, bytes bool) error {
	n := line{id: c.ID, hash: sha256.Sum256([]byte(c.ID)), rev: c.Revs[0], deleted: c.Deleted}
	if !bytes {
		if err := l.add(ctx, n); err != nil {
			return err
		}
		for _, rev := range c.Revs[1:] {
			if err := l.add(ctx, line{id: n.id, hash: n.hash, kind: kindLeaf, rev: rev, deleted: true}); err != nil {
				return err
			}
		}
		return nil
	}
	if c.Doc == nil {
		return fmt.Errorf("%w: a row without its document", couch.ErrFeedBroken)
	}
	if err := a.listRevision(ctx, l, db, n, c.Doc); err != nil {
		return err
	}
	for losing := c.Revs[1:]; len(losing) > 0; {
		var refs []couch.Ref
		for _, rev := range losing[:min(len(losing), leavesAtOnce)] {
			refs = append(refs, couch.Ref{ID: c.ID, Rev: rev})
		}
		losing = losing[len(refs):]
		revisions, err := a.couch.Revisions(ctx, db, refs, false)
		if err != nil {
			return err
		}
		for _, r := range revisions {
			if err := r.Unanswered(); err != nil {
				return err
			}
			leaf := line{id: n.id, hash: n.hash, kind: kindLeaf, rev: r.Rev, deleted: r.Deleted()}
			if err := a.listRevision(ctx, l, db, leaf, r.Body); err != nil {
				return err
			}
		}
	}
	return nil
}

// listRevision adds a revision with its bytes and those of its attachments.
func (a *Archiver) listRevision(ctx context.Context, l *listing, db string, n line, body []byte) error {
	named := stubs(body)
	if l.alike != nil && len(named) > 0 {
		var err error
		if body, err = l.alike(ctx, n, body); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(body)
	n.sha, n.length = sum[:], int64(len(body))
	if err := l.add(ctx, n); err != nil {
		return err
	}
	for _, s := range named {
		if err := a.listAttachment(ctx, l, db, n, s.name); err != nil {
			return fmt.Errorf("attachment of %s: %w", printable(n.id), err)
		}
	}
	return nil
}

func (a *Archiver) listAttachment(ctx context.Context, l *listing, db string, owner line, name string) error {
	stream, err := a.couch.Attachment(ctx, db, owner.id, owner.rev, name)
	if err != nil {
		return err
	}
	defer stream.Close()
	n := line{id: owner.id, hash: owner.hash, rev: owner.rev}
	whole := sha256.New()
	length, err := eachChunk(stream, func(i int, chunk []byte) error {
		whole.Write(chunk)
		sum := sha256.Sum256(chunk)
		n.kind, n.part, n.length, n.sha = kindChunk, partOf(name, i), int64(len(chunk)), sum[:]
		return l.add(ctx, n)
	})
	if err != nil {
		return err
	}
	n.kind, n.part, n.length, n.sha = kindAttachment, []byte(name), length, whole.Sum(nil)
	return l.add(ctx, n)
}
