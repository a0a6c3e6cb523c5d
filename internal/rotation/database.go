package rotation

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

var (
	// ErrForeign is reported for a database that has the name of one of ours but
	// was not created for its row. It is left alone.
	ErrForeign = errors.New("the database is not the one of the ledger")
	// ErrDeleted is reported for a database that was there and is not any more. A
	// name is never created a second time: devices that hold its documents would
	// take the new one for the old.
	ErrDeleted = errors.New("the database was deleted by hand and is not created again")
)

// create makes sure that a database exists which was never known to exist, with
// its security and marker.
//
//  1. PUT of the database, which admits administrators only until step 2. A
//     crash here leaves it empty and without marker; the next run adopts it.
//  2. PUT of _security with the restaurant's role and the marker, read back. A
//     crash here leaves it ready; the next run finds its marker.
//
// ErrForeign for a database with another marker, or with documents and none.
func (ro *Rotator) create(ctx context.Context, name string, r daydb.Restaurant, generation uuid.UUID) (created bool, err error) {
	created, err = ro.couch.Create(ctx, name)
	if err != nil {
		return false, err
	}
	want := couch.OpenTo(r.Role(), generation)
	if !created {
		have, err := ro.adoptable(ctx, name, generation)
		if err != nil || reflect.DeepEqual(have, want) {
			return false, err
		}
	}
	return created, ro.couch.PutSecurity(ctx, name, want)
}

// createDay is create for a day, and returns CouchDB's creation time.
func (ro *Rotator) createDay(ctx context.Context, d daydb.DayDB) (at string, created bool, err error) {
	created, err = ro.create(ctx, d.Name, d.Restaurant, d.Generation)
	if err != nil {
		return "", created, err
	}
	info, err := ro.couch.Info(ctx, d.Name)
	return info.InstanceStartTime, created, err
}

// adoptable returns the security of a database that was there before, provided
// that it is ours or that nobody has used it yet.
func (ro *Rotator) adoptable(ctx context.Context, name string, generation uuid.UUID) (couch.Security, error) {
	have, err := ro.couch.Security(ctx, name)
	if err != nil || have.Marked(generation) {
		return have, err
	}
	if have.Marker != nil {
		return have, fmt.Errorf("%w: it has another marker; if Postgres was restored from a backup, the ledger is older than CouchDB", ErrForeign)
	}
	info, err := ro.couch.Info(ctx, name)
	if err != nil {
		return have, err
	}
	if info.DocCount+info.DocDelCount > 0 {
		return have, fmt.Errorf("%w: it has documents and no marker", ErrForeign)
	}
	return have, nil
}

// verify checks that a database which is known to exist still does, and is the
// same; it restores a _security that was changed. One request when all is well.
func (ro *Rotator) verify(ctx context.Context, name string, r daydb.Restaurant, generation uuid.UUID) error {
	have, err := ro.couch.Security(ctx, name)
	if errors.Is(err, couch.ErrNotFound) {
		// Only GET of the database proves its absence.
		_, err = ro.couch.Info(ctx, name)
		if errors.Is(err, couch.ErrNotFound) {
			return ErrDeleted
		}
		if err == nil {
			return fmt.Errorf("%w: _security of a database that exists", couch.ErrUnavailable)
		}
	}
	if err != nil {
		return err
	}
	// A blank node that joins a cluster resets _security, marker included; that
	// cannot be told from another database, so a person has to look.
	if !have.Marked(generation) {
		return fmt.Errorf("%w: its marker is another or absent", ErrForeign)
	}
	want := couch.OpenTo(r.Role(), generation)
	if reflect.DeepEqual(have, want) {
		return nil
	}
	return ro.couch.PutSecurity(ctx, name, want)
}
