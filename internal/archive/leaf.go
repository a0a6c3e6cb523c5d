package archive

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
)

// leavesAtOnce is how many leaves are asked for in one request.
const leavesAtOnce = 50

// fetchLeaves tells the losing leaves of the batch apart: a live one is a
// conflict, a deleted one is archived with its body. The feed says only that
// they are there.
func (w *writer) fetchLeaves(ctx context.Context, b *batch) error {
	var refs []couch.Ref
	for i := range b.entries {
		e := &b.entries[i]
		if !e.archived && len(e.blockers) == 0 {
			continue
		}
		for _, rev := range e.losing {
			refs = append(refs, couch.Ref{ID: e.id, Rev: rev})
		}
	}
	for len(refs) > 0 {
		n := min(len(refs), leavesAtOnce)
		revisions, err := w.couch.Revisions(ctx, w.source.db, refs[:n], false)
		if err != nil {
			return fmt.Errorf("losing leaves: %w", err)
		}
		refs = refs[n:]
		for _, r := range revisions {
			if err := r.Unanswered(); err != nil {
				return fmt.Errorf("losing leaves: %w", err)
			}
			i, ok := b.byHash[sha256.Sum256([]byte(r.ID))]
			switch {
			case !ok || r.Body == nil:
				// A leaf that is gone meanwhile makes its document come again.
			case r.Deleted():
				b.entries[i].leaves = append(b.entries[i].leaves, leaf{rev: r.Rev, body: r.Body, sha: sha256.Sum256(r.Body)})
			case w.place == nil:
				b.entries[i].conflict()
			}
		}
	}
	return nil
}

// conflict notes that a losing leaf is live.
func (e *entry) conflict() {
	for _, b := range e.blockers {
		if b.code == codeConflict {
			return
		}
	}
	e.blockers = append(e.blockers, blocker{code: codeConflict, docType: e.docType, status: e.status})
}

// putLeaves makes the archived leaves of these documents those that CouchDB has.
func (w *writer) putLeaves(ctx context.Context, tx pgx.Tx, rows []*entry) error {
	all := make([][]byte, 0, len(rows))
	found := false
	for _, e := range rows {
		all = append(all, e.hash[:])
		found = found || len(e.leaves) > 0
	}
	if w.source.hasLeaves {
		_, err := tx.Exec(ctx, `delete from archived_leaves where source_id = $1 and id_hash = any($2)`, w.source.id, all)
		if err != nil {
			return fmt.Errorf("earlier leaves: %w", err)
		}
	}
	if !found {
		return nil
	}
	w.source.hasLeaves = true
	for _, e := range rows {
		for _, l := range e.leaves {
			_, err := tx.Exec(ctx, `
				insert into archived_leaves (source_id, id_hash, rev, doc_id, body, body_sha256, attachments)
				values (@source, @hash, @rev, @id, @body, @sha, @attachments)`,
				pgx.NamedArgs{
					"source":      w.source.id,
					"hash":        e.hash[:],
					"rev":         l.rev,
					"id":          []byte(e.id),
					"body":        string(l.body),
					"sha":         l.sha[:],
					"attachments": l.attachments,
				})
			if err != nil {
				return fmt.Errorf("leaf: %w", err)
			}
		}
	}
	return nil
}
