package store

import (
	"crypto/md5"
	"errors"
	"fmt"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

var (
	// ErrConflict reports an edit whose parent is not a leaf of the document.
	ErrConflict = errors.New("document update conflict")
	// ErrMissingStub reports a stub of an attachment that the edited
	// revision does not have. Its text goes to clients, who know it.
	ErrMissingStub = errors.New("Invalid attachment stub") //nolint:staticcheck // CouchDB's text.
)

// Edit is a revision on its way into a database.
type Edit struct {
	ID string
	// Revs is the ancestry, newest first. Put wants the edited revision, or
	// nothing for a new document; Replicate the new revision and its history.
	Revs    []revtree.Rev
	Deleted bool
	Body    []byte // as in Doc
	Atts    []AttachmentEdit
}

// AttachmentEdit is an attachment of an edit: a stub that stands for what the
// edited revision has under that name, or new content, which is either Data
// or stored already as Attachment.Content.
type AttachmentEdit struct {
	Attachment
	Stub bool
	Data []byte // the stored form
}

// Check judges an edit before it is written; old is the revision that it
// replaces, nil if it replaces none or a deleted one by chance. The error is
// returned as it is.
type Check func(e *Edit, old *Doc) error

// Put applies an edit to the leaf that it names and returns the new revision,
// which depends on nothing but content and ancestry. It returns ErrConflict
// if that is not a leaf. An edit that names none creates the document, or
// continues it behind a deletion.
func (tx *Tx) Put(e *Edit, check Check) (revtree.Rev, error) {
	r, before, parent, err := tx.plan(e, check)
	if err != nil {
		return revtree.Rev{}, err
	}
	var parentRev revtree.Rev
	if parent >= 0 {
		parentRev = r.Tree[parent].Rev
	}
	gen := parentRev.Gen + 1
	atts, err := tx.attachments(e, gen, r, parent)
	if err != nil {
		return revtree.Rev{}, err
	}
	rev := revtree.Rev{Gen: gen, ID: revID(e, parentRev, atts)}
	body, err := tx.storeBody(atts, e.Body)
	if err != nil {
		return rev, err
	}
	r.Tree.Extend(parent, rev, e.Deleted, body)
	return rev, tx.save(r, before)
}

// Precheck is Put up to where it would begin to write, so that an edit with a
// long attachment can be refused before the attachment is received.
func (tx *Tx) Precheck(e *Edit, check Check) error {
	_, _, _, err := tx.plan(e, check)
	return err
}

// Replicate adds a revision with the ancestry it has elsewhere. A revision
// that is known already is left alone. There are no conflicts: a revision
// that does not descend from the winner becomes another branch.
func (tx *Tx) Replicate(e *Edit, check Check) error {
	r, err := tx.recordOrNew(e.ID)
	if err != nil {
		return err
	}
	before := r.state()
	i, added := r.Tree.Merge(e.Revs, e.Deleted, 0)
	if !added {
		return nil
	}
	parent := r.Tree[i].Parent
	if err := tx.check(e, check, r, parent); err != nil {
		return err
	}
	atts, err := tx.attachments(e, e.Revs[0].Gen, r, parent)
	if err != nil {
		return err
	}
	if r.Tree[i].Body, err = tx.storeBody(atts, e.Body); err != nil {
		return err
	}
	return tx.save(r, before)
}

// PrecheckReplicated is Replicate up to where it would begin to write.
func (tx *Tx) PrecheckReplicated(e *Edit, check Check) error {
	r, err := tx.recordOrNew(e.ID)
	if err != nil {
		return err
	}
	i, added := r.Tree.Merge(e.Revs, e.Deleted, 0)
	if !added {
		return nil
	}
	return tx.check(e, check, r, r.Tree[i].Parent)
}

// plan finds the parent of an edit, -1 for a new root, and asks check.
func (tx *Tx) plan(e *Edit, check Check) (r *Record, before state, parent int, err error) {
	r, err = tx.recordOrNew(e.ID)
	if err != nil {
		return nil, before, 0, err
	}
	before = r.state()
	parent = -1
	old := -1
	switch {
	case len(e.Revs) > 0 && len(r.Tree) == 0 && tx.meta.Live+tx.meta.Deleted > 0:
		// CouchDB takes an edit of a document that does not exist and invents
		// its history, except in an empty shard. It is a trap, not a promise.
		for i := len(e.Revs) - 1; i >= 0; i-- {
			parent = r.Tree.Extend(parent, e.Revs[i], false, 0)
		}
	case len(e.Revs) > 0:
		parent = r.Tree.Find(e.Revs[0])
		if parent < 0 || !r.Tree.IsLeaf(parent) {
			return nil, before, 0, ErrConflict
		}
		old = parent
	case len(r.Tree) > 0:
		parent = r.Tree.Winner()
		if !r.Tree[parent].Deleted {
			return nil, before, 0, ErrConflict
		}
	}
	return r, before, parent, tx.check(e, check, r, old)
}

func (tx *Tx) check(e *Edit, check Check, r *Record, old int) error {
	if check == nil {
		return nil
	}
	if old < 0 {
		return check(e, nil)
	}
	doc, err := tx.Load(r, old)
	if errors.Is(err, ErrMissing) {
		return check(e, nil)
	}
	if err != nil {
		return err
	}
	doc.Path = r.Tree.Path(old)
	return check(e, &doc)
}

func (tx *Tx) recordOrNew(id string) (*Record, error) {
	r, err := tx.Record(id)
	if errors.Is(err, ErrMissing) {
		return &Record{ID: id}, nil
	}
	return r, err
}

// attachments resolves stubs and stores new content.
func (tx *Tx) attachments(e *Edit, gen int, r *Record, parent int) ([]Attachment, error) {
	if len(e.Atts) == 0 {
		return nil, nil
	}
	atts := make([]Attachment, 0, len(e.Atts))
	for _, a := range e.Atts {
		switch {
		case a.Stub:
			known, err := tx.stubbed(a, r, parent)
			if err != nil {
				return nil, err
			}
			atts = append(atts, known)
			continue
		case a.Data != nil:
			content, err := tx.NewContent()
			if err != nil {
				return nil, err
			}
			if err := tx.AppendContent(content, 0, a.Data); err != nil {
				return nil, err
			}
			a.Content = content
		}
		if a.RevPos == 0 || a.RevPos > gen {
			a.RevPos = gen
		}
		atts = append(atts, a.Attachment)
	}
	return atts, nil
}

// stubbed finds what a stub stands for in the edited revision or, where its
// body is not held, in the closest ancestor.
func (tx *Tx) stubbed(a AttachmentEdit, r *Record, parent int) (Attachment, error) {
	for i := parent; i >= 0; i = r.Tree[i].Parent {
		doc, err := tx.Load(r, i)
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			return Attachment{}, err
		}
		for _, known := range doc.Atts {
			if known.Name == a.Name {
				return known, nil
			}
		}
		break
	}
	return Attachment{}, fmt.Errorf("%w in %s for %s", ErrMissingStub, r.ID, a.Name)
}

// revID derives the id of a new revision from content and ancestry. Like
// CouchDB's it leaves out the id of the document.
func revID(e *Edit, parent revtree.Rev, atts []Attachment) string {
	h := encoder{b: make([]byte, 0, len(e.Body)+64)}
	h.uint(uint64(parent.Gen))
	h.str(parent.ID)
	if e.Deleted {
		h.uint(1)
	}
	for _, a := range atts {
		h.str(a.Name)
		h.str(a.Type)
		h.bytes(a.Digest[:])
	}
	h.bytes(e.Body)
	sum := md5.Sum(h.b)
	return string(sum[:])
}

// save writes a changed record under a new sequence and moves the counters. A
// record without revisions is removed.
func (tx *Tx) save(r *Record, before state) error {
	tx.dirty = true
	key := docKey(r.ID)
	if strings.HasPrefix(r.ID, DesignPrefix) {
		tx.meta.Designs++
	}
	if before.exists {
		if err := tx.seqs.Delete(seqKey(r.Seq)); err != nil {
			return err
		}
		tx.count(r.Seq, -1)
	}
	r.Tree.Stem(tx.meta.RevsLimit)
	after := r.state()
	tx.meta.Live += live(after) - live(before)
	tx.meta.Deleted += dead(after) - dead(before)
	if !after.exists {
		return tx.docs.Delete(key)
	}
	tx.meta.UpdateSeq++
	r.Seq = tx.meta.UpdateSeq
	tx.count(r.Seq, +1)
	tx.seqs.FillPercent = 1 // Sequences only grow.
	if err := tx.seqs.Put(seqKey(r.Seq), key); err != nil {
		return err
	}
	return tx.docs.Put(key, r.encode())
}
