package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// TestWrite is the table of where a command goes: the state of the primary, the
// fence, and the kind of command.
func TestWrite(t *testing.T) {
	t.Parallel()
	const none = router.Way("")
	up := func(*world) {}
	down := func(w *world) { w.primary.becomes(gone) }
	queue := func(w *world) { w.hosted.set(2, continuity.Queue); w.primary.set(2, continuity.Queue) }
	for _, c := range []struct {
		name        string
		given       []func(*world)
		commandType string
		way         router.Way
		code        contracts.ErrorCode
		queued      int
	}{
		{"direct", []func(*world){up}, essential, router.ByPrimary, "", 0},
		{"direct, not essential", []func(*world){up}, nonEssential, router.ByPrimary, "", 0},
		{"the primary is gone", []func(*world){down}, essential, router.ByQueue, "", 1},
		// It was asked, so that it may have happened.
		{"the primary is gone, not essential", []func(*world){down}, nonEssential, none, contracts.CodePrimaryFailure, 0},
		{"another edge opened the queue", []func(*world){up, queue}, essential, router.ByQueue, "", 1},
		{"another edge opened the queue, not essential", []func(*world){up, queue}, nonEssential, none, contracts.CodeNonEssentialRejected, 0},
		{"both", []func(*world){down, queue}, essential, router.ByQueue, "", 1},
		{"the primary drains", []func(*world){up, queue, func(w *world) { w.hosted.set(2, continuity.Catchup) }}, essential, router.ByQueue, "", 1},
		{"sealed", []func(*world){up, queue, func(w *world) { w.hosted.set(2, continuity.Sealed) }}, essential, none, contracts.CodeQueueFailure, 0},
		{"the queue may not be opened", []func(*world){down, func(w *world) { w.hosted.mayOpen = false }}, essential, none, contracts.CodePrimaryFailure, 0},
		// The hosted epoch rose, and the primary has not opened yet.
		{"the primary lags behind", []func(*world){func(w *world) { w.hosted.set(3, continuity.Direct); w.hosted.mayOpen = false }}, essential, none, contracts.CodePrimaryUnavailable, 0},
		{"the primary is closed", []func(*world){func(w *world) { w.primary.set(1, continuity.Queue); w.hosted.mayOpen = false }}, essential, none, contracts.CodePrimaryUnavailable, 0},
		{"the primary is closed and given up", []func(*world){func(w *world) { w.primary.set(1, continuity.Queue) }}, essential, router.ByQueue, "", 1},
		{"a newer epoch", []func(*world){func(w *world) { w.hosted.set(5, continuity.Direct); w.primary.set(5, continuity.Direct) }}, essential, router.ByPrimary, "", 0},
		{"both are gone", []func(*world){down, func(w *world) {
			w.hosted.fail = func(string) error { return continuity.ErrUnavailable }
		}}, essential, none, contracts.CodeQueueFailure, 0},
		{"the hosted schema is another", []func(*world){down, func(w *world) {
			w.hosted.fail = func(string) error { return continuity.ErrDrift }
		}}, essential, none, contracts.CodeQueueFailure, 0},
		{"the hosted database alone is gone", []func(*world){func(w *world) {
			w.hosted.fail = func(string) error { return continuity.ErrUnavailable }
		}}, essential, router.ByPrimary, "", 0},
		{"the queue finds it invalid", []func(*world){down, func(w *world) {
			w.hosted.fail = func(call string) error {
				if call == "enqueue" {
					return continuity.ErrInvalid
				}
				return nil
			}
		}}, essential, none, contracts.CodeInvalidCommand, 0},
		{"the primary finds it invalid", []func(*world){func(w *world) {
			w.primary.becomes(func(context.Context, string) error { return continuity.ErrInvalid })
		}}, essential, none, contracts.CodeInvalidCommand, 0},
		{"the primary finds it too large", []func(*world){func(w *world) {
			w.primary.becomes(func(context.Context, string) error { return continuity.ErrPayloadTooLarge })
		}}, essential, none, contracts.CodePayloadTooLarge, 0},
		{"the primary refuses", []func(*world){func(w *world) {
			w.primary.becomes(func(context.Context, string) error { return &router.RefusedError{Status: 409, Code: "conflict"} })
		}}, essential, none, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, given := range c.given {
				given(w)
			}
			cmd := command("k-1", c.commandType)
			written, err := w.Write(t.Context(), cmd)
			if written.Way != c.way || codeOf(err) != c.code || (err == nil) != (c.way != none) {
				t.Fatalf("%+v, %v", written, err)
			}
			if err == nil && (written.CommandID != cmd.CommandID || written.Deduplicated) {
				t.Errorf("%+v", written)
			}
			if n := w.hosted.queued(); n != c.queued {
				t.Errorf("%d queued", n)
			}
			if c.way == router.ByQueue && written.Status != contracts.CommandPending {
				t.Errorf("status %q", written.Status)
			}
		})
	}
}

// TestOpenCircuit asks the primary for nothing.
func TestOpenCircuit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, false)
	if written, err := w.Write(t.Context(), command("k-1", essential)); err != nil || written.Way != router.ByQueue {
		t.Errorf("%+v, %v", written, err)
	}
	if _, err := w.Write(t.Context(), command("k-2", nonEssential)); codeOf(err) != contracts.CodeNonEssentialRejected {
		t.Errorf("%v", err)
	}
	if n := w.primary.called("execute"); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// TestLateCommit: the primary commits, and its answer comes too late. The
// command is queued with the same key, and has one effect.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.primary.loses(func(ctx context.Context) error { return hangs(ctx, "") })
		start := time.Now()
		written, err := w.Write(t.Context(), command("k-1", essential))
		if err != nil || written.Way != router.ByQueue || time.Since(start) != router.DefaultWriteTimeout {
			t.Fatalf("%+v, %v after %s", written, err, time.Since(start))
		}
		if n := w.primary.effectsOf("k-1"); n != 1 {
			t.Fatalf("%d effects before the drain", n)
		}
		w.primary.loses(nil)
		w.drain(t)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, err := w.Write(t.Context(), command("k-1", essential))
		if err != nil || again.Way != router.ByPrimary || !again.Deduplicated || again.CommandID != written.CommandID {
			t.Errorf("again: %+v, %v", again, err)
		}
		if n := w.primary.effectsOf("k-1"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestTimeoutIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.primary.becomes(hangs)
		if _, err := w.Write(t.Context(), command("k-1", nonEssential)); codeOf(err) != contracts.CodePrimaryTimeout {
			t.Errorf("%v", err)
		}
		w.hosted.mayOpen = false
		_, err := w.Write(t.Context(), command("k-2", essential))
		if codeOf(err) != contracts.CodePrimaryTimeout || !errors.Is(err, continuity.ErrNotYet) {
			t.Errorf("%v", err)
		}
	})
}

// TestSameKey is one command, whichever way it goes.
func TestSameKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(t, false)
	first, err := w.Write(t.Context(), command("k-1", essential))
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.Write(t.Context(), command("k-1", essential))
	if err != nil || !again.Deduplicated || again.CommandID != first.CommandID || w.hosted.queued() != 1 {
		t.Errorf("%+v, %v, %d queued", again, err, w.hosted.queued())
	}
	other := command("k-1", essential)
	other.Payload = json.RawMessage(`{"total":"99.00"}`)
	if _, err := w.Write(t.Context(), other); codeOf(err) != contracts.CodeInvalidCommand || !errors.Is(err, continuity.ErrKeyReused) {
		t.Errorf("another payload: %v", err)
	}

	// A key that the queue knows has its receipt also when nothing new may enter.
	w.drain(t)
	w.hosted.mayOpen = false
	after, err := w.Write(t.Context(), command("k-1", essential))
	if err != nil || after.Way != router.ByQueue || after.Status != contracts.CommandAcked || !after.Deduplicated {
		t.Errorf("after the cutover: %+v, %v", after, err)
	}
}

// TestLostReply of the queue is asked for again, with the same key.
func TestLostReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.primary.becomes(gone)
	w.hosted.loseReplies = 1
	written, err := w.Write(t.Context(), command("k-1", essential))
	if err != nil || !written.Deduplicated || w.hosted.queued() != 1 {
		t.Errorf("%+v, %v, %d queued", written, err, w.hosted.queued())
	}
	w.hosted.fail = func(call string) error {
		if call == "enqueue" {
			return continuity.ErrOutcomeUnknown
		}
		return nil
	}
	if _, err := w.Write(t.Context(), command("k-2", essential)); codeOf(err) != contracts.CodeQueueFailure {
		t.Errorf("%v", err)
	}
}

// TestCutoverIsNoticed by an edge whose tunnel never failed, by commands of
// either kind.
func TestCutoverIsNoticed(t *testing.T) {
	t.Parallel()
	for _, commandType := range []string{essential, nonEssential} {
		w := newWorld(t)
		w.hosted.set(2, continuity.Queue)
		w.primary.set(2, continuity.Queue)
		if written, err := w.Write(t.Context(), command("k-1", essential)); err != nil || written.Way != router.ByQueue {
			t.Fatalf("%+v, %v", written, err)
		}
		w.drain(t)
		if written, err := w.Write(t.Context(), command("k-2", commandType)); err != nil || written.Way != router.ByPrimary {
			t.Errorf("%s: %+v, %v", commandType, written, err)
		}
		if fence, _ := w.FenceKnown(); fence.Epoch != 3 || fence.Mode != continuity.Direct {
			t.Errorf("%+v", fence)
		}
	}
}

// TestRecoveryWaitsForTheFence: the primary answers again, and commands still go
// into the queue until the cutover.
func TestRecoveryWaitsForTheFence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open(t, false)
		write := func(key string, want router.Way) {
			t.Helper()
			if written, err := w.Write(t.Context(), command(key, essential)); err != nil || written.Way != want {
				t.Fatalf("%+v, %v", written, err)
			}
			synctest.Wait()
		}
		write("k-1", router.ByQueue)
		w.primary.becomes(nil)
		<-time.After(breaker.DefaultOpenWindow)
		for _, key := range []string{"k-2", "k-3", "k-4", "k-5"} {
			write(key, router.ByQueue)
		}
		if state := w.State(); state != breaker.Recovering || w.primary.called("health") < breaker.DefaultRecoveryProbes {
			t.Errorf("%s after %d probes", state, w.primary.called("health"))
		}
		w.drain(t)
		// The queue tells it that the epoch is over. The probes have passed.
		write("k-6", router.ByPrimary)
		if state := w.State(); state != breaker.Primary {
			t.Errorf("%s after the cutover", state)
		}
		for _, key := range []string{"k-1", "k-2", "k-3", "k-4", "k-5", "k-6"} {
			if n := w.primary.effectsOf(key); n != 1 {
				t.Errorf("%s: %d effects", key, n)
			}
		}
	})
}

// TestCutoverEndsTheWindow of an edge that did not bring the cutover about: it
// probes as soon as it hears of it.
func TestCutoverEndsTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open(t, false)
		if written, err := w.Write(t.Context(), command("k-1", essential)); err != nil || written.Way != router.ByQueue {
			t.Fatalf("%+v, %v", written, err)
		}
		w.primary.becomes(nil)
		w.Observe(t.Context())
		synctest.Wait()
		if n := w.primary.called("health"); n != 0 {
			t.Fatalf("%d probes in the window, and no cutover", n)
		}
		w.drain(t)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range breaker.DefaultRecoveryProbes {
			w.Observe(t.Context())
			synctest.Wait()
		}
		if state := w.State(); state != breaker.Primary {
			t.Errorf("%s after the cutover", state)
		}
		if written, err := w.Write(t.Context(), command("k-2", essential)); err != nil || written.Way != router.ByPrimary {
			t.Errorf("%+v, %v", written, err)
		}
	})
}

// TestCutoverUnderWay: between the look at the fence and the queue's answer,
// direct writes were opened. The primary takes the command.
func TestCutoverUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hosted.set(2, continuity.Queue)
	w.primary.set(2, continuity.Queue)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.hosted.fail = func(call string) error {
		if call != "enqueue" {
			return nil
		}
		w.hosted.fence = continuity.Fence{Epoch: 3, Mode: continuity.Direct}
		w.primary.set(3, continuity.Direct)
		return continuity.ErrNotOpen
	}
	if written, err := w.Write(t.Context(), command("k-1", essential)); err != nil || written.Way != router.ByPrimary {
		t.Errorf("%+v, %v", written, err)
	}
	if w.hosted.opened != 0 {
		t.Error("it asked for the queue")
	}
}

// TestOlderSightOfTheFence: what was learnt of the fence is not forgotten for
// what somebody knew before, here a primary that has not heard of the outage.
func TestOlderSightOfTheFence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open(t, false)
		if written, err := w.Write(t.Context(), command("k-1", essential)); err != nil || written.Way != router.ByQueue {
			t.Fatalf("%+v, %v", written, err)
		}
		w.hosted.fail = func(string) error { return continuity.ErrUnavailable }
		w.primary.becomes(nil)
		<-time.After(breaker.DefaultOpenWindow)
		for range 2 * breaker.DefaultRecoveryProbes {
			w.Observe(t.Context())
			synctest.Wait()
		}
		if fence, _ := w.FenceKnown(); fence.Epoch != 2 || fence.Mode != continuity.Queue {
			t.Errorf("%+v", fence)
		}
		if state := w.State(); state != breaker.Recovering {
			t.Errorf("%s", state)
		}
	})
}

// TestBrokenSeal: a queue that stays sealed is opened again by whoever needs it.
func TestBrokenSeal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hosted.set(2, continuity.Sealed)
		w.primary.becomes(gone)
		write := func(key string) error {
			_, err := w.Write(t.Context(), command(key, essential))
			return err
		}
		w.hosted.mayBreak = true
		err := write("k-1")
		if codeOf(err) != contracts.CodeQueueFailure || !errors.Is(err, continuity.ErrSealed) {
			t.Fatalf("%v", err)
		}
		var refusal *router.Refusal
		if errors.As(err, &refusal); refusal.RetryAfter <= 0 || refusal.RetryAfter > 5*time.Second {
			t.Errorf("retry after %s", refusal.RetryAfter)
		}
		<-time.After(router.SealPatience)
		w.hosted.mayBreak = false
		if err := write("k-1"); !errors.Is(err, continuity.ErrNotYet) || codeOf(err) != contracts.CodeQueueFailure {
			t.Fatalf("%v", err)
		}
		w.hosted.mayBreak = true
		if err := write("k-1"); err != nil || w.hosted.queued() != 1 {
			t.Fatalf("%v, %d queued", err, w.hosted.queued())
		}
		// Another seal has its own time.
		w.hosted.set(2, continuity.Sealed)
		if err := write("k-2"); !errors.Is(err, continuity.ErrSealed) {
			t.Errorf("%v", err)
		}
	})
}

// TestSealOfAnEpochThatIsOver: the queue's word that it is sealed comes late,
// when the cutover is known, and the hosted database says nothing more.
func TestSealOfAnEpochThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hosted.set(2, continuity.Sealed)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.hosted.fail = func(call string) error {
		if call != "enqueue" {
			return continuity.ErrUnavailable
		}
		w.primary.set(3, continuity.Direct)
		w.Observe(t.Context())
		return continuity.ErrSealed
	}
	written, err := w.Write(t.Context(), command("k-1", essential))
	if err != nil || written.Way != router.ByPrimary {
		t.Errorf("%+v, %v", written, err)
	}
	if fence, _ := w.FenceKnown(); fence.Epoch != 3 || fence.Mode != continuity.Direct {
		t.Errorf("%+v", fence)
	}
}

// TestBrokenSealThatThePrimaryHasNotHeardOf: a drainer has sealed the queue and
// stopped, and the primary that answers says what it knew before.
func TestBrokenSealThatThePrimaryHasNotHeardOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hosted.set(2, continuity.Sealed)
		w.primary.set(2, continuity.Catchup)
		w.hosted.mayBreak = true
		for range 3 {
			_, err := w.Write(t.Context(), command("k-1", essential))
			if err == nil {
				break
			}
			if !errors.Is(err, continuity.ErrSealed) {
				t.Fatal(err)
			}
			<-time.After(router.SealPatience - time.Second)
			w.Observe(t.Context())
		}
		if w.hosted.queued() != 1 {
			t.Error("the seal stays")
		}
	})
}

// TestManyAtOnce open the queue once.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.primary.becomes(hangs)
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() {
				if written, err := w.Write(t.Context(), command(string(rune('a'+i)), essential)); err != nil || written.Way != router.ByQueue {
					t.Errorf("%+v, %v", written, err)
				}
			})
		}
		group.Wait()
		if fence := w.hosted.now(); w.hosted.queued() != 50 || fence.Epoch != 2 {
			t.Errorf("%d queued in %+v", w.hosted.queued(), fence)
		}
	})
}

func TestPayloadLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cmd := command("k-1", essential)
	cmd.Payload = json.RawMessage(`"` + strings.Repeat("x", contracts.MaxCommandPayloadBytes-2) + `"`)
	if _, err := w.Write(t.Context(), cmd); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	cmd.Payload = append(cmd.Payload, ' ')
	if _, err := w.Write(t.Context(), cmd); codeOf(err) != contracts.CodePayloadTooLarge {
		t.Errorf("over it: %v", err)
	}
}

func TestHungUpWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.primary.becomes(hangs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.Write(ctx, command("k-1", essential)); !errors.Is(err, context.DeadlineExceeded) || codeOf(err) != "" {
			t.Errorf("%v", err)
		}
		if n := w.hosted.queued(); n != 0 {
			t.Errorf("%d queued for a client that does not know", n)
		}
		if n := w.series(t)[`continuity_writes_total{outcome="hung_up"}`]; n != 1 {
			t.Errorf("%v counted", n)
		}
	})
}

// TestLookingOn sends everything to the primary. A shadow counts what would have
// been done, and its breaker is the real one's.
func TestLookingOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*router.Options)
		state  breaker.State
		looked bool
	}{
		{"shadow", func(o *router.Options) { o.Shadow = true }, breaker.Degraded, true},
		{"pass through", func(o *router.Options) {
			o.PassThrough = true
			o.Queue, o.Snapshots, o.Fence = nil, nil, nil
		}, breaker.Primary, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.change)
			w.hosted.set(4, continuity.Direct)
			w.primary.set(4, continuity.Direct)
			if written, err := w.Write(t.Context(), command("k-0", nonEssential)); err != nil || written.Way != router.ByPrimary {
				t.Fatalf("%+v, %v", written, err)
			}
			w.hosted.set(5, continuity.Queue) // By an edge of a later phase.
			w.primary.becomes(gone)
			for range breaker.DefaultFailureThreshold {
				if _, err := w.Write(t.Context(), command("k-1", essential)); codeOf(err) != contracts.CodePrimaryFailure {
					t.Errorf("%v", err)
				}
				if _, err := w.Read(t.Context(), "menu"); codeOf(err) != contracts.CodePrimaryFailure {
					t.Errorf("%v", err)
				}
			}
			if state := w.State(); state != c.state || w.hosted.queued() != 0 || w.hosted.opened != 0 || w.hosted.looked > 0 != c.looked {
				t.Errorf("%s, %d queued, %d opened, %d looks at the fence", state, w.hosted.queued(), w.hosted.opened, w.hosted.looked)
			}
			// However open the circuit is, the primary is asked.
			w.primary.becomes(nil)
			if view, err := w.Read(t.Context(), "menu"); err != nil || view.Stale {
				t.Errorf("%+v, %v", view, err)
			}
			if got := w.series(t)[`continuity_shadow_total{would="queue"}`]; (got > 0) != c.looked {
				t.Errorf("%v would have been queued", got)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, _ = w.Write(t.Context(), command("k-0", nonEssential))
	w.open(t, false)
	_, _ = w.Write(t.Context(), command("k-1", essential))
	_, _ = w.Write(t.Context(), command("k-2", nonEssential))
	got := w.series(t)
	for series, want := range map[string]float64{
		`continuity_circuit_state`:                                  1,
		`continuity_epoch`:                                          2,
		`continuity_fence_mode{mode="DIRECT"}`:                      0,
		`continuity_fence_mode{mode="QUEUE"}`:                       1,
		`continuity_writes_total{outcome="primary"}`:                1,
		`continuity_writes_total{outcome="queued"}`:                 1,
		`continuity_writes_total{outcome="non_essential_rejected"}`: 1,
		`continuity_reads_total{source="none"}`:                     3,
	} {
		if value, ok := got[series]; !ok || value != want {
			t.Errorf("%s is %v, want %v", series, value, want)
		}
	}
}
