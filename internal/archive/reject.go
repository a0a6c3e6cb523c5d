package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/pg"
)

// putRejects keeps the documents of the batch that were refused, with their
// bytes, and forgets the earlier rejects that are healed.
func (w *writer) putRejects(ctx context.Context, tx pgx.Tx, entries []entry) ([]*entry, error) {
	var (
		rejected []*entry
		healed   [][]byte
	)
	for i := range entries {
		e := &entries[i]
		if e.refusal == nil {
			healed = append(healed, e.hash[:])
			continue
		}
		rejected = append(rejected, e)
		code := pg.Code(e.refusal)
		if errors.Is(e.refusal, errAttachment) {
			code = "attachment"
		}
		_, err := tx.Exec(ctx, `
			insert into archive_rejects (source_id, id_hash, doc_id, rev, deleted, bytes, code, error)
			values (@source, @hash, @id, @rev, @deleted, @bytes, @code, @error)
			on conflict on constraint archive_rejects_pkey do update set
			  rev = excluded.rev,
			  deleted = excluded.deleted,
			  bytes = excluded.bytes,
			  code = excluded.code,
			  error = excluded.error,
			  last_at = now(),
			  attempts = archive_rejects.attempts + 1`,
			pgx.NamedArgs{
				"source":  w.source.id,
				"hash":    e.hash[:],
				"id":      []byte(e.id),
				"rev":     printable(e.rev),
				"deleted": e.deleted,
				"bytes":   e.body,
				"code":    code,
				"error":   printable(e.refusal.Error()),
			})
		if err != nil {
			return nil, fmt.Errorf("reject: %w", err)
		}
	}
	if w.source.hasRejects && len(healed) > 0 {
		_, err := tx.Exec(ctx, `delete from archive_rejects where source_id = $1 and id_hash = any($2)`, w.source.id, healed)
		if err != nil {
			return nil, fmt.Errorf("forget rejects: %w", err)
		}
	}
	w.source.hasRejects = w.source.hasRejects || len(rejected) > 0
	return rejected, nil
}

// rejectsAtOnce is how many rejects are tried again in one batch.
const rejectsAtOnce = 20

// retryRejects tries the rejected documents again, as they are in CouchDB now.
// One that is not there any more stays a reject: its bytes are nowhere else.
func (w *writer) retryRejects(ctx context.Context, classify classifier) error {
	after := []byte{}
	for {
		rows, err := w.pool.Query(ctx, `
			select id_hash, doc_id
			from archive_rejects
			where source_id = $1 and id_hash > $2
			order by id_hash
			limit $3`, w.source.id, after, rejectsAtOnce)
		if err != nil {
			return fmt.Errorf("rejects: %w", pg.Translate(err))
		}
		var refs []couch.Ref
		var id []byte
		_, err = pgx.ForEachRow(rows, []any{&after, &id}, func() error {
			refs = append(refs, couch.Ref{ID: string(id)})
			return nil
		})
		if err != nil {
			return fmt.Errorf("rejects: %w", pg.Translate(err))
		}
		if len(refs) == 0 {
			return nil
		}
		leaves, err := w.couch.Revisions(ctx, w.source.db, refs, false)
		if err != nil {
			return fmt.Errorf("rejects: %w", err)
		}
		b := newBatch()
		for _, c := range winners(leaves) {
			b.add(&c, classify)
		}
		if err := w.write(ctx, b); err != nil {
			return fmt.Errorf("rejects: %w", err)
		}
	}
}

// winners makes rows of a feed of all leaves of some documents.
func winners(leaves []couch.Revision) []couch.Change {
	byID := make(map[string][]couch.Revision)
	for _, l := range leaves {
		if l.Body != nil {
			byID[l.ID] = append(byID[l.ID], l)
		}
	}
	var changes []couch.Change
	for id, all := range byID {
		slices.SortFunc(all, byPrecedence)
		c := couch.Change{ID: id, Deleted: all[0].Deleted(), Doc: all[0].Body}
		for _, l := range all {
			c.Revs = append(c.Revs, l.Rev)
		}
		changes = append(changes, c)
	}
	return changes
}

// byPrecedence orders leaves as CouchDB does, the winner first: live before
// deleted, then the higher generation, then the higher revision.
func byPrecedence(a, b couch.Revision) int {
	if a.Deleted() != b.Deleted() {
		if b.Deleted() {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(generationOf(b.Rev), generationOf(a.Rev)), cmp.Compare(b.Rev, a.Rev))
}

func generationOf(rev string) int {
	number, _, _ := strings.Cut(rev, "-")
	n, _ := strconv.Atoi(number) // CouchDB takes no other.
	return n
}
