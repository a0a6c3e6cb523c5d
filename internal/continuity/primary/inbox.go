package primary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// entry is a key's line in the inbox.
type entry struct {
	commandID uuid.UUID
	hash      []byte
	kind      string
	result    json.RawMessage
	epoch     continuity.Epoch
}

const selectEntry = `
	select
	  command_id,
	  payload_hash,
	  outcome,
	  result,
	  epoch
	from continuity_inbox
	where idempotency_key = $1`

// scanEntry returns nil for a key that has no outcome.
func scanEntry(rows pgx.Rows) (*entry, error) {
	e, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (entry, error) {
		var e entry
		return e, row.Scan(&e.commandID, &e.hash, &e.kind, &e.result, &e.epoch)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &e, err
}

// outcome is the stored outcome, for a command whose payload has this hash.
func (e *entry) outcome(hash []byte) (Outcome, error) {
	if !bytes.Equal(e.hash, hash) {
		return Outcome{}, continuity.ErrKeyReused
	}
	return Outcome{CommandID: e.commandID, Kind: e.kind, Result: e.result, Epoch: e.epoch, Deduplicated: true}, nil
}

// insertDrained enters that a command of the queue has its outcome, whoever had
// the effect.
const insertDrained = `
	insert into primary_drained (idempotency_key, command_id, queue_sequence, epoch)
	values (@key, @command, @sequence, @epoch)
	on conflict on constraint primary_drained_pkey do nothing`

func (a arrival) drained() pgx.NamedArgs {
	return pgx.NamedArgs{"key": a.IdempotencyKey, "command": a.CommandID, "sequence": a.sequence, "epoch": a.epoch}
}

// Drained returns how many commands that the queue took in under an epoch have
// their outcome here, which is what a cutover is granted on.
func (p *Primary) Drained(ctx context.Context, epoch continuity.Epoch) (int64, error) {
	var n int64
	if err := p.pool.QueryRow(ctx, `select count(*) from primary_drained where epoch = $1`, epoch).Scan(&n); err != nil {
		return 0, fmt.Errorf("count what was drained: %w", pg.Translate(err))
	}
	return n, nil
}

// refusal is why a claim was given back without an effect.
type refusal struct {
	token     continuity.ClaimToken
	permanent bool
	reason    string
}

const selectRefusal = `
	select
	  claim_token,
	  permanent,
	  reason
	from primary_refusals
	where idempotency_key = $1`

func scanRefusal(rows pgx.Rows) (*refusal, error) {
	r, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (refusal, error) {
		var r refusal
		return r, row.Scan(&r.token, &r.permanent, &r.reason)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &r, err
}

func (r *refusal) err(way string) error {
	if way == drained {
		return fmt.Errorf("%w: it was given back", continuity.ErrLostClaim)
	}
	return fmt.Errorf("%w: %s", ErrRefused, r.reason)
}

// Refuse notes why a claim is given back without an effect. It comes before the
// queue is told, and when it returns nil, no claim as old as this one can have
// the effect any more, so that a dead row and an effect exclude each other.
//
// It returns the outcome, and notes nothing, when the key has one after all.
func (p *Primary) Refuse(ctx context.Context, c continuity.Claim, permanent bool, reason string, lease Lease) (*Outcome, error) {
	var out *Outcome
	a := claimed(c, lease)
	err := pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error {
		w, err := p.look(ctx, tx, a)
		if err != nil {
			return err
		}
		// An entry with another payload is no outcome of this command.
		if w.known != nil && bytes.Equal(w.known.hash, w.hash) {
			known, err := w.known.outcome(w.hash)
			if err != nil {
				return err
			}
			out = &known
			_, err = tx.Exec(ctx, insertDrained, a.drained())
			return err
		}
		_, err = tx.Exec(ctx, `
			insert into primary_refusals as known (idempotency_key, command_id, claim_token, permanent, reason, epoch)
			values (@key, @command, @token, @permanent, @reason, @epoch)
			on conflict on constraint primary_refusals_pkey do update set
			  command_id = excluded.command_id,
			  claim_token = excluded.claim_token,
			  permanent = excluded.permanent,
			  reason = excluded.reason,
			  epoch = excluded.epoch,
			  at = now()
			where known.claim_token < excluded.claim_token`,
			pgx.NamedArgs{
				"key": c.IdempotencyKey, "command": c.CommandID, "token": c.Token,
				"permanent": permanent, "reason": reason, "epoch": w.state.Epoch,
			})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("refuse %s: %w", c.CommandType, err)
	}
	return out, nil
}

// Settled returns those of the keys that have their outcome here, although nobody
// may have told the queue. One whose command was refused for good, because the
// outcome is that of another payload, is not among them.
func (p *Primary) Settled(ctx context.Context, keys []string) ([]string, error) {
	rows, err := p.pool.Query(ctx, `
		select i.idempotency_key
		from continuity_inbox i
		where i.idempotency_key = any($1)
		  and not exists (
		    select from primary_refusals r
		    where r.idempotency_key = i.idempotency_key
		      and r.permanent)`, keys)
	if err != nil {
		return nil, fmt.Errorf("look for outcomes: %w", pg.Translate(err))
	}
	settled, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for outcomes: %w", pg.Translate(err))
	}
	return settled, nil
}

// Undrained returns those of the keys that are not entered as drained. Of a command
// that the queue calls done there is none, unless this database was restored from a
// backup.
func (p *Primary) Undrained(ctx context.Context, keys []string) ([]string, error) {
	rows, err := p.pool.Query(ctx, `
		select key
		from unnest($1::text[]) as asked (key)
		where not exists (
		  select from primary_drained d
		  where d.idempotency_key = key)`, keys)
	if err != nil {
		return nil, fmt.Errorf("look for what was drained: %w", pg.Translate(err))
	}
	undrained, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for what was drained: %w", pg.Translate(err))
	}
	return undrained, nil
}

// LastDrained returns the sequence number of the last command of the queue that
// has its outcome here, 0 for none.
func (p *Primary) LastDrained(ctx context.Context) (continuity.Sequence, error) {
	var last continuity.Sequence
	if err := p.pool.QueryRow(ctx, `select coalesce(max(queue_sequence), 0) from primary_drained`).Scan(&last); err != nil {
		return 0, fmt.Errorf("read what was drained last: %w", pg.Translate(err))
	}
	return last, nil
}
