package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollingd/rollingd/internal/continuity"
)

// fenceView is the fence as this edge has seen it last. It may be behind the
// truth at any time; whoever acts on it is told so by the other side.
type fenceView struct {
	mu    sync.Mutex
	fence continuity.Fence // Epoch 0: never seen.
	// sealedSince is when this seal was seen first; zero if it is not sealed.
	sealedSince time.Time
	// reopened is told of each later epoch that is one of direct writes.
	reopened func()
}

func (v *fenceView) load() (continuity.Fence, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fence, v.fence.Epoch != 0
}

// observe takes a newer sight of the fence. Epochs only rise, so that an answer
// that was long on its way changes nothing.
func (v *fenceView) observe(f continuity.Fence) {
	if v.enter(f) {
		v.reopened()
	}
}

// hear takes what the primary says of the fence. Of a seal it hears later than
// the queue, whose word stands until the epoch is over or the queue says more.
func (v *fenceView) hear(f continuity.Fence) {
	if known, _ := v.load(); known.Epoch == f.Epoch && known.Mode == continuity.Sealed {
		return
	}
	v.observe(f)
}

// enter reports whether direct writes have opened since the fence was seen last.
func (v *fenceView) enter(f continuity.Fence) (reopened bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if f.Epoch == 0 || f.Epoch < v.fence.Epoch {
		return false
	}
	reopened = v.fence.Epoch != 0 && f.Epoch > v.fence.Epoch && f.Mode == continuity.Direct
	if f.Mode != continuity.Sealed || f.Epoch != v.fence.Epoch {
		v.sealedSince = time.Time{}
	}
	v.fence = f
	return reopened
}

// sealed notes that the queue refused for a seal in an epoch, and returns how
// long that has been so; nothing of it counts if another epoch has come since.
// Only the process' own time since the first refusal counts.
func (v *fenceView) sealed(epoch continuity.Epoch) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if epoch != v.fence.Epoch {
		return 0
	}
	v.fence.Mode = continuity.Sealed
	if v.sealedSince.IsZero() {
		began := time.Now()
		v.sealedSince = began
	}
	return time.Since(v.sealedSince)
}

// direct reports whether direct writes are let in, as far as is known. It is the
// breaker's condition to close.
func (v *fenceView) direct() bool {
	f, known := v.load()
	return known && f.Mode == continuity.Direct
}

// epoch is the one that is known, 0 if none is.
func (v *fenceView) epoch() continuity.Epoch {
	f, _ := v.load()
	return f.Epoch
}

// Refresh reads the fence from the hosted database.
func (r *Router) Refresh(ctx context.Context) error {
	if r.opts.PassThrough {
		return nil
	}
	return r.refresh(ctx)
}

// refresh reads the fence. Those that want it at the same time share one call.
func (r *Router) refresh(ctx context.Context) error {
	_, err, _ := r.flights.Do("state", func() (any, error) {
		// The call is not only that of the request that began it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostedTimeout)
		defer cancel()
		fence, err := r.opts.Fence.State(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the fence: %w", err)
		}
		r.fence.observe(fence)
		return nil, nil
	})
	return err
}

// learn takes what a refusal by the fence says about it, and asks the hosted
// database for the rest.
func (r *Router) learn(ctx context.Context, refusal error) error {
	var stale *continuity.StaleEpochError
	if errors.As(refusal, &stale) && stale.Current > r.fence.epoch() {
		// Should the hosted database not answer, the primary's word stands: it
		// refuses again if its gate is closed.
		r.fence.observe(continuity.Fence{Epoch: stale.Current, Mode: continuity.Direct})
	}
	return r.refresh(ctx)
}

// openQueue asks the fence to open the queue after an outage. Those that want it
// at the same time share one call.
func (r *Router) openQueue(ctx context.Context, cause *Refusal) error {
	expected := r.fence.epoch()
	_, err, _ := r.flights.Do(fmt.Sprint("open ", expected), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostedTimeout)
		defer cancel()
		fence, err := r.opts.Fence.OpenEpoch(ctx, expected, string(cause.Code), r.opts.Instance)
		if err != nil {
			return nil, fmt.Errorf("open the queue after epoch %d: %w", expected, err)
		}
		r.fence.observe(fence)
		r.log.WarnContext(ctx, "queue opened", "epoch", fence.Epoch, "reason", cause.Code)
		return nil, nil
	})
	return err
}

// breakSeal asks the fence to open a queue that has been sealed for too long:
// whoever sealed it has not come back.
func (r *Router) breakSeal(ctx context.Context) error {
	epoch := r.fence.epoch()
	_, err, _ := r.flights.Do(fmt.Sprint("reopen ", epoch), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hostedTimeout)
		defer cancel()
		fence, err := r.opts.Fence.Reopen(ctx, epoch, r.opts.Instance)
		if err != nil {
			return nil, fmt.Errorf("reopen the queue of epoch %d: %w", epoch, err)
		}
		r.fence.observe(fence)
		r.log.WarnContext(ctx, "sealed queue reopened", "epoch", fence.Epoch)
		return nil, nil
	})
	return err
}
