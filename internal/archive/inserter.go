package archive

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	insertDocs  = 500
	insertBytes = 4 << 20
)

// inserter writes archived revisions to CouchDB, many in one request, and those
// with attachments one by one, streamed.
type inserter struct {
	*Archiver
	db    string
	docs  [][]byte
	bytes int
}

// insertAll inserts every revision that the archive holds of a day.
func (a *Archiver) insertAll(ctx context.Context, db string, sourceID int64, day daydb.Day) error {
	in := &inserter{Archiver: a, db: db}
	return comparing(ctx, a.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select case when deleted then tombstone else body end, attachments
			from archived_docs
			where source_id = @source and business_day = @day
			union all
			select body, attachments
			from archived_leaves
			where source_id = @source`, pgx.NamedArgs{"source": sourceID, "day": day})
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var body []byte
			var attachments []int64
			if err := rows.Scan(&body, &attachments); err != nil {
				return fmt.Errorf("read archive: %w", err)
			}
			if err := in.add(ctx, body, attachments); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		return in.flush(ctx)
	})
}

func (in *inserter) add(ctx context.Context, body []byte, attachments []int64) error {
	if len(attachments) > 0 {
		return in.insertWithAttachments(ctx, body, attachments)
	}
	in.docs = append(in.docs, body)
	if in.bytes += len(body); len(in.docs) < insertDocs && in.bytes < insertBytes {
		return nil
	}
	return in.flush(ctx)
}

func (in *inserter) flush(ctx context.Context) error {
	if len(in.docs) == 0 {
		return nil
	}
	refusals, err := in.couch.Insert(ctx, in.db, in.docs)
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if len(refusals) > 0 {
		return fmt.Errorf("insert: CouchDB refused %d documents, first %s: %s", len(refusals), printable(refusals[0].ID), refusals[0].Reason)
	}
	clear(in.docs)
	in.docs, in.bytes = in.docs[:0], 0
	return nil
}

// insertWithAttachments streams a revision with its attachments inline, so that
// attachments of any size take little memory.
func (in *inserter) insertWithAttachments(ctx context.Context, body []byte, attachments []int64) error {
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(in.inline(ctx, w, body, attachments)) }()
	refusals, err := in.couch.InsertStream(ctx, in.db, r)
	if err != nil {
		return fmt.Errorf("insert with attachments: %w", err)
	}
	if len(refusals) > 0 {
		return fmt.Errorf("insert: CouchDB refused %s: %s", printable(refusals[0].ID), refusals[0].Reason)
	}
	return nil
}

// inline writes a body whose stubs are replaced by the bytes of the attachments,
// which are in the order of the stubs. All else stays as it is.
func (in *inserter) inline(ctx context.Context, w io.Writer, body []byte, attachments []int64) error {
	all := gjson.GetBytes(body, "_attachments")
	if all.Index == 0 || !all.IsObject() {
		return fmt.Errorf("attachments of a body without stubs: %w", ErrNotProven)
	}
	if _, err := w.Write(body[:all.Index]); err != nil {
		return err
	}
	separator := "{"
	var err error
	all.ForEach(func(name, s gjson.Result) bool {
		if len(attachments) == 0 {
			err = fmt.Errorf("a stub without archived attachment: %w", ErrNotProven)
			return false
		}
		_, err = fmt.Fprintf(w, `%s%s:{"content_type":%s,"revpos":%s,"data":"`,
			separator, name.Raw, s.Get("content_type").Raw, s.Get("revpos").Raw)
		if err == nil {
			err = in.writeData(ctx, w, attachments[0])
		}
		if err == nil {
			_, err = io.WriteString(w, `"}`)
		}
		attachments, separator = attachments[1:], ","
		return err == nil
	})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, "}"); err != nil {
		return err
	}
	_, err = w.Write(body[all.Index+len(all.Raw):])
	return err
}

// writeData writes the bytes of an attachment as base64.
func (in *inserter) writeData(ctx context.Context, w io.Writer, attachment int64) error {
	encoder := base64.NewEncoder(base64.StdEncoding, w)
	for n := 0; ; n++ {
		var chunk []byte
		err := in.pool.QueryRow(ctx, `
			select (select data from archived_attachment_chunks where attachment_id = $1 and n = $2)`,
			attachment, n).Scan(&chunk)
		if err != nil {
			return fmt.Errorf("archived attachment: %w", pg.Translate(err))
		}
		if chunk == nil {
			return encoder.Close()
		}
		if _, err := encoder.Write(chunk); err != nil {
			return err
		}
	}
}
