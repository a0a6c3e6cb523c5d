package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

const (
	// tries of a call whose repetition changes nothing.
	tries = 3
	// snoozeShort is for a database that is away, snoozeLong for a type that only
	// a newer version knows.
	snoozeShort = 5 * time.Second
	snoozeLong  = time.Minute
)

// empty hands out commands until none is left whose turn it is. Of claims whose
// answer is lost on a slow line each counts an attempt: the next are fewer, until
// all are done.
func (w *work) empty(ctx context.Context, epoch continuity.Epoch, upTo *continuity.Sequence) error {
	for {
		start := time.Now()
		limit := w.Batch
		if fewer := int(w.limit.Load()); fewer > 0 {
			limit = min(limit, fewer)
		}
		claims, err := w.Queue.Claim(ctx, hosted.ClaimOptions{
			Worker: w.Instance,
			Limit:  limit,
			Lease:  w.ClaimLease,
			Epoch:  epoch,
			UpTo:   upTo,
		})
		if errors.Is(err, continuity.ErrOutcomeUnknown) {
			w.limit.Store(int64(max(1, limit/2)))
		}
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(claims) == 0 {
			w.limit.Store(0)
			return nil
		}
		if err := w.batch(ctx, claims, start); err != nil {
			return err
		}
	}
}

// batch applies claims, each of another aggregate, side by side. The first error
// that concerns more than its command ends all.
func (w *work) batch(ctx context.Context, claims []continuity.Claim, claimed time.Time) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(w.Workers)
	outcomes := make([]outcome, len(claims))
	acks := acks{work: w}
	for i, c := range claims {
		group.Go(func() (err error) {
			if ctx.Err() != nil {
				return nil // The claim ends with its lease.
			}
			if time.Since(claimed) > w.ClaimLease-w.ApplyTimeout {
				// It might end while the command is at work.
				outcomes[i] = snoozed
				return w.snooze(ctx, c, 0)
			}
			outcomes[i], err = w.one(ctx, c)
			if err != nil || outcomes[i] != applied && outcomes[i] != deduplicated {
				return err
			}
			return acks.add(ctx, effect{c, outcomes[i] == deduplicated})
		})
	}
	err := group.Wait()
	for _, o := range outcomes {
		w.result.count(o)
	}
	w.result.Applied += acks.settled.Applied
	w.result.Deduplicated += acks.settled.Deduplicated
	return err
}

// outcome is what has become of a claim.
type outcome string

const (
	// The effect is committed, and waits for its ack.
	applied      outcome = "applied"
	deduplicated outcome = "deduplicated"

	failed  outcome = "failed"
	snoozed outcome = "snoozed"
	dead    outcome = "dead"
	lost    outcome = "lost"
)

// count counts what needs no ack.
func (r *Result) count(o outcome) {
	switch o {
	case failed:
		r.Failed++
	case snoozed:
		r.Snoozed++
	case dead:
		r.Dead++
	}
}

// one applies a command. Its ack comes second: a crash in between leaves a claim
// that ends, and an outcome that the next one finds.
func (w *work) one(ctx context.Context, c continuity.Claim) (outcome, error) {
	out, err := w.apply(ctx, c)
	var stale *continuity.StaleEpochError
	switch {
	case err == nil:
		return outcomeOf(out), nil
	case errors.Is(err, fence.ErrLost), ctx.Err() != nil:
		return "", err
	case errors.Is(err, continuity.ErrLostClaim):
		return lost, nil
	case errors.As(err, &stale), errors.Is(err, continuity.ErrNotOpen):
		// The primary's fence has moved under this run: it is over.
		return snoozed, errors.Join(err, w.snooze(ctx, c, 0))
	case errors.Is(err, primary.ErrUnknownType):
		w.Logger.WarnContext(ctx, "command of an unknown type waits", "command_id", c.CommandID, "command_type", c.CommandType)
		return snoozed, w.snooze(ctx, c, snoozeLong)
	case errors.Is(err, pg.ErrUnavailable), errors.Is(err, pg.ErrOutcomeUnknown), errors.Is(err, context.DeadlineExceeded):
		// Not the command's fault. If it had its effect, the inbox knows.
		return snoozed, w.snooze(ctx, c, snoozeShort)
	}
	return w.refuse(ctx, c, err)
}

func outcomeOf(out primary.Outcome) outcome {
	if out.Deduplicated {
		return deduplicated
	}
	return applied
}

func (w *work) apply(ctx context.Context, c continuity.Claim) (primary.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, w.ApplyTimeout)
	defer cancel()
	return w.Primary.ApplyClaim(ctx, c, w.lease)
}

// refuse gives a command back as failed. The primary notes it first: should the
// command be dead by it, it can have no effect any more.
func (w *work) refuse(ctx context.Context, c continuity.Claim, cause error) (outcome, error) {
	permanent := primary.IsRefusal(cause)
	text := reasonOf(cause, permanent)
	known, err := w.Primary.Refuse(ctx, c, permanent, text, w.lease)
	if err != nil {
		if errors.Is(err, fence.ErrLost) {
			return "", err
		}
		return snoozed, w.snooze(ctx, c, snoozeShort)
	}
	if known != nil {
		return outcomeOf(*known), nil
	}
	var told hosted.QueuedCommand
	err = repeat(ctx, func() (err error) {
		told, err = w.Queue.Fail(ctx, c.CommandID, c.Token, text, permanent)
		return err
	})
	if errors.Is(err, continuity.ErrLostClaim) {
		return lost, nil
	}
	if err != nil {
		return "", fmt.Errorf("fail: %w", err)
	}
	w.Logger.WarnContext(ctx, "command failed", "command_id", c.CommandID, "command_type", c.CommandType,
		"attempts", told.Attempts, "status", told.Status, "error", cause)
	if told.Status == "dead" {
		return dead, nil
	}
	return failed, nil
}

// reasonOf is what stands in the queue's row, and holds no payload.
func reasonOf(cause error, permanent bool) string {
	code := "failed"
	switch {
	case errors.Is(cause, primary.ErrVersionConflict), errors.Is(cause, primary.ErrExists),
		errors.Is(cause, primary.ErrIllegalMove), errors.Is(cause, primary.ErrUnknownAggregate):
		code = "conflict"
	case errors.Is(cause, continuity.ErrKeyReused):
		code = "key_reused"
	case permanent:
		code = "invalid"
	}
	if state := pg.Code(cause); state != "" && !permanent {
		return code + ": Postgres says " + state // Its text may repeat a value.
	}
	return code + ": " + cause.Error()
}

// snooze gives a command back for later. If the queue cannot be told, the claim
// ends with its lease.
func (w *work) snooze(ctx context.Context, c continuity.Claim, wait time.Duration) error {
	err := repeat(ctx, func() error { return w.Queue.Snooze(ctx, c.CommandID, c.Token, wait) })
	if err != nil && !errors.Is(err, continuity.ErrLostClaim) {
		return fmt.Errorf("snooze: %w", err)
	}
	return nil
}

// repeat makes a call that may be made again when nobody knows whether it
// happened.
func repeat(ctx context.Context, call func() error) (err error) {
	for range tries {
		err = call()
		if err == nil || ctx.Err() != nil || !errors.Is(err, continuity.ErrOutcomeUnknown) && !errors.Is(err, continuity.ErrUnavailable) {
			return err
		}
	}
	return err
}
