package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// look reports whether a day is to be evaluated.
//
// A day that has not changed since its last green evaluation, and for which
// nothing is due, costs two small requests and no lease.
func (g *Guard) look(
	ctx context.Context, r run.Run, d daydb.DayDB, today daydb.Day, x elsewhere, quiet *confirmations,
) (due bool, err error) {
	last, err := latest(ctx, g.Pool, d.ID)
	if err != nil {
		return false, err
	}
	unchanged, err := g.unchanged(ctx, d, last)
	if err != nil {
		return false, at("compare with the last evaluation", err)
	}
	f, err := flags.Load(ctx, g.Pool, d.CompanyID)
	if err != nil {
		return false, err
	}
	switch {
	case r.DryRun:
		if !unchanged {
			r.Report.Add("changed_since_last_evaluation", 1)
		}
		if last != nil {
			g.foresee(r, d, g.reuse(*last, d, f, today, x))
		}
		return false, nil
	case unchanged && !g.due(d, g.reuse(*last, d, f, today, x)):
		quiet.add(last.ID)
		r.Report.Add("unchanged", 1)
		return false, nil
	}
	return true, nil
}

// unchanged reports whether CouchDB says of the database what it said at the
// last evaluation. Only green evaluations are reused: a red lock 2 is looked at
// again, since Postgres may take tonight what it would not take yesterday.
func (g *Guard) unchanged(ctx context.Context, d daydb.DayDB, last *Evaluation) (bool, error) {
	if last == nil || !last.Lock1.Green || !last.Lock2.Green {
		return false, nil
	}
	info, err := g.Couch.Info(ctx, d.Name)
	if errors.Is(err, couch.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if seen(d, info, last.Seen.Since) != last.Seen {
		return false, nil
	}
	pending, err := g.Couch.Pending(ctx, d.Name, last.Seen.Since)
	return pending == 0, err
}

// reuse carries an evaluation over to today: the age, the flags, the hold and
// what is elsewhere are new, the documents are not.
func (g *Guard) reuse(e Evaluation, d daydb.DayDB, f flags.Flags, today daydb.Day, x elsewhere) Evaluation {
	e.AsOf = today
	e.Lock1 = e.Lock1.with(x)
	e.Lock3 = evaluateAge(d.BusinessDay, today, g.TTLDays)
	e.Eligible = ComputeEligibility(Eligibility{
		RollingDb:     f.RollingDb,
		RollingDbDrop: f.RollingDbDrop,
		Held:          d.Hold != nil,
		QueueOpen:     x.undelivered.QueueOpen,
		Lock1:         e.Lock1.Green,
		Lock2:         e.Lock2.Green,
		Lock3:         e.Lock3.Green,
	})
	return e
}

// due reports whether an unchanged day has a step to take.
func (g *Guard) due(d daydb.DayDB, e Evaluation) bool {
	switch {
	case d.State == daydb.Draining, !e.Lock1.Green:
		return true
	case d.State == daydb.Archived:
		return e.Eligible || d.SealStartedAt != nil
	default:
		return e.Eligible || d.DropIntendedAt != nil
	}
}

// foresee reports the step that a dry run would have taken.
func (g *Guard) foresee(r run.Run, d daydb.DayDB, e Evaluation) {
	var event daydb.Event
	switch {
	case d.State == daydb.Draining && e.Lock1.Green && e.Lock2.Green:
		event = daydb.Archive
	case d.State != daydb.Draining && !e.Lock1.Green:
		event = daydb.Reopen
	case d.State == daydb.Archived && e.Eligible:
		event = daydb.Seal
	case d.State == daydb.Droppable && e.Eligible:
		event = daydb.Drop
	default:
		return
	}
	to, err := daydb.Next(d.State, event)
	if err != nil {
		return
	}
	r.Report.Add("would_"+string(event), 1)
	r.Report.Moved(run.Change{DBName: d.Name, From: d.State, To: to, Event: event})
}

// step evaluates a day under its lease and does what follows from it:
//
//	DRAINING   locks 1 and 2 green              -> archive
//	ARCHIVED   lock 1 red                       -> reopen
//	ARCHIVED   eligible                         -> seal
//	ARCHIVED   no longer eligible, seal begun   -> take the seal back
//	DROPPABLE  lock 1 red                       -> reopen
//	DROPPABLE  eligible                         -> drop, if it has settled
//
// Each line can be repeated from its start, which is also how a crash in the
// middle is repaired.
func (g *Guard) step(ctx context.Context, r run.Run, name string, today daydb.Day, lease fence.Lease) error {
	d, err := daydb.Load(ctx, g.Pool, name)
	if err != nil {
		return err
	}
	if d.State != daydb.Draining && d.State != daydb.Archived && d.State != daydb.Droppable {
		return nil // It has moved while we waited for the lease.
	}
	w := work{guard: g, run: r, lease: lease, mark: r.Mark(lease)}
	if gone, err := w.absent(ctx, d, today); gone || err != nil {
		return err
	}
	if d.DropIntendedAt != nil {
		if d, err = w.callOff(ctx, d); err != nil {
			return at("drop", err)
		}
	}
	if d.State != daydb.Droppable {
		leftOver, err := w.leftOver(ctx, d)
		if err == nil && leftOver {
			d, err = w.unseal(ctx, d)
		}
		if err != nil {
			return at("unseal", err)
		}
	}
	e, pos, err := w.evaluate(ctx, d, today)
	if err != nil {
		return err
	}
	switch {
	case d.State == daydb.Draining && e.Lock1.Green && e.Lock2.Green:
		return at("archive", w.move(ctx, d, daydb.Archive, e.moveEvidence()))
	case d.State == daydb.Draining:
		r.Report.Add("blocked", 1)
		return nil
	case !e.Lock1.Green:
		return at("reopen", w.reopen(ctx, d, e))
	case d.State == daydb.Archived && e.Eligible:
		return at("seal", w.seal(ctx, d, e))
	case d.State == daydb.Archived && d.SealStartedAt != nil:
		_, err := w.unseal(ctx, d)
		return at("unseal", err)
	case d.State == daydb.Droppable && e.Eligible:
		return w.drop(ctx, d, pos)
	case !e.Lock2.Green:
		r.Report.Add("blocked", 1)
	}
	return nil
}

// work is what the steps on one day share.
type work struct {
	guard *Guard
	run   run.Run
	lease fence.Lease
	mark  daydb.Mark
}

// tx runs fn in a transaction that has checked the lease and locked the day.
// ErrStale if the day is no longer in the state that d holds.
func (w work) tx(ctx context.Context, d daydb.DayDB, fn func(tx pgx.Tx, d daydb.DayDB) error) error {
	return pg.WithTx(ctx, w.guard.Pool, func(tx pgx.Tx) error {
		if err := w.lease.Check(ctx, tx); err != nil {
			return err
		}
		now, err := daydb.LoadForUpdate(ctx, tx, d.Name)
		if err != nil {
			return err
		}
		if now.State != d.State {
			return fmt.Errorf("%s is %s, not %s: %w", d.Name, now.State, d.State, daydb.ErrStale)
		}
		return fn(tx, now)
	})
}

// move fires an event that needs nothing else.
func (w work) move(ctx context.Context, d daydb.DayDB, event daydb.Event, evidence any) error {
	err := w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		_, err := daydb.Move(ctx, tx, d, event, w.mark, evidence)
		return err
	})
	if err != nil {
		return err
	}
	w.moved(d, event)
	return nil
}

func (w work) moved(d daydb.DayDB, event daydb.Event) {
	to, err := daydb.Next(d.State, event)
	if err != nil {
		return
	}
	w.run.Report.Add(strings.ToLower(string(to)), 1)
	w.run.Report.Moved(run.Change{DBName: d.Name, From: d.State, To: to, Event: event})
	w.guard.Log.Info("day database moved",
		"day_db", d.Name, "from", d.State, "to", to, "token", w.lease.Token, "run_id", w.run.ID)
}
