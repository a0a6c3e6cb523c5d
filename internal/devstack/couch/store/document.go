package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

// ErrMissing reports that a document, or the body of a revision, is not there.
var ErrMissing = errors.New("missing")

// DesignPrefix begins the ids of design documents.
const DesignPrefix = "_design/"

// Doc is one revision of a document.
type Doc struct {
	ID      string
	Rev     revtree.Rev
	Deleted bool
	// Body holds the members of the object in normal form, without the
	// braces and without the special members.
	Body []byte
	Atts []Attachment
	// Path is the revision and its ancestors, newest first. It is set for a
	// Check alone.
	Path []revtree.Rev
}

// Record returns what is known of a document id, or ErrMissing.
func (tx *Tx) Record(id string) (*Record, error) {
	b := tx.docs.Get(docKey(id))
	if b == nil {
		return nil, ErrMissing
	}
	return decodeRecord(b)
}

// Load reads the revision at index i of a record's tree. It returns
// ErrMissing if only the existence of that revision is known.
func (tx *Tx) Load(r *Record, i int) (Doc, error) {
	node := r.Tree[i]
	doc := Doc{ID: r.ID, Rev: node.Rev, Deleted: node.Deleted}
	if node.Body == 0 {
		return doc, ErrMissing
	}
	stored := tx.btx.Bucket(bodiesBucket).Get(seqKey(node.Body))
	if stored == nil {
		return doc, ErrMissing
	}
	var err error
	doc.Atts, doc.Body, err = decodeBody(stored)
	if err != nil {
		return doc, fmt.Errorf("body of %q %s: %w", r.ID, node.Rev, err)
	}
	return doc, nil
}

func (tx *Tx) storeBody(atts []Attachment, body []byte) (uint64, error) {
	tx.meta.Bodies++
	tx.dirty = true
	bodies := tx.btx.Bucket(bodiesBucket)
	bodies.FillPercent = 1 // References only grow.
	return tx.meta.Bodies, bodies.Put(seqKey(tx.meta.Bodies), encodeBody(atts, body))
}

// Docs walks the records in the order of their ids, from the first id that is
// not below from, or downwards from the last that is not above it. It stops
// when fn returns false. Deleted documents are passed over unless asked for.
func (tx *Tx) Docs(from string, descending, deleted bool, fn func(*Record) (bool, error)) error {
	cursor := tx.docs.Cursor()
	step := cursor.Next
	var key, value []byte
	switch {
	case !descending:
		key, value = cursor.Seek(docKey(from))
	case from == "":
		key, value = cursor.Last()
		step = cursor.Prev
	default:
		key, value = cursor.Seek(docKey(from))
		step = cursor.Prev
		if key == nil {
			key, value = cursor.Last()
		} else if string(key) > string(docKey(from)) {
			key, value = cursor.Prev()
		}
	}
	for ; key != nil; key, value = step() {
		if !deleted && !recordIsLive(value) {
			continue
		}
		r, err := decodeRecord(value)
		if err != nil {
			return err
		}
		if more, err := fn(r); !more || err != nil {
			return err
		}
	}
	return nil
}

// LiveBefore counts the live documents with ids below id.
func (tx *Tx) LiveBefore(id string) int {
	n := 0
	cursor := tx.docs.Cursor()
	end := string(docKey(id))
	for key, value := cursor.First(); key != nil && string(key) < end; key, value = cursor.Next() {
		if recordIsLive(value) {
			n++
		}
	}
	return n
}

// DesignDocs returns the live design documents.
func (tx *Tx) DesignDocs() ([]Doc, error) {
	var docs []Doc
	err := tx.Docs(DesignPrefix, false, false, func(r *Record) (bool, error) {
		if !strings.HasPrefix(r.ID, DesignPrefix) {
			return false, nil
		}
		doc, err := tx.Load(r, r.Tree.Winner())
		docs = append(docs, doc)
		return true, err
	})
	return docs, err
}

// Changes walks the records in the order of their latest change, those after
// since. Descending begins at the newest and ignores since.
func (tx *Tx) Changes(since uint64, descending bool, fn func(*Record) (bool, error)) error {
	cursor := tx.seqs.Cursor()
	key, docKey := cursor.Seek(seqKey(since + 1))
	step := cursor.Next
	if descending {
		key, docKey = cursor.Last()
		step = cursor.Prev
	}
	for ; key != nil; key, docKey = step() {
		r, err := decodeRecord(tx.docs.Get(docKey))
		if err != nil {
			return err
		}
		if more, err := fn(r); !more || err != nil {
			return err
		}
	}
	return nil
}
