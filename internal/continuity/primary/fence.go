package primary

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// Advisory locks. The fence's is beyond the 32 bits of hashed names, which are
// the leases'; the aggregates' have two halves, which is a space of its own.
const (
	fenceLock      = 0x726f6c6c66656e63
	aggregateClass = 7102
)

// ErrBehind is returned for a reading of the fence that is older than what the
// primary has seen: it was overtaken on its way, or the hosted database was
// restored from a backup and must be reconciled.
var ErrBehind = errors.New("the fence was read before a later epoch was seen")

// State is the primary's own copy of the fence.
type State struct {
	Epoch continuity.Epoch `json:"epoch"`
	// Mode is that of the hosted fence when it was last read.
	Mode continuity.Mode `json:"mode"`
	// Closed: nothing new is taken, whatever the mode, until the hosted fence has
	// been read again.
	Closed bool `json:"closed"`
	// Seen is the highest epoch that anybody has named, at least Epoch.
	Seen continuity.Epoch `json:"seenEpoch"`
	// Leased: the hosted fence was read within the time that a reading counts.
	Leased bool `json:"leased"`
	// ConfirmedAt is when a heartbeat last read it; the zero time for never.
	ConfirmedAt time.Time `json:"confirmedAt"`
	// Beats is how often the hosted database has heard of a primary, as it said last.
	Beats  int64  `json:"-"`
	Reason string `json:"reason"`
}

// Direct reports whether a direct write under the state's epoch is taken.
func (s State) Direct(policy Policy) bool {
	return !s.Closed && s.Mode == continuity.Direct && (s.Leased || policy == Available)
}

// now() is that of the transaction's begin. One that has waited for a lock counts
// a lease that has just ended, by no longer than WriteTimeout: that is the longest
// write by which the lease has to be shorter. It may have begun before the fence was
// read, by no longer either; what was read later still, was read before the clock
// was set back, and nobody knows how long ago.
const selectState = `
	select
	  epoch,
	  mode,
	  closed,
	  seen_epoch,
	  confirmed_at + $1 > now() and confirmed_at <= now() + $2::interval,
	  case when isfinite(confirmed_at) then confirmed_at else '0001-01-01 00:00:00+00' end,
	  beats,
	  reason
	from primary_fence`

func (s *State) scan(row pgx.Row) error {
	return row.Scan(&s.Epoch, &s.Mode, &s.Closed, &s.Seen, &s.Leased, &s.ConfirmedAt, &s.Beats, &s.Reason)
}

// State returns the primary's copy of the fence.
func (p *Primary) State(ctx context.Context) (State, error) {
	var s State
	if err := s.scan(p.pool.QueryRow(ctx, selectState, p.lease, WriteTimeout)); err != nil {
		return State{}, fmt.Errorf("read the fence: %w", pg.Translate(err))
	}
	return s, nil
}

// Policy returns the policy for the time when the hosted fence cannot be read.
func (p *Primary) Policy() Policy { return p.policy }

// Lease is how long after a reading of the hosted fence the last direct write that
// counts on it has ended; zero under Available, where none does.
func (p *Primary) Lease() time.Duration {
	if p.policy != Strict {
		return 0
	}
	return p.lease + WriteTimeout
}

// Heard notes how often the hosted database has heard of a primary, by its own
// word. It changes nothing unless was is what was noted before.
func (p *Primary) Heard(ctx context.Context, was, beats int64) error {
	_, err := p.pool.Exec(ctx, `update primary_fence set beats = $2 where beats = $1`, was, beats)
	if err != nil {
		return fmt.Errorf("note the beats: %w", pg.Translate(err))
	}
	return nil
}

// Clock returns Postgres' time. A heartbeat takes it before it asks the hosted
// database, for Confirm and Adopt.
func (p *Primary) Clock(ctx context.Context) (time.Time, error) {
	var now time.Time
	if err := p.pool.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("read the clock: %w", pg.Translate(err))
	}
	return now, nil
}

// laterReading is the later one of two readings of the fence, unless the clock was
// set back behind the one that is noted.
const laterReading = `case when confirmed_at <= now() + @ahead::interval then greatest(confirmed_at, @as_of) else @as_of end`

// Confirm renews the lease by a reading of the hosted fence, if it says what the
// copy says, and reports whether that one is open. asOf is Clock before the hosted
// database was asked; the zero time renews nothing.
func (p *Primary) Confirm(ctx context.Context, hosted continuity.Fence, asOf time.Time) (open bool, err error) {
	err = p.pool.QueryRow(ctx, `
		update primary_fence set confirmed_at = `+laterReading+`
		where (epoch, mode) = (@epoch, @mode) and seen_epoch <= @epoch
		returning not closed`,
		pgx.NamedArgs{"epoch": hosted.Epoch, "mode": hosted.Mode, "as_of": asOf, "ahead": WriteTimeout}).Scan(&open)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, fmt.Errorf("renew epoch %d: %w", hosted.Epoch, pg.Translate(err))
	}
	return open, nil
}

// Adopt makes the copy of the fence what the hosted one was, and opens it if it was
// closed. asOf is that of Confirm. When it returns, no effect under the former state
// is in flight. A reading that is behind is ErrBehind and changes nothing; the same
// state again only renews the lease.
func (p *Primary) Adopt(ctx context.Context, hosted continuity.Fence, asOf time.Time, reason string) error {
	open, err := p.Confirm(ctx, hosted, asOf)
	if err != nil {
		return err
	}
	if open {
		p.adopted(hosted.Epoch)
		return nil
	}
	err = p.flip(ctx, `
		update primary_fence set
		  epoch = @epoch,
		  mode = @mode,
		  closed = false,
		  seen_epoch = greatest(seen_epoch, @epoch),
		  confirmed_at = `+laterReading+`,
		  reason = @reason,
		  actor = @actor
		where seen_epoch <= @epoch`,
		pgx.NamedArgs{"epoch": hosted.Epoch, "mode": hosted.Mode, "as_of": asOf, "ahead": WriteTimeout, "reason": reason})
	if err != nil {
		return fmt.Errorf("adopt %s of epoch %d: %w", hosted.Mode, hosted.Epoch, err)
	}
	p.adopted(hosted.Epoch)
	return nil
}

// Close refuses everything new until the hosted fence has been read and adopted.
// It is called when the process starts.
func (p *Primary) Close(ctx context.Context, reason string) error {
	err := p.flip(ctx, `update primary_fence set closed = true, reason = @reason, actor = @actor`, pgx.NamedArgs{"reason": reason})
	if err != nil {
		return fmt.Errorf("close the fence: %w", err)
	}
	return nil
}

// See notes that somebody has named an epoch. If it is higher than the primary's
// own, the primary is stale, and it closes until the hosted fence has been read.
func (p *Primary) See(ctx context.Context, epoch continuity.Epoch) error {
	err := p.flip(ctx, `
		update primary_fence set
		  seen_epoch = greatest(seen_epoch, @epoch),
		  closed = closed or epoch < @epoch,
		  reason = case when closed or epoch >= @epoch then reason else @reason end,
		  actor = @actor`,
		pgx.NamedArgs{"epoch": epoch, "reason": fmt.Sprintf("epoch %d was seen", epoch)})
	if err != nil {
		return fmt.Errorf("see epoch %d: %w", epoch, err)
	}
	return nil
}

// Reopen opens direct writes again, under the epoch that is known, though the
// hosted fence cannot be read: the policy Available after a start, and a primary
// that has no hosted database, in epoch 0. It returns false and changes nothing
// under Strict, when a higher epoch was seen, and when the queue was open last.
func (p *Primary) Reopen(ctx context.Context) (bool, error) {
	if p.policy != Available {
		return false, nil
	}
	err := p.flip(ctx, `
		update primary_fence set
		  closed = false,
		  reason = @reason,
		  actor = @actor
		where closed and mode = 'DIRECT' and seen_epoch = epoch`,
		pgx.NamedArgs{"reason": "the hosted fence cannot be read; local writes go on"})
	if errors.Is(err, ErrBehind) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reopen the fence: %w", err)
	}
	return true, nil
}

// stillFor is how long a process may say nothing within a transaction that holds
// the fence, until Postgres ends it. The lock of a command keeps every flip back,
// that of a flip every command, and a primary that takes over begins with a flip:
// it waits for a lock longer than this.
const stillFor = 5 * time.Second

const setStillFor = `select set_config('idle_in_transaction_session_timeout', $1, true)`

var stillForMillis = strconv.FormatInt(stillFor.Milliseconds(), 10)

// flip changes the fence under the exclusive lock, so that no effect is in
// flight. No row changed is ErrBehind.
func (p *Primary) flip(ctx context.Context, update string, args pgx.NamedArgs) error {
	args["actor"] = p.instance
	return pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(setStillFor, stillForMillis)
		batch.Queue(`select pg_advisory_xact_lock($1)`, fenceLock)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, update, args)
		if code := pg.Code(err); code == codeStaleEpoch || code == codeWrongGate {
			return fmt.Errorf("%w: %w", ErrBehind, err)
		}
		if err == nil && tag.RowsAffected() == 0 {
			return ErrBehind
		}
		return err
	})
}

// The SQLSTATEs that the fence's trigger raises.
const (
	codeStaleEpoch = "RC001"
	codeWrongGate  = "RC002"
)

// RaiseTokens makes the tokens of leases, which are the terms of drainers, go on
// above a number. A primary that was restored from a backup draws them below what
// the hosted database has seen.
func (p *Primary) RaiseTokens(ctx context.Context, above int64) error {
	_, err := p.pool.Exec(ctx, `
		select setval('fencing_tokens_seq', $1)
		from fencing_tokens_seq
		where last_value < $1`, above)
	if err != nil {
		return fmt.Errorf("raise the tokens above %d: %w", above, pg.Translate(err))
	}
	return nil
}

// Holds fails unless a lease is still the caller's.
func (p *Primary) Holds(ctx context.Context, lease Lease) error {
	return pg.WithTx(ctx, p.pool, func(tx pgx.Tx) error { return lease.Check(ctx, tx) })
}

const (
	// publishedWithin is how old a backup of the hosted database can be: its oldest
	// dump, and a day. What was published before that, it has or has delivered.
	publishedWithin = 15 * 24 * time.Hour
	// againBatch keeps a statement well within its time limit.
	againBatch = 10_000
)

// PublishAgain has the events of an epoch and of all later ones published once
// more: the hosted database was restored from a backup, and has forgotten some.
// Those of the epoch before may have been published within it. It may be repeated.
func (p *Primary) PublishAgain(ctx context.Context, from continuity.Epoch) error {
	var last int64
	err := p.pool.QueryRow(ctx, `select coalesce(max(position), 0) from primary_outbox`).Scan(&last)
	for after := int64(0); err == nil && after < last; after += againBatch {
		_, err = p.pool.Exec(ctx, `
			update primary_outbox set published_at = null
			where position > $1
			  and position <= $1 + $2
			  and epoch >= $3 - 1
			  and published_at > now() - $4::interval`, after, againBatch, from, publishedWithin)
	}
	if err != nil {
		return fmt.Errorf("publish events again: %w", pg.Translate(err))
	}
	return nil
}
