package primary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// Outcome is what a key has done.
type Outcome struct {
	// CommandID is that of the command which had the effect: the first with the key.
	CommandID uuid.UUID `json:"commandId"`
	// Kind is "applied", or "noop" when the aggregate was there already or beyond.
	Kind string `json:"outcome"`
	// Result is an object that says where the aggregate stood afterwards.
	Result json.RawMessage  `json:"result"`
	Epoch  continuity.Epoch `json:"epoch"`
	// Deduplicated: the key had its outcome before.
	Deduplicated bool `json:"deduplicated"`
}

// The kinds of outcomes.
const (
	applied = "applied"
	noop    = "noop"
)

// The ways by which a command comes, as the inbox names them.
const (
	direct  = "direct"
	drained = "drained"
)

// Lease is the right to drain; fence.Lease has it. Check fails unless it is still
// the caller's, and keeps it so until the transaction ends.
type Lease interface {
	Check(ctx context.Context, tx pgx.Tx) error
}

// arrival is a command and the way by which it came.
type arrival struct {
	continuity.Command
	way   string
	epoch continuity.Epoch
	// sequence and token are those of the claim, nil and 0 for a direct write.
	sequence *continuity.Sequence
	token    continuity.ClaimToken
	// lease is nil for a direct write.
	lease Lease
}

// Apply has a command's effect, under the epoch that the caller believes in,
// and returns its outcome. A key that has one gets it in any mode, under any
// epoch, and ErrKeyReused if it came with another payload.
//
// A StaleEpochError says that the epoch is another one, ErrNotOpen that direct
// writes are closed in it. An error of which IsRefusal is true will be the same
// however often the command is repeated. pg.ErrOutcomeUnknown: repeat it with the
// same key.
func (p *Primary) Apply(ctx context.Context, c continuity.Command, epoch continuity.Epoch) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, WriteTimeout)
	defer cancel()
	return p.arrive(ctx, arrival{Command: c, way: direct, epoch: epoch})
}

// ApplyClaim is Apply for a command out of the queue. It fails when the lease is
// not the caller's any more, and with continuity.ErrLostClaim when a claim as
// young as this one was given back by Refuse.
func (p *Primary) ApplyClaim(ctx context.Context, c continuity.Claim, lease Lease) (Outcome, error) {
	return p.arrive(ctx, claimed(c, lease))
}

func claimed(c continuity.Claim, lease Lease) arrival {
	return arrival{Command: c.Command, way: drained, epoch: c.Epoch, sequence: &c.Sequence, token: c.Token, lease: lease}
}

// IsRefusal reports whether a command that failed with err can never have an
// effect as it is.
func IsRefusal(err error) bool {
	for _, refusal := range []error{
		continuity.ErrInvalid, continuity.ErrPayloadTooLarge, continuity.ErrKeyReused,
		ErrVersionConflict, ErrExists, ErrUnknownAggregate, ErrIllegalMove, ErrRefused,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

func (p *Primary) arrive(ctx context.Context, a arrival) (Outcome, error) {
	if err := valid(a.Command); err != nil {
		return Outcome{}, err
	}
	out, err := p.once(ctx, a)
	if pg.IsUnique(err, "continuity_inbox_pkey") {
		// The same key was at work under another aggregate, and is in the inbox now.
		out, err = p.once(ctx, a)
	}
	if pg.IsUnique(err, "continuity_inbox_command_key") {
		return Outcome{}, fmt.Errorf("%w: the command id belongs to another key", continuity.ErrInvalid)
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("apply %s: %w", a.CommandType, err)
	}
	return out, nil
}

const (
	maxKey         = 256
	maxAggregateID = 256
)

func valid(c continuity.Command) error {
	switch {
	case c.CommandID == uuid.Nil:
		return fmt.Errorf("%w: a command needs an id", continuity.ErrInvalid)
	case strings.TrimSpace(c.IdempotencyKey) == "" || len(c.IdempotencyKey) > maxKey:
		return fmt.Errorf("%w: the idempotency key is not blank, and has up to %d bytes", continuity.ErrInvalid, maxKey)
	case strings.TrimSpace(c.AggregateID) == "" || len(c.AggregateID) > maxAggregateID:
		return fmt.Errorf("%w: the aggregate's id is not blank, and has up to %d bytes", continuity.ErrInvalid, maxAggregateID)
	case len(c.Payload) > contracts.MaxCommandPayloadBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", continuity.ErrPayloadTooLarge, len(c.Payload), contracts.MaxCommandPayloadBytes)
	case c.ExpectedVersion != nil && *c.ExpectedVersion < 0:
		return fmt.Errorf("%w: an expected version of %d", continuity.ErrInvalid, *c.ExpectedVersion)
	}
	return nil
}

// once is one try, in one transaction.
func (p *Primary) once(ctx context.Context, a arrival) (out Outcome, err error) {
	err = pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error {
		out, err = p.apply(ctx, tx, a)
		return err
	})
	return out, err
}

func (p *Primary) apply(ctx context.Context, tx pgx.Tx, a arrival) (Outcome, error) {
	w, err := p.look(ctx, tx, a)
	if err != nil {
		return Outcome{}, err
	}
	if w.known != nil {
		out, err := w.known.outcome(w.hash)
		if err == nil && a.way == drained {
			_, err = tx.Exec(ctx, insertDrained, a.drained())
		}
		return out, err
	}
	if len(w.payload) > contracts.MaxCommandPayloadBytes {
		// The queue measures it so, too: what one way takes, the other does not refuse.
		return Outcome{}, fmt.Errorf("%w: %d bytes with each number written out and a space behind each comma and colon, at most %d",
			continuity.ErrPayloadTooLarge, len(w.payload), contracts.MaxCommandPayloadBytes)
	}
	if err := p.admit(w.state, a); err != nil {
		return Outcome{}, err
	}
	if w.refusal != nil && (a.way == direct || w.refusal.token >= a.token) {
		return Outcome{}, w.refusal.err(a.way)
	}
	handle, ok := handlers[a.CommandType]
	if !ok {
		return Outcome{}, fmt.Errorf("%w: %q", ErrUnknownType, a.CommandType)
	}
	e, err := handle(ctx, tx, command{Command: a.Command, payload: w.payload})
	if err != nil {
		return Outcome{}, err
	}
	return record(ctx, tx, a, w, e)
}

// world is what a command finds, once it has the locks.
type world struct {
	state   State
	known   *entry
	refusal *refusal
	// payload and hash are of the canonical form that jsonb gives, so that they
	// are the same whichever way the payload took.
	payload []byte
	hash    []byte
}

// look takes the locks, in this order and always: the fence's, shared, then the
// aggregate's. What it reads afterwards is what the last holder has committed,
// since every statement sees anew.
func (p *Primary) look(ctx context.Context, tx pgx.Tx, a arrival) (world, error) {
	var w world
	batch := &pgx.Batch{}
	batch.Queue(setStillFor, stillForMillis)
	batch.Queue(`select pg_advisory_xact_lock_shared($1)`, fenceLock)
	batch.Queue(`select pg_advisory_xact_lock($1, hashtext($2))`, aggregateClass, a.AggregateType+" "+a.AggregateID)
	batch.Queue(selectState, p.lease, WriteTimeout).QueryRow(func(row pgx.Row) error { return w.state.scan(row) })
	batch.Queue(selectEntry, a.IdempotencyKey).Query(func(rows pgx.Rows) (err error) {
		w.known, err = scanEntry(rows)
		return err
	})
	batch.Queue(selectRefusal, a.IdempotencyKey).Query(func(rows pgx.Rows) (err error) {
		w.refusal, err = scanRefusal(rows)
		return err
	})
	// The hash covers what makes the command another one.
	batch.Queue(`
		select
		  payload::text,
		  sha256(convert_to(jsonb_build_array($1::text, $2::text, $3::text, payload)::text, 'UTF8'))
		from (select $4::text::jsonb as payload) canonical`,
		a.CommandType, a.AggregateType, a.AggregateID, string(a.Payload),
	).QueryRow(func(row pgx.Row) error { return row.Scan(&w.payload, &w.hash) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		if code := pg.Code(err); strings.HasPrefix(code, "22") || code == "54001" {
			// No JSON, a NUL, half a character, no UTF-8, a number beyond numeric; nested too
			// deeply. Only what came with the command can be wrong in these statements.
			return world{}, fmt.Errorf("%w: it holds what Postgres cannot keep", continuity.ErrInvalid)
		}
		return world{}, err
	}
	if a.lease != nil {
		return w, a.lease.Check(ctx, tx)
	}
	return w, nil
}

// admit checks epoch and mode for the way by which a new key came.
func (p *Primary) admit(s State, a arrival) error {
	if a.way == direct {
		if a.epoch != s.Epoch {
			return &continuity.StaleEpochError{Current: s.Epoch}
		}
		if !s.Direct(p.policy) {
			return fmt.Errorf("%w: direct writes, %s of epoch %d", continuity.ErrNotOpen, s.Mode, s.Epoch)
		}
		return nil
	}
	if a.epoch > s.Epoch {
		return &continuity.StaleEpochError{Current: s.Epoch}
	}
	open := s.Mode == continuity.Catchup || s.Mode == continuity.Sealed
	// A command of an epoch that is over was dead at the cutover, and a person has
	// brought it back.
	redriven := s.Mode == continuity.Direct && a.epoch < s.Epoch
	if s.Closed || !open && !redriven {
		return fmt.Errorf("%w: draining, %s of epoch %d", continuity.ErrNotOpen, s.Mode, s.Epoch)
	}
	return nil
}

// record writes the inbox, the events and the notices of an effect.
func record(ctx context.Context, tx pgx.Tx, a arrival, w world, e effect) (Outcome, error) {
	result, err := json.Marshal(e.result)
	if err != nil {
		return Outcome{}, fmt.Errorf("encode the result: %w", err)
	}
	out := Outcome{CommandID: a.CommandID, Kind: e.kind, Result: result, Epoch: w.state.Epoch}
	batch := &pgx.Batch{}
	batch.Queue(`
		insert into continuity_inbox
		  (idempotency_key, command_id, command_type, aggregate_type, aggregate_id, payload_hash,
		   way, epoch, queue_sequence, unconfirmed, outcome, result)
		values
		  (@key, @command, @type, @aggregate_type, @aggregate, @hash,
		   @way, @epoch, @sequence, @unconfirmed, @outcome, @result)`,
		pgx.NamedArgs{
			"key": a.IdempotencyKey, "command": a.CommandID, "type": a.CommandType,
			"aggregate_type": a.AggregateType, "aggregate": a.AggregateID, "hash": w.hash,
			"way": a.way, "epoch": w.state.Epoch, "sequence": a.sequence, "unconfirmed": !w.state.Leased,
			"outcome": e.kind, "result": result,
		})
	if a.way == drained {
		batch.Queue(insertDrained, a.drained())
	}
	for _, ev := range e.events {
		batch.Queue(`
			insert into primary_outbox
			  (event_type, aggregate_type, aggregate_id, company_id, restaurant_id, payload, epoch)
			values
			  (@type, @aggregate_type, @aggregate, @company, @restaurant, @payload, @epoch)`,
			pgx.NamedArgs{
				"type": ev.kind, "aggregate_type": ev.aggregateType, "aggregate": ev.aggregateID,
				"company": ev.companyID, "restaurant": ev.restaurantID, "payload": ev.payload(a.Command), "epoch": w.state.Epoch,
			})
	}
	if e.notice != nil {
		batch.Queue(`
			insert into primary_notices (idempotency_key, command_id, aggregate_type, aggregate_id, code, detail)
			values (@key, @command, @aggregate_type, @aggregate, @code, @detail)`,
			pgx.NamedArgs{
				"key": a.IdempotencyKey, "command": a.CommandID, "aggregate_type": a.AggregateType,
				"aggregate": a.AggregateID, "code": e.notice.code, "detail": e.notice.detail,
			})
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Outcome{}, err
	}
	return out, nil
}
