package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

func TestReadFromPrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	view, err := w.Read(t.Context(), "menu")
	if err != nil || view.Stale || view.Mode != contracts.ModePrimary || string(view.Data) != `{"fresh":"menu"}` {
		t.Errorf("%+v, %v", view, err)
	}
}

// TestReadFallsBack to the snapshot when its time is up, and says so from the
// first time on.
func TestReadFallsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		published := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		w.hosted.snapshots["menu"] = router.Snapshot{Payload: json.RawMessage(`{"old":true}`), PublishedAt: published, Age: time.Minute}
		w.primary.becomes(hangs)

		for i, want := range []struct {
			elapsed time.Duration
			mode    contracts.ReplicationMode
			state   breaker.State
		}{
			{router.DefaultReadTimeout, contracts.ModeDegraded, breaker.Primary},
			{router.DefaultReadTimeout, contracts.ModeDegraded, breaker.Primary},
			{router.DefaultReadTimeout, contracts.ModeDegraded, breaker.Degraded},
			{0, contracts.ModeDegraded, breaker.Degraded},
		} {
			start := time.Now()
			view, err := w.Read(t.Context(), "menu")
			if err != nil || !view.Stale || view.Mode != want.mode || string(view.Data) != `{"old":true}` ||
				view.Age != time.Minute || !view.SnapshotAt.Equal(published) {
				t.Errorf("read %d: %+v, %v", i, view, err)
			}
			if elapsed := time.Since(start); elapsed != want.elapsed {
				t.Errorf("read %d took %s, want %s", i, elapsed, want.elapsed)
			}
			if state := w.State(); state != want.state {
				t.Errorf("read %d: %s, want %s", i, state, want.state)
			}
		}
		if n := w.primary.called("read"); n != 3 {
			t.Errorf("the primary was asked %d times", n)
		}
		<-time.After(breaker.DefaultOpenWindow)
		if view, err := w.Read(t.Context(), "menu"); err != nil || view.Mode != contracts.ModeRecovering {
			t.Errorf("%+v, %v", view, err)
		}
	})
}

func TestReadWithoutSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.primary.becomes(gone)
	if _, err := w.Read(t.Context(), "menu"); codeOf(err) != contracts.CodeSnapshotMiss || !errors.Is(err, errRefused) {
		t.Errorf("%v", err)
	}
	w.hosted.fail = func(string) error { return continuity.ErrUnavailable }
	if _, err := w.Read(t.Context(), "menu"); codeOf(err) != contracts.CodeSnapshotFailure || !errors.Is(err, continuity.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// TestWhatIsAFailure is the table of what opens the breaker.
func TestWhatIsAFailure(t *testing.T) {
	t.Parallel()
	const asItIs = contracts.ErrorCode("")
	for _, c := range []struct {
		err   error
		opens bool
		code  contracts.ErrorCode // What the caller is told.
	}{
		{errRefused, true, contracts.CodeSnapshotMiss},
		{context.DeadlineExceeded, true, contracts.CodeSnapshotMiss},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), true, contracts.CodeSnapshotMiss},
		{context.Canceled, true, contracts.CodeSnapshotMiss}, // Of the primary's side: no client has hung up.
		{continuity.ErrUnavailable, true, contracts.CodeSnapshotMiss},
		{continuity.ErrOutcomeUnknown, true, contracts.CodeSnapshotMiss},
		{errors.New("502 from a proxy"), true, contracts.CodeSnapshotMiss},

		{router.ErrNotFound, false, asItIs},
		{router.ErrDenied, false, contracts.CodePrimaryFailure},
		{&router.RefusedError{Status: 409, Code: "conflict"}, false, asItIs},
		{fmt.Errorf("read: %w", &router.RefusedError{Status: 400, Code: "bad"}), false, asItIs},
		{continuity.ErrKeyReused, false, contracts.CodeInvalidCommand},
		{continuity.ErrInvalid, false, contracts.CodeInvalidCommand},
		{continuity.ErrPayloadTooLarge, false, contracts.CodePayloadTooLarge},
		{continuity.ErrUnknownCommand, false, asItIs},
		{continuity.ErrNotOpen, false, contracts.CodeSnapshotMiss},
		{continuity.ErrSealed, false, contracts.CodeSnapshotMiss},
		{continuity.ErrNotYet, false, asItIs},
		{&continuity.StaleEpochError{Current: 7}, false, contracts.CodeSnapshotMiss},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.primary.becomes(func(context.Context, string) error { return c.err })
			for range breaker.DefaultFailureThreshold {
				if _, err := w.Read(t.Context(), "menu"); !errors.Is(err, c.err) || codeOf(err) != c.code {
					t.Errorf("error %v", err)
				}
			}
			if opened := w.State() != breaker.Primary; opened != c.opens {
				t.Errorf("opened %v", opened)
			}
		})
	}
}

// TestPanicIsNoFailure of the primary; it is one of this program, which the
// caller must hear of.
func TestPanicIsNoFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.primary.becomes(func(context.Context, string) error { panic("bug") })
	for range breaker.DefaultFailureThreshold {
		if _, err := w.Read(t.Context(), "menu"); err == nil || codeOf(err) != "" {
			t.Errorf("%v", err)
		}
	}
	if state := w.State(); state != breaker.Primary {
		t.Errorf("%s", state)
	}
}

// TestHangUps are no failures, and do not hide that the primary hangs.
func TestHangUps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		down func(context.Context, string) error
		want breaker.State
	}{
		"of a primary that hangs": {hangs, breaker.Degraded},
		"of a primary that is slow": {func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second):
				return nil
			}
		}, breaker.Primary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.primary.becomes(c.down)
				for range breaker.DefaultFailureThreshold {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					start := time.Now()
					_, err := w.Read(ctx, "menu")
					if !errors.Is(err, context.DeadlineExceeded) || codeOf(err) != "" || time.Since(start) != time.Millisecond {
						t.Errorf("%v after %s", err, time.Since(start))
					}
					cancel()
				}
				if state := w.State(); state != breaker.Primary {
					t.Errorf("%s at once", state)
				}
				<-time.After(router.DefaultReadTimeout)
				synctest.Wait()
				if state := w.State(); state != c.want {
					t.Errorf("%s in the end, want %s", state, c.want)
				}
			})
		})
	}
}

// TestProbes go beside the calls that find them due, one at a time, and no call
// of a client is one.
func TestProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hosted.snapshots["menu"] = router.Snapshot{Payload: json.RawMessage(`{}`)}
		w.open(t, true)
		reads := w.primary.called("read")
		read := func() router.View {
			t.Helper()
			start := time.Now()
			view, err := w.Read(t.Context(), "menu")
			if err != nil || time.Since(start) != 0 {
				t.Fatalf("%v after %s", err, time.Since(start))
			}
			return view
		}

		w.primary.becomes(hangs)
		for range 5 {
			read()
		}
		synctest.Wait()
		if n := w.primary.called("health"); n != 1 {
			t.Errorf("%d probes at once", n)
		}
		<-time.After(router.DefaultReadTimeout)
		synctest.Wait()
		if state := w.State(); state != breaker.Degraded {
			t.Errorf("%s after a probe that hung", state)
		}

		<-time.After(breaker.DefaultOpenWindow)
		w.primary.becomes(func(context.Context, string) error { panic("bug") })
		read()
		synctest.Wait()
		w.primary.becomes(nil)
		for i, want := range []breaker.State{breaker.Recovering, breaker.Primary} {
			if view := read(); !view.Stale || view.Mode != contracts.ModeRecovering {
				t.Errorf("%+v", view)
			}
			synctest.Wait()
			if state := w.State(); state != want {
				t.Errorf("%s after %d probes that passed", state, i+1)
			}
		}
		if n := w.primary.called("read"); n != reads {
			t.Errorf("%d reads were probes", n-reads)
		}
		if view := read(); view.Stale {
			t.Errorf("%+v", view)
		}
	})
}

// TestSlowProbesCount, also when the hosted database hangs and each takes longer
// than any part of it may.
func TestSlowProbesCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *router.Options) { o.Fence = slowFence{} })
		w.open(t, true)
		w.primary.becomes(func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(router.DefaultReadTimeout - time.Millisecond):
				return nil
			}
		})
		// As many calls as there are find that a probe is due.
		for range 60 {
			w.Observe(t.Context())
			<-time.After(time.Second)
		}
		if state := w.State(); state != breaker.Primary {
			t.Errorf("%s after a minute of probes that pass", state)
		}
	})
}

// slowFence takes all the time that there is, and says nothing.
type slowFence struct{ router.Fence }

func (slowFence) State(ctx context.Context) (continuity.Fence, error) {
	<-ctx.Done()
	return continuity.Fence{}, continuity.ErrUnavailable
}

// TestObserve recovers without anybody's call.
func TestObserve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open(t, true)
		w.primary.becomes(nil)
		for range breaker.DefaultRecoveryProbes {
			w.Observe(t.Context())
			synctest.Wait()
		}
		w.Observe(t.Context())
		if state := w.State(); state != breaker.Primary {
			t.Errorf("%s", state)
		}
	})
}

// TestCloseEndsProbes that are under way, as no failure.
func TestCloseEndsProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.open(t, true)
		w.primary.becomes(hangs)
		w.Observe(t.Context())
		synctest.Wait()
		start := time.Now()
		w.Close()
		if time.Since(start) != 0 || w.State() != breaker.Recovering {
			t.Errorf("%s after %s", w.State(), time.Since(start))
		}
	})
}
