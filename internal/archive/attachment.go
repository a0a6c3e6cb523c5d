package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/pg"
)

// chunkBytes is the size of the pieces in which attachments are stored, hashed
// and compared: it bounds the memory that an attachment of any size takes.
const chunkBytes = 1 << 20

// fetchAttachments archives the attachments of the batch that are new, each in a
// transaction of its own, before the rows that name them. An attachment that
// cannot be had makes its document a reject, and holds nobody else up.
func (w *writer) fetchAttachments(ctx context.Context, b *batch) error {
	for i := range b.entries {
		e := &b.entries[i]
		if !e.archived {
			continue
		}
		var err error
		if e.attachments, err = w.attachmentsOf(ctx, e, e.rev, e.body); err != nil {
			return err
		}
		for j := range e.leaves {
			l := &e.leaves[j]
			if l.attachments, err = w.attachmentsOf(ctx, e, l.rev, l.body); err != nil {
				return err
			}
		}
	}
	return nil
}

// attachmentsOf returns the ids of a revision's attachments, in its order.
func (w *writer) attachmentsOf(ctx context.Context, e *entry, rev string, body []byte) ([]int64, error) {
	named := stubs(body)
	if len(named) == 0 {
		return nil, nil
	}
	have, err := w.archivedVersions(ctx, e)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, 0, len(named))
	for _, s := range named {
		id, ok := have[version{s.name, s.digest}]
		if !ok {
			id, err = w.storeAttachment(ctx, e, rev, s)
			if refused(err) || errors.Is(err, errAttachment) {
				e.refusal = err
				return nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("attachment of %s: %w", printable(e.id), err)
			}
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// version names the bytes of an attachment within its document.
type version struct{ name, digest string }

func (w *writer) archivedVersions(ctx context.Context, e *entry) (map[version]int64, error) {
	rows, err := w.pool.Query(ctx, `
		select id, name, digest
		from archived_attachments
		where source_id = $1 and id_hash = $2`, w.source.id, e.hash[:])
	if err != nil {
		return nil, fmt.Errorf("archived attachments: %w", pg.Translate(err))
	}
	versions := make(map[version]int64)
	var (
		id     int64
		name   []byte
		digest string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &name, &digest}, func() error {
		versions[version{string(name), digest}] = id
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("archived attachments: %w", pg.Translate(err))
	}
	return versions, nil
}

// storeAttachment copies an attachment from CouchDB and returns its id.
func (w *writer) storeAttachment(ctx context.Context, e *entry, rev string, s stub) (int64, error) {
	stream, err := w.couch.Attachment(ctx, w.source.db, e.id, rev, s.name)
	if errors.Is(err, couch.ErrNotFound) || errors.Is(err, couch.ErrRejected) {
		return 0, fmt.Errorf("%w: %w", errAttachment, err)
	}
	if err != nil {
		return 0, err
	}
	defer stream.Close()

	var id int64
	err = w.fenced(ctx, w.lease, func(tx pgx.Tx) error {
		// While CouchDB is slow, this session waits within its transaction.
		if _, err := tx.Exec(ctx, `set local idle_in_transaction_session_timeout = '5min'`); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `
			insert into archived_attachments (source_id, id_hash, name, content_type, digest, length, sha256)
			values (@source, @hash, @name, @type, @digest, 0, '')
			returning id`,
			pgx.NamedArgs{
				"source": w.source.id,
				"hash":   e.hash[:],
				"name":   []byte(s.name),
				"type":   s.contentType,
				"digest": s.digest,
			}).Scan(&id)
		if err != nil {
			return err
		}
		whole := sha256.New()
		length, err := eachChunk(stream, func(n int, chunk []byte) error {
			whole.Write(chunk)
			_, err := tx.Exec(ctx, `insert into archived_attachment_chunks (attachment_id, n, data) values ($1, $2, $3)`, id, n, chunk)
			return err
		})
		if err != nil {
			return err
		}
		// The length that the document states is not asked: of an attachment that a
		// client sent compressed it is the compressed one. A stream that breaks off
		// is an error before this point.
		_, err = tx.Exec(ctx, `update archived_attachments set length = $2, sha256 = $3 where id = $1`, id, length, whole.Sum(nil))
		return err
	})
	if err != nil {
		return 0, err
	}
	w.tally.attachments++
	return id, nil
}

// eachChunk reads a stream to its end in pieces of chunkBytes and returns how
// many bytes there were. A piece is valid until fn returns. A stream that breaks
// off is an error, never an end.
func eachChunk(r io.Reader, fn func(n int, chunk []byte) error) (int64, error) {
	buf := make([]byte, chunkBytes)
	var length int64
	for n := 0; ; n++ {
		size, ended := 0, false
		for size < len(buf) && !ended {
			// Not io.ReadFull, whose error for a short last piece is the one that a
			// broken connection has.
			read, err := r.Read(buf[size:])
			size += read
			if ended = errors.Is(err, io.EOF); err != nil && !ended {
				return 0, err
			}
		}
		if size > 0 {
			if err := fn(n, buf[:size]); err != nil {
				return 0, err
			}
			length += int64(size)
		}
		if ended {
			return length, nil
		}
	}
}
