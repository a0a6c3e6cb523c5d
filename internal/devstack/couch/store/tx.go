package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

var (
	metaBucket   = []byte("meta")
	docsBucket   = []byte("docs")   // document key -> Record
	seqsBucket   = []byte("seqs")   // sequence -> document key
	countsBucket = []byte("counts") // sequence block -> how many of it are in seqs
	bodiesBucket = []byte("bodies") // body reference -> attachments and members
	localsBucket = []byte("locals") // id without "_local/" -> revision and members
	chunksBucket = []byte("chunks") // content reference, chunk number -> bytes
	purgesBucket = []byte("purges") // purge sequence -> id and revisions

	metaKey     = []byte("meta")
	securityKey = []byte("security")
)

// countBlock is the number of sequences that share one counter. Counting what
// is pending reads one counter per block and at most one block of keys.
const countBlock = 4096

// Meta is the state of a database beside its documents.
type Meta struct {
	// Incarnation tells this database from any other, also of the same name.
	Incarnation [8]byte
	Created     int64 // seconds since 1970 by the clock of the machine
	Shards      int
	// UpdateSeq counts document changes and what else CouchDB counts there:
	// security, revision limit and purges. It can be ahead of every document.
	UpdateSeq uint64
	PurgeSeq  uint64
	RevsLimit int
	// Designs counts the edits of design documents.
	Designs uint64
	Live    int // documents whose winner is not deleted
	Deleted int // documents whose winner is deleted
	// Bodies and Contents are the last references given out; Settled is what
	// Contents was at the last compaction.
	Bodies, Contents, Settled uint64
}

func (m *Meta) encode() []byte {
	e := encoder{b: append(make([]byte, 0, 64), m.Incarnation[:]...)}
	for _, n := range []uint64{
		uint64(m.Created), uint64(m.Shards), m.UpdateSeq, m.PurgeSeq, uint64(m.RevsLimit),
		uint64(m.Live), uint64(m.Deleted), m.Bodies, m.Contents, m.Settled, m.Designs,
	} {
		e.uint(n)
	}
	return e.b
}

func decodeMeta(b []byte) (Meta, error) {
	var m Meta
	if len(b) < len(m.Incarnation) {
		return m, errCorrupt
	}
	d := decoder{b: b[copy(m.Incarnation[:], b):]}
	m.Created, m.Shards, m.UpdateSeq, m.PurgeSeq = int64(d.uint()), int(d.uint()), d.uint(), d.uint()
	m.RevsLimit, m.Live, m.Deleted = int(d.uint()), int(d.uint()), int(d.uint())
	m.Bodies, m.Contents, m.Settled, m.Designs = d.uint(), d.uint(), d.uint(), d.uint()
	return m, d.err()
}

func createBuckets(btx *bolt.Tx) error {
	for _, name := range [][]byte{
		metaBucket, docsBucket, seqsBucket, countsBucket, bodiesBucket, localsBucket, chunksBucket, purgesBucket,
	} {
		if _, err := btx.CreateBucket(name); err != nil {
			return err
		}
	}
	return nil
}

func initialise(btx *bolt.Tx, shards int, now time.Time) error {
	m := Meta{Created: now.Unix(), Shards: shards, RevsLimit: 1000}
	_, _ = rand.Read(m.Incarnation[:]) // It never fails.
	return btx.Bucket(metaBucket).Put(metaKey, m.encode())
}

// Tx is a transaction on one database. Byte slices it returns are valid
// until it ends.
type Tx struct {
	db   *db
	btx  *bolt.Tx
	meta Meta
	docs *bolt.Bucket
	seqs *bolt.Bucket

	dirty  bool
	counts map[uint64]int
}

func newTx(db *db, btx *bolt.Tx) (*Tx, error) {
	meta, err := decodeMeta(btx.Bucket(metaBucket).Get(metaKey))
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", db.name, err)
	}
	return &Tx{db: db, btx: btx, meta: meta, docs: btx.Bucket(docsBucket), seqs: btx.Bucket(seqsBucket)}, nil
}

// Meta returns the state of the database as of this transaction.
func (tx *Tx) Meta() Meta { return tx.meta }

// Size returns the length of the database file in bytes.
func (tx *Tx) Size() int64 { return tx.btx.Size() }

// Security returns the security object as it was put, nil if it never was.
func (tx *Tx) Security() []byte { return tx.btx.Bucket(metaBucket).Get(securityKey) }

// SetSecurity replaces the security object and counts as an update.
func (tx *Tx) SetSecurity(object []byte) error {
	tx.bump()
	return tx.btx.Bucket(metaBucket).Put(securityKey, object)
}

// SetRevsLimit replaces the revision limit and counts as an update.
func (tx *Tx) SetRevsLimit(limit int) {
	tx.bump()
	tx.meta.RevsLimit = limit
}

// bump advances the update sequence without a document change, by one per
// shard as CouchDB does.
func (tx *Tx) bump() {
	tx.meta.UpdateSeq += uint64(tx.meta.Shards)
	tx.dirty = true
}

// flush writes what the transaction has gathered.
func (tx *Tx) flush() error {
	counts := tx.btx.Bucket(countsBucket)
	for block, delta := range tx.counts {
		key := seqKey(block)
		n := int(decodeCount(counts.Get(key))) + delta
		if err := counts.Put(key, binary.BigEndian.AppendUint32(nil, uint32(n))); err != nil {
			return err
		}
	}
	if !tx.dirty {
		return nil
	}
	return tx.btx.Bucket(metaBucket).Put(metaKey, tx.meta.encode())
}

func decodeCount(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func seqKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// keyRef reads the reference that a key begins with.
func keyRef(key []byte) uint64 { return binary.BigEndian.Uint64(key) }

// docKey is the id itself as long as a bbolt key may be that long; beyond, a
// prefix that keeps the order and a hash that keeps ids apart.
func docKey(id string) []byte {
	const longest = 1024
	if len(id) <= longest {
		return []byte(id)
	}
	sum := sha256.Sum256([]byte(id))
	return append([]byte(id[:longest]), sum[:]...)
}
