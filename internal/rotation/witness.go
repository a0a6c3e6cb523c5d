package rotation

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// reader names the witness of the copies from a legacy database. There is one
// for all of them: a database that has the last checkpoint of any has the earlier
// ones of the others.
const reader = "copies"

// checkWitness reports whether the legacy database was put back to a state from
// before the last checkpoint. Then all copies from it begin at the start again,
// also those that this run is not about: the next witness would hide it from them.
func (ro *Rotator) checkWitness(ctx context.Context, r run.Run, lease fence.Lease, legacyDB, incarnation string) (older bool, err error) {
	var last couch.Seq
	err = ro.pool.QueryRow(ctx, `
		select since
		from legacy_copies
		where legacy_db = $1 and incarnation = $2 and completed_at is not null
		order by fencing_token desc
		limit 1`, legacyDB, incarnation).Scan(&last)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("last checkpoint of %s: %w", legacyDB, pg.Translate(err))
	}
	witness, err := ro.couch.Witness(ctx, legacyDB, reader)
	if err != nil || witness == last {
		return false, err
	}
	if r.DryRun {
		return true, nil
	}
	ro.log.WarnContext(ctx, "the legacy database is older than what was copied from it; it is read from the start",
		"day_db", legacyDB, "token", lease.Token, "run_id", r.ID)
	err = pg.WithTx(ctx, ro.pool, func(tx pgx.Tx) error {
		if err := lease.Check(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			update legacy_copies set
			  since = @start,
			  completed_at = null,
			  fencing_token = @token,
			  updated_at = now()
			where legacy_db = @legacy and incarnation = @incarnation`,
			pgx.NamedArgs{"start": couch.SeqStart, "token": lease.Token, "legacy": legacyDB, "incarnation": incarnation})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("begin copies of %s again: %w", legacyDB, err)
	}
	return true, nil
}

// leaveWitness leaves the checkpoint in the legacy database. A crash before it,
// or a failure, costs the next run a reading from the start.
func (ro *Rotator) leaveWitness(ctx context.Context, r run.Run, legacyDB string, since couch.Seq) {
	// The checkpoint is committed, whatever has become of the run.
	err := ro.couch.PutWitness(context.WithoutCancel(ctx), legacyDB, reader, since)
	if err != nil {
		ro.log.WarnContext(ctx, "the checkpoint was not left in the legacy database; the next run reads it from the start",
			"day_db", legacyDB, "run_id", r.ID, "error", err)
	}
}
