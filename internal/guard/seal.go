package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
)

// sealDesign is the design document that refuses every write of a sealed day,
// also those whose request had begun before the seal.
const (
	sealDesign   = "_design/rollingd_seal"
	sealValidate = `function (newDoc, oldDoc, userCtx, secObj) { throw({forbidden: "this business day is sealed"}); }`
)

var (
	// ErrNotPermitted is returned when a hold, a flag or the row's state forbids
	// a destructive step at the moment of taking it.
	ErrNotPermitted = errors.New("not permitted any more")
	// ErrSealBroken is returned when a database that should be sealed is not.
	ErrSealBroken = errors.New("the seal is broken")
)

// seal closes a day for good and moves it to DROPPABLE:
//
//  1. note in the row that the seal has begun, after reading flags and hold
//  2. _security: members of a role that nobody has, marker kept; read back
//  3. the design document that refuses writes; read back
//  4. flags and hold again, and the move
//
// The order of 2 and 3 matters: a client that a design document refuses while
// _security still lets it in skips the document for ever, in silence.
//
// A crash before 4 leaves an ARCHIVED day whose seal has begun. The next run
// seals again from 1, or takes the seal back if the day is no longer eligible.
func (w work) seal(ctx context.Context, d daydb.DayDB, e Evaluation) error {
	err := w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		if err := w.permitted(ctx, tx, d); err != nil {
			return err
		}
		return daydb.Update(ctx, tx, d, w.mark.Token, `seal_started_at = coalesce(seal_started_at, now())`, nil)
	})
	if err != nil {
		return err
	}
	if err := w.closeToWriters(ctx, d); err != nil {
		return err
	}
	err = w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		if err := w.permitted(ctx, tx, d); err != nil {
			return err
		}
		_, err := daydb.Move(ctx, tx, d, daydb.Seal, w.mark, e.moveEvidence())
		return err
	})
	if errors.Is(err, ErrNotPermitted) {
		_, undo := w.unseal(ctx, d)
		return errors.Join(err, undo)
	}
	if err != nil {
		return err
	}
	w.moved(d, daydb.Seal)
	return nil
}

// closeToWriters puts both halves of the seal and reads both back.
func (w work) closeToWriters(ctx context.Context, d daydb.DayDB) error {
	c := w.guard.Couch
	if err := w.markedOurs(ctx, d); err != nil {
		return err
	}
	if err := w.notOvertaken(ctx); err != nil {
		return err
	}
	if err := c.PutSecurity(ctx, d.Name, couch.Sealed(d.Generation)); err != nil {
		return fmt.Errorf("close _security: %w", err)
	}
	if err := w.notOvertaken(ctx); err != nil {
		return err
	}
	if err := c.PutDesign(ctx, d.Name, sealDesign, sealValidate); err != nil {
		return fmt.Errorf("put the sealing design document: %w", err)
	}
	return w.sealed(ctx, d)
}

// sealed verifies both halves of the seal, and that the database is the one of
// the row.
func (w work) sealed(ctx context.Context, d daydb.DayDB) error {
	if err := w.markedOurs(ctx, d); err != nil {
		return err
	}
	security, err := w.guard.Couch.Security(ctx, d.Name)
	if err != nil {
		return err
	}
	if !security.IsSealed() {
		return fmt.Errorf("%w: _security admits members %v", ErrSealBroken, security.Members.Roles)
	}
	raw, err := w.guard.Couch.Doc(ctx, d.Name, sealDesign, "")
	if errors.Is(err, couch.ErrNotFound) {
		return fmt.Errorf("%w: the design document is gone", ErrSealBroken)
	}
	if err != nil {
		return err
	}
	var design couch.DesignDoc
	if err := json.Unmarshal(raw, &design); err != nil || design.Validate != sealValidate {
		return fmt.Errorf("%w: the design document was changed", ErrSealBroken)
	}
	return nil
}

// ErrForeign is returned for a database under a day's name that does not carry
// the day's marker.
var ErrForeign = errors.New("the database under this name is not the one in the ledger")

func (w work) markedOurs(ctx context.Context, d daydb.DayDB) error {
	security, err := w.guard.Couch.Security(ctx, d.Name)
	if err != nil {
		return err
	}
	if !security.Marked(d.Generation) {
		return fmt.Errorf("%w: its marker differs", ErrForeign)
	}
	return nil
}

// notOvertaken checks the lease right before a write to CouchDB, which itself
// knows of no lease: a process that was suspended stops here. One that is
// suspended between this check and its request still writes; leftOver finds what
// it has left.
func (w work) notOvertaken(ctx context.Context) error {
	return pg.WithTx(ctx, w.guard.Pool, func(tx pgx.Tx) error { return w.lease.Check(ctx, tx) })
}

// leftOver reports whether a day that is not DROPPABLE carries a seal, or half
// of one, that is to be lifted: its reopening was committed and the seal not yet
// lifted, or a process that had been overtaken put it when the day was open
// again. The design document on its own is the worst of it: clients are let in,
// and skip for ever what it refuses.
func (w work) leftOver(ctx context.Context, d daydb.DayDB) (bool, error) {
	if d.SealStartedAt != nil {
		// An ARCHIVED day is in the middle of its seal.
		return d.State == daydb.Draining, nil
	}
	security, err := w.guard.Couch.Security(ctx, d.Name)
	if err != nil || !security.Marked(d.Generation) {
		return false, err // Another database is for the evaluation to report.
	}
	if slices.Contains(security.Members.Roles, couch.SealedRole) {
		return true, nil
	}
	_, err = w.guard.Couch.Doc(ctx, d.Name, sealDesign, "")
	if errors.Is(err, couch.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// unseal lifts a seal: the design document first, then _security, so that no
// client is let in while its writes would be refused one by one. It returns the
// row as it is afterwards.
func (w work) unseal(ctx context.Context, d daydb.DayDB) (daydb.DayDB, error) {
	c := w.guard.Couch
	if err := w.markedOurs(ctx, d); err != nil {
		return d, err
	}
	if err := w.notOvertaken(ctx); err != nil {
		return d, err
	}
	if err := c.DropDesign(ctx, d.Name, sealDesign); err != nil {
		return d, fmt.Errorf("remove the sealing design document: %w", err)
	}
	// CouchDB caches design documents, and was seen to apply one that had just been
	// deleted: whom _security admits by then would skip what that refuses. A crash
	// here leaves a seal that leftOver finds.
	timer := time.NewTimer(w.guard.UnsealPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return d, context.Cause(ctx)
	case <-timer.C:
	}
	if err := w.notOvertaken(ctx); err != nil {
		return d, err
	}
	if err := c.PutSecurity(ctx, d.Name, couch.OpenTo(d.Role(), d.Generation)); err != nil {
		return d, fmt.Errorf("open _security: %w", err)
	}
	err := w.tx(ctx, d, func(tx pgx.Tx, now daydb.DayDB) error {
		if err := daydb.Update(ctx, tx, now, w.mark.Token, `seal_started_at = null`, nil); err != nil {
			return err
		}
		var err error
		d, err = daydb.Load(ctx, tx, d.Name)
		return err
	})
	if err == nil {
		w.run.Report.Add("unsealed", 1)
	}
	return d, err
}

// reopen takes a day back to DRAINING because a late write brought open
// documents or conflicts, or because something that belongs into it is still
// elsewhere. The move is committed first: from then on nothing can drop the day. A
// crash before the seal is lifted leaves a DRAINING day with a seal, which the next
// evaluation lifts.
func (w work) reopen(ctx context.Context, d daydb.DayDB, e Evaluation) error {
	evidence := e.moveEvidence()
	evidence["reasons"] = e.Lock1.Reasons
	err := w.tx(ctx, d, func(tx pgx.Tx, d daydb.DayDB) error {
		err := daydb.Update(ctx, tx, d, w.mark.Token, `
			proof_sha256 = null,
			proof_documents = null,
			proof_at = null,
			proof_state = null,
			drop_intended_at = null`, nil)
		if err != nil {
			return err
		}
		_, err = daydb.Move(ctx, tx, d, daydb.Reopen, w.mark, evidence)
		return err
	})
	if err != nil {
		return err
	}
	w.moved(d, daydb.Reopen)
	if d.SealStartedAt == nil {
		return nil
	}
	d.State = daydb.Draining
	_, err = w.unseal(ctx, d)
	return err
}

// permitted reads, in the transaction that precedes a destructive step, all
// that people and devices may have said since the evaluation.
func (w work) permitted(ctx context.Context, tx pgx.Tx, d daydb.DayDB) error {
	f, err := flags.LoadForShare(ctx, tx, d.CompanyID)
	if err != nil {
		return err
	}
	switch {
	case !f.RollingDb || !f.RollingDbDrop:
		return fmt.Errorf("%w: rollingDbDrop of %s is off", ErrNotPermitted, d.CompanyID)
	case d.Hold != nil:
		return fmt.Errorf("%w: held by %s", ErrNotPermitted, d.Hold.Actor)
	}
	around, err := w.guard.elsewhereOf(ctx, tx, d.ID)
	if err != nil {
		return err
	}
	if waiting := around[d.ID].undelivered; waiting.QueueOpen || waiting.Count > 0 {
		return fmt.Errorf("%w: the continuity plane may still bring documents to the day", ErrNotPermitted)
	}
	for _, u := range around[d.ID].unsynced {
		if u.Waited {
			return fmt.Errorf("%w: device %s says that it holds %s of the day", ErrNotPermitted, u.DeviceID, count(u.Documents, "document"))
		}
	}
	return nil
}
