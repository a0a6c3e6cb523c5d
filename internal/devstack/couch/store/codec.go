package store

import (
	"encoding/binary"
	"errors"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
)

var errCorrupt = errors.New("store: corrupt record")

// encoder appends varints and length-prefixed strings.
type encoder struct{ b []byte }

func (e *encoder) uint(n uint64)  { e.b = binary.AppendUvarint(e.b, n) }
func (e *encoder) str(s string)   { e.uint(uint64(len(s))); e.b = append(e.b, s...) }
func (e *encoder) bytes(p []byte) { e.uint(uint64(len(p))); e.b = append(e.b, p...) }

// decoder reads what encoder wrote. The first malformed field sticks in bad
// and everything behind it reads as zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uint() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) bytes() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) str() string { return string(d.bytes()) }

func (d *decoder) err() error {
	if d.bad {
		return errCorrupt
	}
	return nil
}

// Record is what a database knows of one document id.
type Record struct {
	ID   string
	Seq  uint64 // of the latest change
	Tree revtree.Tree
}

// Live reports whether the winner is not deleted.
func (r *Record) Live() bool { return !r.Tree[r.Tree.Winner()].Deleted }

// A record begins with a byte that is 1 for live documents, so that counting
// does not need to decode trees.
func (r *Record) encode() []byte {
	e := encoder{b: make([]byte, 1, 64+len(r.ID)+32*len(r.Tree))}
	if r.Live() {
		e.b[0] = 1
	}
	e.str(r.ID)
	e.uint(r.Seq)
	e.uint(uint64(len(r.Tree)))
	for _, n := range r.Tree {
		e.uint(uint64(n.Rev.Gen))
		e.str(n.Rev.ID)
		e.uint(uint64(n.Parent + 1))
		flags := n.Body << 1
		if n.Deleted {
			flags |= 1
		}
		e.uint(flags)
	}
	return e.b
}

func recordIsLive(b []byte) bool { return len(b) > 0 && b[0] == 1 }

func decodeRecord(b []byte) (*Record, error) {
	if len(b) == 0 {
		return nil, errCorrupt
	}
	d := decoder{b: b[1:]}
	r := &Record{ID: d.str(), Seq: d.uint()}
	n := d.uint()
	if n == 0 || n > uint64(len(d.b)) {
		return nil, errCorrupt
	}
	r.Tree = make(revtree.Tree, n)
	for i := range r.Tree {
		node := &r.Tree[i]
		node.Rev.Gen = int(d.uint())
		node.Rev.ID = d.str()
		node.Parent = int(d.uint()) - 1
		flags := d.uint()
		node.Deleted = flags&1 != 0
		node.Body = flags >> 1
		if node.Rev.Gen < 0 || node.Parent < -1 || node.Parent >= len(r.Tree) {
			return nil, errCorrupt
		}
	}
	return r, d.err()
}
