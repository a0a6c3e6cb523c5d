// Package store keeps databases of JSON documents with revision trees, each
// in one bbolt file of a folder. It is the file layer of the embedded
// CouchDB-compatible store and knows nothing of HTTP, users or JSON beyond
// the shape of a document body.
//
// Files are opened when they are first needed, and the least recently used
// ones are closed again, so that a folder of thousands of databases costs the
// memory of a few hundred. No transaction stays open while a client reads:
// callers that stream take a page, close, send it and come back.
package store

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

var (
	// ErrNoDatabase reports that the folder holds no database of that name,
	// or no longer holds the one an operation began on.
	ErrNoDatabase = errors.New("database does not exist")
	// ErrDatabaseExists reports that a database cannot be created.
	ErrDatabaseExists = errors.New("database exists")
)

// Options of a folder.
type Options struct {
	// NoSync skips fsync. A crash of the machine can then lose or damage
	// what was written; a crash of the process cannot.
	NoSync bool
	// MaxOpen is the number of files kept open while nobody uses them; 0
	// means 256.
	MaxOpen int
}

// Dir is a folder of databases. Its methods are safe for concurrent use; only
// one Dir may have a folder open.
type Dir struct {
	path string
	opts Options

	mu     sync.Mutex
	dbs    map[string]*db
	idle   *list.List // open databases without users, most recently used first
	open   int
	closed bool
	empty  []byte // see emptyFile
}

// db is a database that is known to exist.
type db struct {
	name, file string

	// Guarded by Dir.mu.
	bolt    *bolt.DB
	refs    int
	idle    *list.Element
	changed chan struct{} // closed by the next commit or by the deletion

	writing sync.Mutex // held by a writer, and by the deletion
	deleted bool       // guarded by writing
}

const extension, deletedExtension = ".couch", ".deleted.couch"

// OpenDir opens a folder, which it makes if need be.
func OpenDir(path string, opts Options) (*Dir, error) {
	if opts.MaxOpen == 0 {
		opts.MaxOpen = 256
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	d := &Dir{path: path, opts: opts, dbs: map[string]*db{}, idle: list.New()}
	for _, e := range entries {
		if name, ok := databaseName(e.Name()); ok {
			d.dbs[name] = d.newDB(name)
		}
	}
	return d, nil
}

// Close closes all files; one that is in use when its user is done with it.
// Afterwards the folder holds no database for anybody.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, db := range d.dbs {
		if db.refs == 0 {
			errs = append(errs, d.closeFile(db))
		}
		close(db.changed)
	}
	d.dbs, d.closed = nil, true
	return errors.Join(errs...)
}

// Names returns the names of all databases in byte order.
func (d *Dir) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.dbs))
	for name := range d.dbs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Exists reports whether a database exists.
func (d *Dir) Exists(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lookup(name) != nil
}

// Create makes an empty database with the given number of shards, which is
// only remembered. It returns ErrDatabaseExists if there is one already.
func (d *Dir) Create(name string, shards int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return ErrNoDatabase
	case d.lookup(name) != nil:
		return ErrDatabaseExists
	}
	db := d.newDB(name)
	empty, err := d.emptyFile()
	if err == nil {
		err = os.WriteFile(db.file, empty, 0o600)
	}
	if err == nil {
		err = d.openFile(db)
	}
	if err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	err = db.bolt.Update(func(btx *bolt.Tx) error { return initialise(btx, shards, time.Now()) })
	if err != nil {
		_ = db.bolt.Close()
		d.open--
		_ = os.Remove(db.file)
		return fmt.Errorf("create database: %w", err)
	}
	d.dbs[name] = db
	db.idle = d.idle.PushFront(db)
	return d.evict()
}

// Delete removes a database. With keep its file is renamed, so that an
// operator can bring the database back by renaming it again. A write that has
// not committed when Delete is called fails with ErrNoDatabase.
func (d *Dir) Delete(name string, keep bool) error {
	d.mu.Lock()
	db := d.lookup(name)
	d.mu.Unlock()
	if db == nil {
		return ErrNoDatabase
	}
	db.writing.Lock()
	defer db.writing.Unlock()
	if db.deleted {
		return ErrNoDatabase
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrNoDatabase
	}
	if err := d.removeFile(db, keep); err != nil {
		return fmt.Errorf("delete database: %w", err)
	}
	db.deleted = true
	delete(d.dbs, name)
	close(db.changed)
	if db.refs == 0 {
		return d.closeFile(db)
	}
	return nil
}

// Watch returns a channel that is closed by the next commit to the database,
// or by its deletion. Take it before reading, so that nothing is missed.
func (d *Dir) Watch(name string) (<-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.lookup(name)
	if db == nil {
		return nil, ErrNoDatabase
	}
	return db.changed, nil
}

// View runs fn in a read transaction. What fn was given is invalid when it
// returns.
func (d *Dir) View(name string, fn func(*Tx) error) error {
	db, err := d.acquire(name)
	if err != nil {
		return err
	}
	defer d.release(db)
	return db.bolt.View(func(btx *bolt.Tx) error {
		tx, err := newTx(db, btx)
		if err != nil {
			return err
		}
		return fn(tx)
	})
}

// Update runs fn in the one write transaction of the database and commits
// unless fn fails. The commit wakes whoever watches.
func (d *Dir) Update(name string, fn func(*Tx) error) error {
	db, err := d.acquire(name)
	if err != nil {
		return err
	}
	defer d.release(db)
	db.writing.Lock()
	defer db.writing.Unlock()
	if db.deleted {
		return ErrNoDatabase
	}
	err = db.bolt.Update(func(btx *bolt.Tx) error {
		tx, err := newTx(db, btx)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		return tx.flush()
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		close(db.changed)
		db.changed = make(chan struct{})
	}
	return nil
}

func (d *Dir) newDB(name string) *db {
	file := filepath.Join(d.path, strings.ReplaceAll(name, "/", "%")+extension)
	return &db{name: name, file: file, changed: make(chan struct{})}
}

// lookup finds a database, also one whose file was put back by hand.
func (d *Dir) lookup(name string) *db {
	if db := d.dbs[name]; db != nil || d.closed {
		return db
	}
	db := d.newDB(name)
	if _, err := os.Stat(db.file); err != nil {
		return nil
	}
	d.dbs[name] = db
	return db
}

func (d *Dir) acquire(name string) (*db, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.lookup(name)
	if db == nil {
		return nil, ErrNoDatabase
	}
	if db.bolt == nil {
		if err := d.openFile(db); err != nil {
			return nil, err
		}
	}
	if db.idle != nil {
		d.idle.Remove(db.idle)
		db.idle = nil
	}
	db.refs++
	return db, d.evict()
}

func (d *Dir) release(db *db) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if db.refs--; db.refs > 0 {
		return
	}
	if d.dbs[db.name] != db {
		_ = d.closeFile(db) // Deleted or closed while in use: nobody is left to tell.
		return
	}
	db.idle = d.idle.PushFront(db)
}
