package fence

import (
	"context"
	"errors"
	"time"
)

const (
	// renewals is how many times a lease is renewed within its time to live: two
	// may fail before it is lost.
	renewals = 3
	// releaseTimeout bounds the release after the job's own context has ended.
	releaseTimeout = 5 * time.Second
	// waitStep is how often HoldWait looks whether the lease is free.
	waitStep = 200 * time.Millisecond
)

// Hold acquires a lease, keeps it renewed while fn runs, and releases it. The
// context of fn ends when the lease is lost, with ErrLost as its cause. It
// returns a HeldError when the lease is somebody else's, and what fn returns
// otherwise.
func (l *Leases) Hold(ctx context.Context, name string, fn func(context.Context, Lease) error) error {
	lease, err := l.Acquire(ctx, name)
	if err != nil {
		return err
	}
	// The caller's context may have ended; the lease is given back all the same,
	// so that the next run need not wait for its end.
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_ = l.Release(release, lease)
	}()

	work, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.keep(work, lease, cancel)
	}()
	err = fn(work, lease)
	if lost := context.Cause(work); err != nil && errors.Is(lost, ErrLost) {
		err = errors.Join(lost, err)
	}
	cancel(nil)
	<-done
	return err
}

// HoldWait is Hold that waits up to limit for a lease that is held.
func (l *Leases) HoldWait(ctx context.Context, name string, limit time.Duration, fn func(context.Context, Lease) error) error {
	start := time.Now()
	for {
		err := l.Hold(ctx, name, fn)
		var held *HeldError
		if !errors.As(err, &held) || held.Name != name || time.Since(start) >= limit {
			return err
		}
		timer := time.NewTimer(waitStep)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// keep renews the lease until ctx ends, and cancels it once the lease is lost.
// An error of the connection is not yet a loss: the next renewal decides.
func (l *Leases) keep(ctx context.Context, lease Lease, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(l.ttl / renewals)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := l.renew(ctx, lease); errors.Is(err, ErrLost) {
				cancel(err)
				return
			}
		}
	}
}
