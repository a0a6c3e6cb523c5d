package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// Restored is a database that was rebuilt from the archive.
type Restored struct {
	DBName string
	// Documents are those in it, deleted ones among them.
	Documents int64
}

// Restore rebuilds a day from the archive, usually a dropped one, into a
// database of its own: the same ids and revisions, losing leaves and attachments
// included, and every byte the same when it is read back. Its name is no day's,
// so nothing ever drops it, and only administrators can open it.
//
//  1. Enter the name. A crash after this leaves it restoring, and the next call
//     for the same day continues with it.
//  2. Create the database and seal it, before any document is in it.
//  3. Insert the revisions as they are. Repeating that changes nothing.
//  4. Read everything back and compare it with what Postgres hashes.
//  5. Note that it is restored.
//
// ErrNotArchived for a day without archive, a fence.HeldError while the same day
// is being restored, a NotProvenError when what is read back differs.
func (a *Archiver) Restore(ctx context.Context, day daydb.DayDB, reason, actor string) (Restored, error) {
	var restored Restored
	err := a.leases.Hold(ctx, "restore/"+day.Name, func(ctx context.Context, lease fence.Lease) error {
		var err error
		restored, err = a.restore(ctx, day, lease, reason, actor)
		return err
	})
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", day.Name, err)
	}
	return restored, nil
}

func (a *Archiver) restore(ctx context.Context, day daydb.DayDB, lease fence.Lease, reason, actor string) (Restored, error) {
	s, err := findSource(ctx, a.pool, identityOf(day))
	if err != nil {
		return Restored{}, err
	}
	if s == nil {
		return Restored{}, ErrNotArchived
	}
	id, name, err := a.enterRestored(ctx, day, lease, reason, actor)
	if err != nil {
		return Restored{}, err
	}
	// The marker follows from what is known, so that a second attempt knows it.
	marker := uuid.NewSHA1(day.Generation, []byte(name))
	if err := a.secureRestored(ctx, name, marker); err != nil {
		return Restored{}, err
	}
	if err := a.insertAll(ctx, name, s.id, day.BusinessDay); err != nil {
		return Restored{}, err
	}
	documents, err := a.verifyRestored(ctx, name, s.id, day.BusinessDay)
	state := "restored"
	if errors.Is(err, ErrNotProven) {
		state = "failed"
	} else if err != nil {
		return Restored{}, err
	}
	finish := a.fenced(ctx, lease, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			update restored_databases set
			  state = $2,
			  documents = $3,
			  finished_at = now()
			where id = $1`, id, state, documents)
		return err
	})
	if err := errors.Join(err, finish); err != nil {
		return Restored{}, err
	}
	return Restored{DBName: name, Documents: documents}, nil
}

// enterRestored returns the restore of this day that did not come to its end, or
// enters a new one under the next number.
func (a *Archiver) enterRestored(ctx context.Context, day daydb.DayDB, lease fence.Lease, reason, actor string) (id int64, name string, err error) {
	err = a.fenced(ctx, lease, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			select id, db_name
			from restored_databases
			where day_database_id = $1 and state = 'restoring'`, day.ID).Scan(&id, &name)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return tx.QueryRow(ctx, `
			insert into restored_databases (day_database_id, db_name, reason, actor)
			select @day, @prefix::text || (count(*) + 1)::text, @reason, @actor
			from restored_databases
			where day_database_id = @day
			returning id, db_name`,
			pgx.NamedArgs{
				"day":    day.ID,
				"prefix": fmt.Sprintf("%s_%s_%s_restored_%s_", a.env, day.CompanyID, day.RestaurantID, day.BusinessDay),
				"reason": reason,
				"actor":  actor,
			}).Scan(&id, &name)
	})
	if err != nil {
		return 0, "", fmt.Errorf("enter: %w", err)
	}
	return id, name, nil
}

// secureRestored makes sure that the database is there, is ours, and is open to
// administrators alone.
func (a *Archiver) secureRestored(ctx context.Context, name string, marker uuid.UUID) error {
	created, err := a.couch.Create(ctx, name)
	if err != nil {
		return err
	}
	if !created {
		security, err := a.couch.Security(ctx, name)
		if err != nil {
			return err
		}
		if security.Marked(marker) {
			return nil
		}
		// A crash between creation and security leaves it empty and without marker.
		info, err := a.couch.Info(ctx, name)
		if err != nil {
			return err
		}
		if security.Marker != nil || info.DocCount+info.DocDelCount > 0 {
			return fmt.Errorf("%s: %w", name, ErrIncarnation)
		}
	}
	return a.couch.PutSecurity(ctx, name, couch.Sealed(marker))
}

// verifyRestored reads everything back and compares it with the archive.
func (a *Archiver) verifyRestored(ctx context.Context, name string, sourceID int64, day daydb.Day) (documents int64, err error) {
	l, err := a.openListing(ctx)
	if err != nil {
		return 0, err
	}
	defer l.close(ctx)
	l.alike = func(ctx context.Context, n line, body []byte) ([]byte, error) {
		return a.archivedIfAlike(ctx, sourceID, day, n, body)
	}
	if err := a.fill(ctx, l, name, true); err != nil {
		return 0, err
	}
	err = comparing(ctx, l.conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `select count(distinct id_hash) from pg_temp.couch_listing where kind = 0`).Scan(&documents)
		if err != nil {
			return fmt.Errorf("count: %w", pg.Translate(err))
		}
		if err := hashArchive(ctx, tx, sourceID, day); err != nil {
			return err
		}
		return compareBytes(ctx, tx)
	})
	return documents, err
}

// archivedIfAlike returns the archived body of a revision when the one that was
// read back differs from it only in digest and length of its attachments. Those
// are of the compressed bytes, which depend on who compressed them; the
// attachments themselves are compared byte by byte.
func (a *Archiver) archivedIfAlike(ctx context.Context, sourceID int64, day daydb.Day, n line, body []byte) ([]byte, error) {
	var archived []byte
	err := a.pool.QueryRow(ctx, `
		select case when deleted then tombstone else body end
		from archived_docs
		where source_id = @source and business_day = @day and id_hash = @hash and convert_to(rev, 'UTF8') = @rev
		union all
		select body
		from archived_leaves
		where source_id = @source and id_hash = @hash and convert_to(rev, 'UTF8') = @rev`,
		pgx.NamedArgs{"source": sourceID, "day": day, "hash": n.hash[:], "rev": []byte(n.rev)}).Scan(&archived)
	if errors.Is(err, pgx.ErrNoRows) {
		return body, nil
	}
	if err != nil {
		return nil, fmt.Errorf("archived revision: %w", pg.Translate(err))
	}
	if bytes.Equal(withoutStorage(archived), withoutStorage(body)) {
		return archived, nil
	}
	return body, nil
}

// withoutStorage returns a body whose stubs say nothing of how CouchDB stores them.
func withoutStorage(body []byte) []byte {
	all := gjson.GetBytes(body, "_attachments")
	if all.Index == 0 {
		return body
	}
	out := bytes.Clone(body[:all.Index])
	all.ForEach(func(name, s gjson.Result) bool {
		out = append(out, name.Raw+s.Get("content_type").Raw+s.Get("revpos").Raw...)
		return true
	})
	return append(out, body[all.Index+len(all.Raw):]...)
}
