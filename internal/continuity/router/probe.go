package router

import (
	"context"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/breaker"
)

// acquire asks the breaker for leave to send a client's call to the primary. A
// probe is no client's call: it is a health request of its own, beside the call
// that found it due, which goes the way of an outage. So nobody waits for a
// primary that may hang, and no command has to be asked for twice.
func (r *Router) acquire(ctx context.Context) (breaker.Permit, bool) {
	if r.opts.PassThrough {
		return breaker.Permit{}, false
	}
	permit, ok := r.breaker.Acquire()
	if !ok {
		return breaker.Permit{}, false
	}
	if !permit.Probe() {
		return permit, true
	}
	ctx = context.WithoutCancel(ctx) // The probe outlives the request.
	r.calls.Go(func() { r.probe(ctx, permit) })
	return breaker.Permit{}, false
}

// Observe asks the primary for its health, as the breaker lets it: while the
// circuit is open it only makes the transitions that are due, and starts the
// probe that is. So an edge without traffic notices an outage and its end, and
// the primary hears of the edges that reach it.
func (r *Router) Observe(ctx context.Context) {
	permit, ok := r.acquire(ctx)
	if !ok {
		return
	}
	fence, err := ask(ctx, r, r.opts.ReadTimeout, permit, r.opts.Primary.Health)
	if err != nil {
		r.log.InfoContext(ctx, "primary is not well", "error", err)
		return
	}
	r.fence.hear(fence)
}

func (r *Router) probe(ctx context.Context, permit breaker.Permit) {
	fence, err := guarded(ctx, r, r.opts.ReadTimeout, r.opts.Primary.Health)
	if err != nil {
		r.metrics.probes.WithLabelValues("failed").Inc()
		r.log.InfoContext(ctx, "probe failed", "error", err)
		report(permit, err)
		return
	}
	r.metrics.probes.WithLabelValues("passed").Inc()
	// What the primary says of the fence counts if the hosted database cannot be
	// asked: it checks each write itself.
	r.fence.hear(fence)
	if err := r.refresh(ctx); err != nil {
		r.log.WarnContext(ctx, "fence not read", "error", err)
	}
	permit.Success()
}

// ask calls the primary for a client and tells the breaker how it came out; a
// zero permit is nobody's. A client that hangs up gets its error at once, while
// the call goes on to its own end: impatient clients neither open the breaker
// nor hide from it that the primary hangs.
func ask[T any](ctx context.Context, r *Router, limit time.Duration, permit breaker.Permit, call func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ended := make(chan result, 1)
	detached := context.WithoutCancel(ctx)
	r.calls.Go(func() {
		value, err := guarded(detached, r, limit, call)
		report(permit, err)
		ended <- result{value, err}
	})
	select {
	case res := <-ended:
		return res.value, res.err
	case <-ctx.Done():
		var none T
		return none, &hungUpError{context.Cause(ctx)}
	}
}

// guarded calls the primary within a limit and until the router is closed. It
// makes an error of a panic, which nothing else would catch beside a request.
func guarded[T any](ctx context.Context, r *Router, limit time.Duration, call func(context.Context) (T, error)) (value T, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	value, err = call(ctx)
	if err != nil && r.ctx.Err() != nil {
		err = &hungUpError{err}
	}
	return value, err
}

// report tells the breaker how a call of the primary came out.
func report(permit breaker.Permit, err error) {
	if permit == (breaker.Permit{}) {
		return
	}
	switch judge(err) {
	case answered:
		permit.Success()
	case failed:
		permit.Failure()
	case nothing:
		permit.Ignore()
	}
}
