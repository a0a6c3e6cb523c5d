package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// TestFlood has edges write without a pause while the queue opens, is drained by
// two processes and closes again, several times over. Each edge sends its order's
// commands one after the other, to whichever gate is open, and repeats them until
// they are taken: nothing may be lost, doubled or inverted.
func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(w.drainer(nil))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	var (
		drainers sync.WaitGroup
		queued   atomic.Bool
	)
	for range 2 {
		// An outage lasts until an edge has noticed it: no queue closes as it was opened.
		d := w.drainer(&transport{before: func(_ int64, function string) error {
			if function == "continuity_seal" && !queued.Load() {
				return errNotSent
			}
			return nil
		}})
		d.Workers, d.Batch = 4, 10
		drainers.Go(func() {
			for ctx.Err() == nil {
				if _, err := d.RunOnce(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, continuity.ErrLostClaim) && !repeated(err) {
					t.Errorf("drain: %v", err)
				}
			}
		})
	}

	const edges, orders = 4, 6
	var sent sync.WaitGroup
	for e := range edges {
		d := w.drainer(nil) // For its primary.
		sent.Go(func() {
			for o := range orders {
				id := fmt.Sprintf("o%d-%d", e, o)
				for _, c := range []continuity.Command{
					command(id+" create", "order.create", id, ofNorth),
					command(id+" pay", "order.confirm_payment", id, `{"transactionId":"`+uuid.NewString()+`"}`),
					command(id+" preparing", "order.update_status", id, `{"status":"preparing"}`),
					command(id+" delivered", "order.update_status", id, `{"status":"delivered"}`),
				} {
					w.send(ctx, d, c, &queued)
				}
				if e == 0 && o%2 == 0 {
					state, err := w.fence.State(ctx)
					if err == nil && state.Mode == continuity.Direct {
						_, _ = w.fence.ForceQueue(ctx, state.Epoch, "test", "outage")
					}
				}
			}
		})
	}
	sent.Wait()
	stop()
	drainers.Wait()
	state, err := w.fence.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if end := state.Epoch; state.Mode == continuity.Direct {
		w.finish(end)
	} else {
		w.finish(end + 1)
	}
	if n := scalar[int](w, w.primary, `select count(*) from orders where status = 'delivered' and version = 4`); n != edges*orders {
		t.Errorf("%d orders were delivered", n)
	}
	if n := scalar[int](w, w.primary, `select count(*) from continuity_inbox`); n != edges*orders*4 {
		t.Errorf("%d keys have an outcome", n)
	}
	if n := scalar[int](w, w.hosted, `select count(*) from continuity_commands`); n == 0 || n == edges*orders*4 {
		t.Errorf("%d commands went through the queue", n)
	} else {
		t.Logf("%d of %d commands went through the queue, in %d epochs", n, edges*orders*4, state.Epoch)
	}
}

// repeated reports whether what has failed is done again: the fence has moved, or
// a side did not answer in its time, as on a machine that is busy.
func repeated(err error) bool {
	var stale *continuity.StaleEpochError
	if errors.As(err, &stale) {
		return true
	}
	for _, passing := range []error{
		continuity.ErrNotOpen, continuity.ErrSealed, continuity.ErrUnavailable, continuity.ErrOutcomeUnknown,
		pg.ErrUnavailable, pg.ErrOutcomeUnknown, context.DeadlineExceeded,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// send is an edge that knows nothing but what the two sides tell it. It notes that
// a command was queued.
func (w *world) send(ctx context.Context, d *Drainer, c continuity.Command, queued *atomic.Bool) {
	for ctx.Err() == nil {
		state, err := w.fence.State(ctx)
		if err != nil {
			continue
		}
		if state.Mode == continuity.Direct {
			_, err = d.Primary.Apply(ctx, c, state.Epoch)
		} else {
			if _, err = w.queue.Enqueue(ctx, c, state.Epoch); err == nil {
				queued.Store(true)
			}
		}
		if err == nil {
			return
		}
		if !repeated(err) {
			w.Errorf("send %s: %v", c.IdempotencyKey, err)
			return
		}
	}
}
