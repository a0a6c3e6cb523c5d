package store

import (
	"errors"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

// Purge forgets revisions of a document as if they had never been, and returns
// those that it did forget. Only leaves can be purged. A document that loses
// its last leaf disappears without a trace in the changes feed.
func (tx *Tx) Purge(id string, revs []revtree.Rev) ([]revtree.Rev, error) {
	tx.meta.PurgeSeq++
	tx.bump()
	r, err := tx.Record(id)
	var purged []revtree.Rev
	if err == nil {
		before := r.state()
		if purged = r.Tree.Purge(revs); len(purged) > 0 {
			err = tx.save(r, before)
		}
	} else if errors.Is(err, ErrMissing) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	e := encoder{}
	e.str(id)
	for _, rev := range revs {
		e.str(rev.String())
	}
	return purged, tx.btx.Bucket(purgesBucket).Put(seqKey(tx.meta.PurgeSeq), e.b)
}

// Compact drops the bodies of revisions that are not leaves, and attachments
// that no remaining body refers to.
func (tx *Tx) Compact() error {
	keepBody, keepContent := map[uint64]bool{}, map[uint64]bool{}
	var stale []*Record
	err := tx.Docs("", false, true, func(r *Record) (bool, error) {
		leaves := map[int]bool{}
		for _, i := range r.Tree.Leaves() {
			leaves[i] = true
			doc, err := tx.Load(r, i)
			if err != nil && !errors.Is(err, ErrMissing) {
				return false, err
			}
			keepBody[r.Tree[i].Body] = true
			for _, a := range doc.Atts {
				keepContent[a.Content] = true
			}
		}
		changed := false
		for i := range r.Tree {
			if !leaves[i] && r.Tree[i].Body != 0 {
				r.Tree[i].Body, changed = 0, true
			}
		}
		if changed {
			stale = append(stale, r)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, r := range stale {
		if err := tx.docs.Put(docKey(r.ID), r.encode()); err != nil {
			return err
		}
	}
	if err := tx.sweep(bodiesBucket, func(ref uint64) bool { return keepBody[ref] }); err != nil {
		return err
	}
	// An attachment that is being received has no body that refers to it. It
	// is spared by sweeping only what was given out before the last time.
	settled := tx.meta.Settled
	tx.meta.Settled, tx.dirty = tx.meta.Contents, true
	return tx.sweep(chunksBucket, func(ref uint64) bool { return keepContent[ref] || ref > settled })
}

// sweep deletes the keys of a bucket whose reference is not to be kept.
func (tx *Tx) sweep(bucket []byte, keep func(ref uint64) bool) error {
	b := tx.btx.Bucket(bucket)
	var garbage [][]byte
	cursor := b.Cursor()
	for key, _ := cursor.First(); key != nil; key, _ = cursor.Next() {
		if !keep(keyRef(key)) {
			garbage = append(garbage, key)
		}
	}
	for _, key := range garbage {
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
