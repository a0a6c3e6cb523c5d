package drain

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// effect is a claim whose effect is committed: now, or before.
type effect struct {
	continuity.Claim
	deduplicated bool
}

// acks are the effects of a batch that are to be acked. One worker acks at a time;
// what the others have committed meanwhile goes with its next call, and they go
// on with the next command.
type acks struct {
	*work
	mu      sync.Mutex
	waiting []effect
	busy    bool
	// settled counts what was acked.
	settled Result
}

// add acks the effect and all that wait, unless another worker is at it.
func (a *acks) add(ctx context.Context, e effect) error {
	a.mu.Lock()
	a.waiting = append(a.waiting, e)
	first := !a.busy
	a.busy = true
	a.mu.Unlock()
	if !first {
		return nil
	}
	for batch := a.next(); len(batch) > 0; batch = a.next() {
		if err := a.ack(ctx, batch); err != nil {
			return err // And nobody acks any more: the claims end with their lease.
		}
	}
	return nil
}

func (a *acks) next() []effect {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.waiting), hosted.MaxBatch)
	batch := a.waiting[:n:n]
	a.waiting = a.waiting[n:]
	a.busy = n > 0
	return batch
}

// ack settles effects. Whoever has a claim that is lost finds its outcome in the
// inbox.
func (a *acks) ack(ctx context.Context, batch []effect) error {
	claims := make([]continuity.Claim, len(batch))
	for i, e := range batch {
		claims[i] = e.Claim
	}
	var lost []uuid.UUID
	err := repeat(ctx, func() (err error) {
		lost, err = a.Queue.AckAll(ctx, claims)
		return err
	})
	if err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	for _, e := range batch {
		switch {
		case slices.Contains(lost, e.CommandID):
		case e.deduplicated:
			a.settled.Deduplicated++
		default:
			a.settled.Applied++
		}
	}
	return nil
}
