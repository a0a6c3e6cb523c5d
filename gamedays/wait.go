package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

const (
	// patience bounds every wait, unless its place says otherwise.
	patience = 90 * time.Second
	// look is the time between two looks.
	look = 50 * time.Millisecond
)

// until looks until it is so, and fails after the patience. An error ends it.
func until(ctx context.Context, what string, so func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("not within "+patience.String()))
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		is, err := so(ctx)
		if is {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
		}
	}
}

// pause lets time pass, where time itself is what is tried.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func isErrno(err error, want syscall.Errno) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && errno == want
}
