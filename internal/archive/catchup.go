package archive

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
)

// Position is how far a database is archived.
type Position struct {
	// SourceID names the database in this incarnation.
	SourceID int64
	// Since is the sequence after which nothing was pending.
	Since couch.Seq
	// Info is what CouchDB said of the database just before.
	Info couch.Info
}

// maxPasses bounds how often the feed is read anew because the database was
// written meanwhile.
const maxPasses = 10

// CatchUp archives everything new of a day database, to the end: nothing was
// pending after the position that it returns. The caller holds the lease
// LeaseName(day.Name). A crash at any point leaves whole batches with their
// checkpoint; the next call continues there.
//
// ErrIncarnation when the database is not the ledger's, ErrMoving when it is
// written faster than it is archived.
func (a *Archiver) CatchUp(ctx context.Context, day daydb.DayDB, lease fence.Lease) (Position, error) {
	pos, _, err := a.catchUpDay(ctx, day, lease)
	return pos, err
}

func (a *Archiver) catchUpDay(ctx context.Context, day daydb.DayDB, lease fence.Lease) (Position, tally, error) {
	info, err := a.checkIncarnation(ctx, day)
	if err != nil {
		return Position{}, tally{}, fmt.Errorf("archive %s: %w", day.Name, err)
	}
	s, err := a.openSource(ctx, lease, identityOf(day), info.PurgeSeq, nil)
	if err != nil {
		return Position{}, tally{}, fmt.Errorf("archive %s: %w", day.Name, err)
	}
	w := a.newWriter(s, lease)
	pos, err := w.catchUp(ctx, info.InstanceStartTime, dayClassifier(day))
	if err != nil {
		return Position{}, w.tally, fmt.Errorf("archive %s: %w", day.Name, err)
	}
	return pos, w.tally, nil
}

// checkIncarnation fails with ErrIncarnation unless the database under the name
// is the one that the ledger knows.
func (a *Archiver) checkIncarnation(ctx context.Context, day daydb.DayDB) (couch.Info, error) {
	info, err := a.couch.Info(ctx, day.Name)
	if errors.Is(err, couch.ErrNotFound) {
		return couch.Info{}, fmt.Errorf("the database is gone, `rollingd explain %s` says more: %w", day.Name, err)
	}
	if err != nil {
		return couch.Info{}, err
	}
	if day.InstanceStartTime != nil && *day.InstanceStartTime != info.InstanceStartTime {
		return couch.Info{}, fmt.Errorf("%w: created at %s instead of %s", ErrIncarnation, info.InstanceStartTime, *day.InstanceStartTime)
	}
	security, err := a.couch.Security(ctx, day.Name)
	if err != nil {
		return couch.Info{}, err
	}
	if !security.Marked(day.Generation) {
		return couch.Info{}, fmt.Errorf("%w: its marker is not %s", ErrIncarnation, day.Generation)
	}
	return info, nil
}

// catchUp reads the feed until nothing is pending.
func (w *writer) catchUp(ctx context.Context, born string, classify classifier) (Position, error) {
	if w.source.hasRejects {
		if err := w.retryRejects(ctx, classify); err != nil {
			return Position{}, err
		}
	}
	for range maxPasses {
		info, err := w.couch.Info(ctx, w.source.db)
		if err != nil {
			return Position{}, err
		}
		if info.InstanceStartTime != born {
			return Position{}, fmt.Errorf("%w: created at %s instead of %s", ErrIncarnation, info.InstanceStartTime, born)
		}
		if info.PurgeSeq != w.source.purges {
			if err := w.rewind(ctx, w.lease, w.source, info.PurgeSeq, w.source.tenants); err != nil {
				return Position{}, err
			}
			w.direct = false
		}
		pending, err := w.couch.Pending(ctx, w.source.db, w.source.since)
		if err != nil {
			return Position{}, err
		}
		if pending == 0 {
			return Position{SourceID: w.source.id, Since: w.source.since, Info: info}, nil
		}
		if err := w.pass(ctx, classify); err != nil {
			return Position{}, err
		}
	}
	return Position{}, ErrMoving
}
