package hosted_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// held is a transport whose calls wait until the test lets them go.
type held struct {
	hosted.Transport
	calls chan heldCall
}

type heldCall struct {
	function string
	args     map[string]any
	// proceed is given nil, or the error that the call ends with.
	proceed chan error
}

func (h *held) Call(ctx context.Context, function string, args map[string]any, into any) error {
	call := heldCall{function, args, make(chan error)}
	h.calls <- call
	if err := <-call.proceed; err != nil {
		return err
	}
	return h.Transport.Call(ctx, function, args, into)
}

// TestCommandsGatherWhileCallsAreUnderWay: what came meanwhile shares one call, and each has its own receipt.
func TestCommandsGatherWhileCallsAreUnderWay(t *testing.T) {
	w := direct(t)
	w.openQueue()
	h := &held{w.transport, make(chan heldCall)}
	intake := hosted.NewIntake(hosted.NewQueue(h))
	var (
		wait  sync.WaitGroup
		alone []heldCall
	)
	enqueue := func(key string) {
		wait.Go(func() {
			c := order(key, key)
			receipt, err := intake.Enqueue(t.Context(), c, 0)
			if err != nil || receipt.CommandID != c.CommandID {
				t.Errorf("%s: %+v, %v", key, receipt, err)
			}
		})
	}
	for i := range hosted.IntakeCalls {
		enqueue(fmt.Sprint("alone ", i))
		call := <-h.calls
		if call.function != "continuity_enqueue" {
			t.Errorf("who comes alone calls %s", call.function)
		}
		alone = append(alone, call)
	}
	const more = 30
	for i := range more {
		enqueue(fmt.Sprint("more ", i))
	}
	for intake.Waiting() < more {
		runtime.Gosched()
	}
	close(alone[0].proceed)
	call := <-h.calls
	if call.function != "continuity_enqueue_commands" {
		t.Errorf("who came meanwhile calls %s", call.function)
	}
	close(call.proceed)
	for _, call := range alone[1:] {
		close(call.proceed)
	}
	wait.Wait()
	if n := scan[int](w, `select count(*) from continuity_commands`); n != hosted.IntakeCalls+more {
		t.Errorf("%d commands", n)
	}
}

// TestAnIntakeWhoseCallFails tells everybody who shared it, and goes on.
func TestAnIntakeWhoseCallFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{calls: make(chan heldCall)}
		intake := hosted.NewIntake(hosted.NewQueue(h))
		errs := make(chan error, 10)
		for range cap(errs) {
			go func() {
				_, err := intake.Enqueue(t.Context(), order("k", "o"), 0)
				errs <- err
			}()
		}
		synctest.Wait()
		for len(errs) < cap(errs) {
			(<-h.calls).proceed <- continuity.ErrOutcomeUnknown
			synctest.Wait()
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, continuity.ErrOutcomeUnknown) {
				t.Errorf("the error is %v", err)
			}
		}
	})
}

// TestWhoLeavesAnIntake is told what may have happened to the command.
func TestWhoLeavesAnIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &held{calls: make(chan heldCall)}
		intake := hosted.NewIntake(hosted.NewQueue(h))
		leave := func(key string) error {
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error)
			go func() {
				_, err := intake.Enqueue(ctx, order(key, "o"), 0)
				left <- err
			}()
			synctest.Wait()
			cancel()
			return <-left
		}
		var calls []heldCall
		for range hosted.IntakeCalls {
			got := make(chan heldCall, 1)
			go func() { got <- <-h.calls }()
			if err := leave("sent"); !errors.Is(err, continuity.ErrOutcomeUnknown) {
				t.Errorf("who was sent is told %v", err)
			}
			calls = append(calls, <-got)
		}
		err := leave("not sent")
		if !errors.Is(err, continuity.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("who was not sent is told %v", err)
		}
		if n := intake.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
		for _, call := range calls {
			call.proceed <- continuity.ErrUnavailable
		}
	})
}
