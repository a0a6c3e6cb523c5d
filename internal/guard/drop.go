package guard

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

var (
	// ErrChanged is returned when a database differs from what was proven.
	ErrChanged = errors.New("the database has changed since the proof")
	// ErrOutcomeUnknown is returned when nobody can say whether a DELETE has
	// worked. The day stays DROPPABLE, and the next run looks.
	ErrOutcomeUnknown = errors.New("the outcome of the DELETE is not known; the next run looks and goes on from there")
	// errStillThere: the DELETE did not work, and that is known.
	errStillThere = errors.New("the database is still there after the DELETE")
	// errTooOld: too much time has passed between the decision and the DELETE,
	// which was not sent.
	errTooOld = errors.New("the decision has grown old")
)

const (
	// deleteTries bounds how often one run goes back to the final check after a
	// DELETE that is known not to have worked, or was not sent in time.
	deleteTries = 3
	// deleteWithin is that of every guard but a test's.
	deleteWithin = 2 * time.Second
	// goneWithin and gonePause: a DELETE that was accepted is seen as a 404 soon
	// afterwards.
	goneWithin = 30 * time.Second
	gonePause  = 50 * time.Millisecond
)

// The lines in the history that precede every DELETE, and that follow one which
// did not work.
const (
	intend  daydb.Event = "intend_drop"
	callOff daydb.Event = "call_off_drop"
)

// drop takes a sealed day that an evaluation has just found eligible:
//
//  1. it must have settled: requests that were in flight at the seal have ended
//  2. the seal must be whole; a broken one is put again and settles anew
//  3. the archive is at the end of the feed: the evaluation has seen to that
//  4. the proof: every document and attachment read again and compared with
//     what Postgres holds; it is stored
//  5. and 6. destroy
//
// A crash anywhere before 6 changes nothing but the stored proof.
func (w work) drop(ctx context.Context, d daydb.DayDB, pos archive.Position) error {
	settled, err := w.settled(ctx, w.guard.Pool, d)
	if err != nil {
		return at("settle", err)
	}
	if !settled {
		w.run.Report.Add("settling", 1)
		return nil
	}
	err = w.sealed(ctx, d)
	if errors.Is(err, ErrSealBroken) {
		return at("verify the seal", errors.Join(err, w.sealAgain(ctx, d)))
	}
	if err != nil {
		return at("verify the seal", err)
	}
	proof, err := w.guard.Archive.Prove(ctx, d, pos)
	if err != nil {
		return at("prove", err)
	}
	state, err := json.Marshal(proof.State)
	if err != nil {
		return at("prove", err)
	}
	err = w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		return daydb.Update(ctx, tx, d, w.mark.Token, `
			proof_sha256 = @sha256,
			proof_documents = @documents,
			proof_at = now(),
			proof_state = @proof_state`,
			pgx.NamedArgs{"sha256": proof.SHA256[:], "documents": proof.Documents, "proof_state": state})
	})
	if err != nil {
		return at("store the proof", err)
	}
	for range deleteTries {
		if err = w.destroy(ctx, d.Name); !errors.Is(err, errStillThere) && !errors.Is(err, errTooOld) {
			break
		}
	}
	return at("drop", err)
}

// callOff takes back the intention of a drop that did not happen: the database
// is there. If it is deleted from now on, it was not by that drop.
func (w work) callOff(ctx context.Context, d daydb.DayDB) (daydb.DayDB, error) {
	err := w.tx(ctx, d, func(tx pgx.Tx, now daydb.DayDB) error {
		if err := daydb.Update(ctx, tx, now, w.mark.Token, `drop_intended_at = null`, nil); err != nil {
			return err
		}
		if err := daydb.Note(ctx, tx, now, callOff, w.mark, map[string]any{"intendedAt": now.DropIntendedAt}); err != nil {
			return err
		}
		var err error
		d, err = daydb.Load(ctx, tx, d.Name)
		return err
	})
	return d, err
}

// settled reports whether the seal is old enough, by Postgres' clock.
func (w work) settled(ctx context.Context, db daydb.Querier, d daydb.DayDB) (bool, error) {
	var settled bool
	err := db.QueryRow(ctx, `
		select coalesce(sealed_at + $2 <= now(), false)
		from day_databases
		where id = $1`, d.ID, w.guard.Settle).Scan(&settled)
	return settled, err
}

// sealAgain repairs a seal that somebody has broken. Writes may have begun
// meanwhile, so the time to settle starts again.
func (w work) sealAgain(ctx context.Context, d daydb.DayDB) error {
	if err := w.closeToWriters(ctx, d); err != nil {
		return err
	}
	return w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		if err := daydb.Update(ctx, tx, d, w.mark.Token, `sealed_at = now()`, nil); err != nil {
			return err
		}
		return daydb.Note(ctx, tx, d, daydb.Seal, w.mark, map[string]string{"because": "the seal was found broken and was put again"})
	})
}

// destroy is the only function of the product that deletes a day database, and
// it checks everything itself:
//
//  1. the name is a day's name, and the ledger's row is DROPPABLE with a proof
//  2. CouchDB: the marker is the row's, the seal is whole, and creation time,
//     counts and purges are those of the proof, with nothing pending
//  3. one transaction: the lease, flags, hold, state and the time to settle are
//     read again, and the intention is committed with its line in the history
//  4. one DELETE, unless the decision has grown old: then errTooOld, and the
//     caller starts from 1 again
//  5. look: gone -> DROPPED. Still there -> errStillThere, and the caller starts
//     from 1 again. Nobody knows -> ErrOutcomeUnknown
//
// A crash after 3 leaves the intention. The next run sees a database that is
// there and starts again, or one that is gone and records that (see absent).
func (w work) destroy(ctx context.Context, name string) error {
	if _, err := daydb.ParseName(w.guard.Env, name); err != nil {
		return err
	}
	d, err := daydb.Load(ctx, w.guard.Pool, name)
	if err != nil {
		return err
	}
	if d.State != daydb.Droppable || d.Proof == nil {
		return fmt.Errorf("%s is %s: %w", name, d.State, daydb.ErrStale)
	}
	if err := w.asProven(ctx, d); err != nil {
		return err
	}
	start := time.Now()
	err = w.tx(ctx, d, func(tx pgx.Tx, now daydb.DayDB) error {
		if err := flushed(ctx, tx); err != nil {
			return err
		}
		if now.Proof == nil || !now.Proof.At.Equal(d.Proof.At) || now.Generation != d.Generation {
			return fmt.Errorf("%s: the proof was replaced: %w", name, daydb.ErrStale)
		}
		if err := w.permitted(ctx, tx, now); err != nil {
			return err
		}
		settled, err := w.settled(ctx, tx, now)
		if err != nil {
			return err
		}
		if !settled {
			return fmt.Errorf("%w: it has not settled since its seal", ErrNotPermitted)
		}
		if err := daydb.Update(ctx, tx, now, w.mark.Token, `drop_intended_at = now()`, nil); err != nil {
			return err
		}
		return daydb.Note(ctx, tx, now, intend, w.mark, map[string]any{
			"proof":     hex.EncodeToString(now.Proof.SHA256),
			"documents": now.Proof.Documents,
		})
	})
	if err != nil {
		return err
	}
	if elapsed := time.Since(start); elapsed > w.guard.deleteWithin {
		return fmt.Errorf("%w: %w: %s passed before the DELETE", ErrNotPermitted, errTooOld, elapsed.Round(time.Millisecond))
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	answer := w.guard.Couch.Delete(ctx, name)
	return w.settleDelete(ctx, d, answer)
}

// flushed makes the commit of tx wait until it is on disk, and with it, as the
// log is written in order, all that was archived before. A server that runs with
// synchronous_commit off would lose its last moments in a crash; the DELETE that
// follows must not be among what it has forgotten.
func flushed(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		select set_config('synchronous_commit', 'on', true)
		where current_setting('synchronous_commit') = 'off'`)
	if err != nil {
		return fmt.Errorf("synchronous commit: %w", err)
	}
	return nil
}

// asProven compares the database with what its proof says.
func (w work) asProven(ctx context.Context, d daydb.DayDB) error {
	var proven archive.State
	if err := json.Unmarshal(d.Proof.State, &proven); err != nil {
		return fmt.Errorf("proof of %s: %w", d.Name, err)
	}
	if err := w.sealed(ctx, d); err != nil {
		return err
	}
	info, err := w.guard.Couch.Info(ctx, d.Name)
	if err != nil {
		return err
	}
	if now := seen(d, info, proven.Since); now != proven || d.InstanceStartTime == nil || info.InstanceStartTime != *d.InstanceStartTime {
		return fmt.Errorf("%w: %d live, %d deleted, %d purges now; %d, %d, %d then", ErrChanged,
			now.DocCount, now.DocDelCount, now.PurgeSeq, proven.DocCount, proven.DocDelCount, proven.PurgeSeq)
	}
	pending, err := w.guard.Couch.Pending(ctx, d.Name, proven.Since)
	if err != nil {
		return err
	}
	if pending != 0 {
		return fmt.Errorf("%w: %d changes are pending", ErrChanged, pending)
	}
	return nil
}

// settleDelete finds out what a DELETE has done, by looking. The answer itself
// decides only whether to wait for the 404: 200, 202 and 404 promise one.
func (w work) settleDelete(ctx context.Context, d daydb.DayDB, answer error) error {
	promised := answer == nil || errors.Is(answer, couch.ErrNotFound)
	for start := time.Now(); ; {
		gone, err := w.isGone(ctx, d.Name)
		switch {
		case err == nil && gone:
			return w.dropped(ctx, d, "deleted, and seen to be gone")
		case err == nil && !promised:
			return fmt.Errorf("%w: %w", errStillThere, answer)
		case time.Since(start) > goneWithin:
			return errors.Join(ErrOutcomeUnknown, answer, err)
		}
		timer := time.NewTimer(gonePause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ErrOutcomeUnknown, answer, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// dropped records that a database is gone.
func (w work) dropped(ctx context.Context, d daydb.DayDB, how string) error {
	return w.move(ctx, d, daydb.Drop, map[string]any{"how": how})
}
