package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
)

// truth is what the tills were told is stored: for each document its leaves,
// with the digest of the bytes that CouchDB sent of them right afterwards, and
// of the attachments as the till has sent them.
type truth struct {
	mu   sync.Mutex
	docs map[string]map[string]map[string]*leaf // Database, id, revision.
	// unread are the leaves whose bytes have not been read back, by database.
	unread map[string][]ref
	// revisions counts all acknowledgements, bytes what was read back.
	revisions, bytes int64
}

type leaf struct {
	deleted     bool
	body        [sha256.Size]byte
	attachments map[string][sha256.Size]byte
}

func newTruth() *truth {
	return &truth{docs: make(map[string]map[string]map[string]*leaf), unread: make(map[string][]ref)}
}

// acknowledged notes that a revision is stored, in the place of its parent; an
// empty parent ends no other revision. The attachments of the parent that are not
// given are those of the new one too if keep is set.
func (t *truth) acknowledged(db, id, parent, rev string, deleted bool, attachments map[string][]byte, keep bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &leaf{deleted: deleted, attachments: make(map[string][sha256.Size]byte)}
	leaves := t.leaves(db, id)
	if former := leaves[parent]; former != nil {
		if keep {
			maps.Copy(l.attachments, former.attachments)
		}
		delete(leaves, parent)
	}
	for name, content := range attachments {
		l.attachments[name] = sha256.Sum256(content)
	}
	leaves[rev] = l
	t.unread[db] = append(t.unread[db], ref{ID: id, Rev: rev})
	t.revisions++
}

// copied notes that a document must be in another database as well, with the
// same leaves and the same bytes.
func (t *truth) copied(id, from, to string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.leaves(to, id), t.leaves(from, id))
}

func (t *truth) leaves(db, id string) map[string]*leaf {
	if t.docs[db] == nil {
		t.docs[db] = make(map[string]map[string]*leaf)
	}
	if t.docs[db][id] == nil {
		t.docs[db][id] = make(map[string]*leaf)
	}
	return t.docs[db][id]
}

// readBack notes the bytes of what was acknowledged since the last time.
func (t *truth) readBack(ctx context.Context, couch *couchDB) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for db, refs := range t.unread {
		var current []ref
		for _, r := range refs {
			if t.docs[db][r.ID][r.Rev] != nil { // Else its successor is among the refs.
				current = append(current, r)
			}
		}
		got, err := couch.revisions(ctx, db, current)
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if len(got) != len(current) {
			return fmt.Errorf("read back: %s has %d of %d documents that it acknowledged", db, len(got), len(current))
		}
		for _, r := range got {
			l := t.docs[db][r.id][r.rev]
			if l == nil || l.deleted != r.deleted {
				return fmt.Errorf("read back: %s answers %s at %s, which nobody wrote like this", db, r.id, r.rev)
			}
			l.body = sha256.Sum256(r.body)
			t.bytes += int64(len(r.body))
		}
	}
	clear(t.unread)
	return nil
}

// documents counts the documents, whatever their number of leaves.
func (t *truth) documents() (n int64) {
	for _, docs := range t.docs {
		n += int64(len(docs))
	}
	return n
}
