// Package archive copies finished documents from CouchDB to Postgres exactly as
// CouchDB sent them, compares the two, proves byte by byte that they are equal,
// and rebuilds a database from the copy.
//
// Archiving is level-triggered: a database is read from the checkpoint of its
// source to the end, and each batch of rows is committed together with the
// checkpoint that follows it. What is read twice changes nothing, so whatever
// fails, the next run continues where the last batch was committed.
package archive

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/fence"
)

var (
	// ErrIncarnation is returned when the database under a name is another one
	// than the ledger's: its marker or its creation time differs. Nothing is
	// read from it.
	ErrIncarnation = errors.New("another database under this name")
	// ErrMoving is returned when a database is written faster than it is
	// archived, or was written while it was compared. A later run may succeed.
	ErrMoving = errors.New("the database is being written")
	// ErrPurged is returned when documents were purged since the database was
	// archived, which its feed does not show.
	ErrPurged = errors.New("documents were purged")
	// ErrNotProven is returned when a byte-by-byte comparison found differences;
	// NotProvenError has them.
	ErrNotProven = errors.New("the archive is not proven equal")
	// ErrNotArchived is returned for a day that the archive does not know.
	ErrNotArchived = errors.New("no archive of this database")
)

// Couch is what the archive asks of CouchDB; *couch.Client has it. The errors
// are those of package couch.
type Couch interface {
	Info(ctx context.Context, db string) (couch.Info, error)
	Security(ctx context.Context, db string) (couch.Security, error)
	Changes(ctx context.Context, db string, opts couch.ChangesOptions) (*couch.Feed, error)
	Pending(ctx context.Context, db string, since couch.Seq) (int64, error)
	Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error)
	Attachment(ctx context.Context, db, id, rev, name string) (io.ReadCloser, error)
	Witness(ctx context.Context, db, reader string) (couch.Seq, error)
	PutWitness(ctx context.Context, db, reader string, since couch.Seq) error

	// A restore alone writes.
	Create(ctx context.Context, db string) (created bool, err error)
	PutSecurity(ctx context.Context, db string, s couch.Security) error
	Insert(ctx context.Context, db string, docs [][]byte) ([]couch.Refusal, error)
	InsertStream(ctx context.Context, db string, doc io.Reader) ([]couch.Refusal, error)
}

// DefaultWorkers is how many databases are archived at the same time.
const DefaultWorkers = 4

// Options of an Archiver.
type Options struct {
	Pool   *pgxpool.Pool
	Couch  Couch
	Leases *fence.Leases
	Log    *slog.Logger
	// Env is the prefix of this environment's database names.
	Env string
	// Workers is how many databases are read in parallel; 0 is DefaultWorkers.
	Workers int
}

// Archiver archives, compares and restores. It is safe for concurrent use; two
// that work on one database are kept apart by its lease.
type Archiver struct {
	pool    *pgxpool.Pool
	couch   Couch
	leases  *fence.Leases
	log     *slog.Logger
	env     string
	workers int

	// months holds the months that are known to have a partition.
	months sync.Map
}

// New returns an Archiver.
func New(opts Options) *Archiver {
	a := &Archiver{
		pool:    opts.Pool,
		couch:   opts.Couch,
		leases:  opts.Leases,
		log:     opts.Log,
		env:     opts.Env,
		workers: opts.Workers,
	}
	if a.workers == 0 {
		a.workers = DefaultWorkers
	}
	return a
}

// LeaseName returns the name of the lease that everything holds that archives,
// seals or drops this database.
func LeaseName(dbName string) string { return "db/" + dbName }
