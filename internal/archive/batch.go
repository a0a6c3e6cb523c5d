package archive

import (
	"crypto/sha256"

	"github.com/rollingd/rollingd/internal/couch"
)

const (
	// seqInterval is how often the feed has a sequence: giving one in each row
	// costs CouchDB a quarter of its time.
	seqInterval = 1000
	// batchChanges is after how many changes a batch ends, at the next sequence.
	batchChanges = 2 * seqInterval
	// batchBytes is after how many bytes of documents a batch ends at the latest.
	// One that ends between two sequences leaves the checkpoint where it is.
	batchBytes = 4 << 20
	// arenaKept is the largest arena that is used again: a few huge documents
	// must not make every later batch as large.
	arenaKept = 3 * batchBytes
)

// batch is what is committed in one transaction. Its memory is used again.
type batch struct {
	entries []entry
	// byHash finds the entry of a document: should a feed repeat one, the last wins.
	byHash map[[sha256.Size]byte]int
	arena  []byte
	bytes  int
	// changes counts the rows of the feed, of which some make no entry.
	changes int
	// next is the checkpoint that follows the batch, or empty.
	next couch.Seq
}

func newBatch() *batch {
	return &batch{byHash: make(map[[sha256.Size]byte]int, batchChanges), arena: make([]byte, 0, batchBytes+batchBytes/4)}
}

func (b *batch) reset() {
	clear(b.entries)
	clear(b.byHash)
	b.entries, b.arena = b.entries[:0], b.arena[:0]
	if cap(b.arena) > arenaKept {
		b.arena = make([]byte, 0, batchBytes+batchBytes/4)
	}
	b.bytes, b.changes, b.next = 0, 0, ""
}

// add takes a row of the feed over, with a copy of its document.
func (b *batch) add(c *couch.Change, classify classifier) {
	b.changes++
	if isDesign(c.ID) {
		return
	}
	e := newEntry(c, c.Doc)
	if !classify(&e) {
		return
	}
	// Bodies of entries that are only blockers are not written.
	if e.body = nil; e.archived {
		e.body = b.keep(c.Doc)
	}
	if i, repeated := b.byHash[e.hash]; repeated {
		b.entries[i] = e
		return
	}
	b.byHash[e.hash] = len(b.entries)
	b.entries = append(b.entries, e)
}

// keep copies a body into the arena. An arena that is full is left to the bodies
// that lie in it, and the next begins.
func (b *batch) keep(body []byte) []byte {
	b.bytes += len(body)
	if len(b.arena)+len(body) > cap(b.arena) {
		b.arena = make([]byte, 0, max(len(body), batchBytes/4))
	}
	start := len(b.arena)
	b.arena = append(b.arena, body...)
	return b.arena[start:len(b.arena):len(b.arena)]
}

// full reports whether the batch ends with this row of the feed.
func (b *batch) full(c *couch.Change) bool {
	return b.bytes >= batchBytes || b.changes >= batchChanges && c.Seq != ""
}

// archived returns the entries that become rows.
func (b *batch) archived() []*entry {
	rows := make([]*entry, 0, len(b.entries))
	for i := range b.entries {
		if b.entries[i].archived {
			rows = append(rows, &b.entries[i])
		}
	}
	return rows
}
