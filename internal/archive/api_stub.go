package archive

import (
	"context"
	"errors"
	"io"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

var errSoon = errors.New("archive: being written")

// Reconciliation compares a database with its archive, without bodies.
type Reconciliation struct {
	// Documents are the live ones in CouchDB, Deleted the deleted ones; design documents are not counted.
	Documents int64
	Deleted   int64
	// Archived are the rows in the archive, deleted ones among them.
	Archived int64
	// Missing are in CouchDB only, Extra in the archive only (a purge makes such), Changed differ in revision or deletion.
	Missing, Extra, Changed Delta
	// Attachments are documents whose attachments the archive does not hold whole.
	Attachments Delta
	// Rejected are documents that Postgres would not take.
	Rejected Delta
	// Pending is how many changes came in while the two were compared.
	Pending int64
	Since   couch.Seq
	Info    couch.Info
}

// Green reports whether the two are equal.
func (r Reconciliation) Green() bool {
	return r.Missing.Count+r.Extra.Count+r.Changed.Count+r.Attachments.Count+r.Rejected.Count+r.Pending == 0
}

// State is what CouchDB said of a database when its proof was taken.
type State struct {
	DocCount          int64     `json:"docCount"`
	DocDelCount       int64     `json:"docDelCount"`
	PurgeSeq          int64     `json:"purgeSeq"`
	InstanceStartTime string    `json:"instanceStartTime"`
	Since             couch.Seq `json:"since"`
	Generation        string    `json:"generation"`
}

// Proof is the digest over the sorted list of everything that was compared.
type Proof struct {
	SHA256      [32]byte
	Documents   int64
	Attachments int64
	State       State
}

// Restored is a database that was rebuilt from the archive.
type Restored struct {
	DBName    string
	Documents int64
}

func (a *Archiver) Run(ctx context.Context, r run.Run) error { return errSoon }
func (a *Archiver) Reconcile(ctx context.Context, day daydb.DayDB, pos Position) (Reconciliation, error) {
	return Reconciliation{}, errSoon
}
func (a *Archiver) Prove(ctx context.Context, day daydb.DayDB, pos Position) (Proof, error) {
	return Proof{}, errSoon
}
func (a *Archiver) WriteProofList(ctx context.Context, day daydb.DayDB, w io.Writer) error {
	return errSoon
}
func (a *Archiver) Restore(ctx context.Context, day daydb.DayDB, reason, actor string) (Restored, error) {
	return Restored{}, errSoon
}
