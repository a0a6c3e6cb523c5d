package guard

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
)

// ErrAbsent is returned for a day database that CouchDB does not have although
// nothing of ours has dropped it.
var ErrAbsent = errors.New("the database is gone, and was not dropped by rollingd: look for who deleted it; " +
	"with enable_database_recovery its files are still in CouchDB's data folder; what was archived is safe in Postgres")

// absent reports whether the physical database is gone. If the drop had been
// committed, the day becomes DROPPED: the deletion was ours. If not, that is
// recorded and an error.
func (w work) absent(ctx context.Context, d daydb.DayDB, today daydb.Day) (bool, error) {
	gone, err := w.isGone(ctx, d.Name)
	if err != nil || !gone {
		return false, at("look for the database", err)
	}
	if d.State == daydb.Droppable && d.DropIntendedAt != nil {
		return true, at("drop", w.dropped(ctx, d, "found gone after a drop that was committed"))
	}
	return true, w.refuse(ctx, d, today, CodeAbsent, ErrAbsent)
}

// isGone concludes absence only from a 404 of a server that is healthy.
func (w work) isGone(ctx context.Context, name string) (bool, error) {
	_, err := w.guard.Couch.Info(ctx, name)
	if !errors.Is(err, couch.ErrNotFound) {
		return false, err
	}
	if err := w.guard.Couch.Ping(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// refuse records that lock 2 cannot even be evaluated, and returns why.
func (w work) refuse(ctx context.Context, d daydb.DayDB, today daydb.Day, code string, why error) error {
	e := Evaluation{
		AsOf:  today,
		Lock1: lockOf(nil),
		Lock2: Lock2{Lock: lockOf([]Reason{{Code: code, Count: 1, DocIDs: []string{}}})},
		Lock3: evaluateAge(d.BusinessDay, today, w.guard.TTLDays),
	}
	last, err := latest(ctx, w.guard.Pool, d.ID)
	if err != nil {
		return errors.Join(why, err)
	}
	if last != nil {
		e.Lock1, e.Documents, e.Archived, e.Seen = last.Lock1, last.Documents, last.Archived, last.Seen
	}
	err = w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		_, err := record(ctx, tx, d, e, w.mark)
		return err
	})
	return at("evaluate", errors.Join(why, err))
}

// evaluate archives what is new, judges the three locks and stores what it saw.
func (w work) evaluate(ctx context.Context, d daydb.DayDB, today daydb.Day) (Evaluation, archive.Position, error) {
	g := w.guard
	pos, err := g.Archive.CatchUp(ctx, d, w.lease)
	switch {
	case errors.Is(err, archive.ErrIncarnation):
		return Evaluation{}, pos, w.refuse(ctx, d, today, CodeIncarnation, err)
	case errors.Is(err, archive.ErrPurged):
		return Evaluation{}, pos, w.refuse(ctx, d, today, CodePurged, err)
	case err != nil:
		return Evaluation{}, pos, at("archive what is new", err)
	}
	blockers, err := g.Archive.Blockers(ctx, pos.SourceID)
	if err != nil {
		return Evaluation{}, pos, at("lock 1", err)
	}
	rec, err := g.Archive.Reconcile(ctx, d, pos)
	if err != nil {
		return Evaluation{}, pos, at("lock 2", err)
	}
	e := Evaluation{
		AsOf:      today,
		Lock1:     lockOf(reasonsOfBlockers(blockers)),
		Lock2:     reconciled(rec),
		Lock3:     evaluateAge(d.BusinessDay, today, g.TTLDays),
		Documents: rec.Documents + rec.Deleted,
		Archived:  rec.Archived,
		Seen:      seen(d, rec.Info, rec.Since),
	}
	err = w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		f, err := flags.Load(ctx, tx, d.CompanyID)
		if err != nil {
			return err
		}
		around, err := g.elsewhereOf(ctx, tx, d.ID)
		if err != nil {
			return err
		}
		e, err = record(ctx, tx, d, g.reuse(e, d, f, today, around[d.ID]), w.mark)
		return err
	})
	if err != nil {
		return Evaluation{}, pos, at("store the evaluation", err)
	}
	return e, pos, at("archive what is new", w.reread(ctx, d, pos, rec))
}

// reread has a database read from the start next time whose archive lacks
// documents that were not pending. The evaluation stays as it is: one reading a
// night, and another look after it.
func (w work) reread(ctx context.Context, d daydb.DayDB, pos archive.Position, rec archive.Reconciliation) error {
	if rec.Unread == 0 || rec.Pending > 0 {
		return nil
	}
	w.run.Report.Add("reread", 1)
	w.guard.Log.Warn("the archive lacks documents that its database does not show as new; it is read from the start",
		"day_db", d.Name, "documents", rec.Unread, "token", w.lease.Token, "run_id", w.run.ID)
	return w.guard.Archive.Rewind(ctx, d, pos, w.lease)
}

func reasonsOfBlockers(blockers []archive.Blocker) []Reason {
	var reasons []Reason
	for _, b := range blockers {
		reasons = append(reasons, Reason{Code: b.Code, Count: b.Count, DocIDs: b.IDs})
	}
	return reasons
}

// reconciled is lock 2.
func reconciled(rec archive.Reconciliation) Lock2 {
	var reasons []Reason
	for _, c := range []struct {
		code  string
		delta archive.Delta
	}{
		{CodeMissing, rec.Missing},
		{CodeExtra, rec.Extra},
		{CodeChanged, rec.Changed},
		{CodeAttachments, rec.Attachments},
		{CodeRejected, rec.Rejected},
		{CodePending, archive.Delta{Count: rec.Pending, IDs: []string{}}},
		// A day database begins without purges. One is red for good, since nobody
		// can tell any more what was purged before it was archived.
		{CodePurged, archive.Delta{Count: rec.Info.PurgeSeq, IDs: []string{}}},
	} {
		if c.delta.Count > 0 {
			reasons = append(reasons, Reason{Code: c.code, Count: c.delta.Count, DocIDs: c.delta.IDs})
		}
	}
	return Lock2{
		Lock:  lockOf(reasons),
		Delta: Delta{Missing: rec.Missing.Count, Extra: rec.Extra.Count, Changed: rec.Changed.Count},
	}
}

// moveEvidence is what the history keeps of an evaluation that led to a move.
func (e Evaluation) moveEvidence() map[string]any {
	return map[string]any{
		"evaluation": e.ID,
		"asOf":       e.AsOf,
		"documents":  e.Documents,
		"archived":   e.Archived,
		"lock1":      e.Lock1.Green,
		"lock2":      e.Lock2.Green,
		"lock3":      e.Lock3.Green,
		"seen":       fmt.Sprintf("%d live, %d deleted, %d purges", e.Seen.DocCount, e.Seen.DocDelCount, e.Seen.PurgeSeq),
	}
}
