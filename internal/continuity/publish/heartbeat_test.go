package publish

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
)

// heartbeat is that of a process, over the transport.
func (w *world) heartbeat(tr *transport, p *primary.Primary, wake func()) *Heartbeat {
	w.Helper()
	tr.whole = hosted.NewPostgres(w.hosted)
	h, err := NewHeartbeat(HeartbeatOptions{
		Nodes: hosted.NewNodes(tr), Primary: p, NodeID: "primary", Instance: "i1",
		Logger: slog.New(slog.DiscardHandler), Wake: wake, Grace: time.Nanosecond,
	})
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) beat(h *Heartbeat) primary.State {
	w.Helper()
	if err := h.RunOnce(w.Context()); err != nil {
		w.Fatal(err)
	}
	s, err := h.Primary.State(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	woken := 0
	tr := &transport{}
	h := w.heartbeat(tr, w.p, func() { woken++ })
	fence := hosted.NewFence(hosted.NewPostgres(w.hosted))
	// beat beats once, and compares the primary's fence afterwards.
	beat := func(what string, epoch continuity.Epoch, mode continuity.Mode, closed bool, wakes int) {
		t.Helper()
		woken = 0
		if s := w.beat(h); s.Epoch != epoch || s.Mode != mode || s.Closed != closed || woken != wakes {
			t.Errorf("%s: %+v, woken %d times", what, s, woken)
		}
	}
	w.exec(w.primary, `update primary_fence set confirmed_at = '-infinity'`)
	beat("as it was", 1, continuity.Direct, false, 0)
	if s, _ := w.p.State(t.Context()); !s.Leased {
		t.Error("the lease was not renewed")
	}
	if m := scalar[string](w, w.hosted, `select mode from continuity_replication_state where node_id = 'primary' and role = 'primary'`); m != "primary" {
		t.Errorf("reported as %s", m)
	}
	if err := w.p.Close(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	beat("closed", 1, continuity.Direct, true, 1)
	if _, err := fence.ForceQueue(t.Context(), 1, "test", "outage"); err != nil {
		t.Fatal(err)
	}
	beat("the queue has opened", 2, continuity.Queue, false, 1)
	if m := scalar[string](w, w.hosted, `select mode from continuity_replication_state`); m != "degraded" {
		t.Errorf("reported as %s", m)
	}
	if _, err := fence.ForceDirect(t.Context(), 2, "test", "enough"); err != nil {
		t.Fatal(err)
	}
	beat("to open is the drainer's", 2, continuity.Queue, false, 1)
	w.adopt(3, continuity.Direct)
	beat("opened by the drainer", 3, continuity.Direct, false, 0)

	// Epochs that this primary has not seen: it may have been restored, which the
	// drainer tells by its epoch.
	for epoch := range continuity.Epoch(3) {
		flip := fence.ForceQueue
		if epoch == 1 {
			flip = fence.ForceDirect
		}
		if _, err := flip(t.Context(), 3+epoch, "test", "while the primary was away"); err != nil {
			t.Fatal(err)
		}
	}
	beat("epochs ahead", 3, continuity.Direct, true, 1)
	beat("and still", 3, continuity.Direct, true, 1)

	// The hosted database goes away.
	tr.call = func(int64, string, func() error) error { return continuity.ErrUnavailable }
	if err := w.p.Close(t.Context(), "start"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.RunOnce(t.Context()); !errors.Is(err, continuity.ErrUnavailable) {
			t.Error(err)
		}
	}
	if s, _ := w.p.State(t.Context()); s.Closed {
		t.Error("the policy lets local writes go on, and they do not")
	}
}

// TestStrictPrimaryStopsBeforeTheQueueOpens plays the worst case: enough edges do
// not reach a primary that is heard, and the primary loses the hosted database in
// the very moment in which they ask for the queue.
func TestStrictPrimaryStopsBeforeTheQueueOpens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const lease = 30 * time.Minute // The machine may stall.
	strict, err := primary.New(primary.Options{Pool: w.primary, Policy: primary.Strict, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	fence := hosted.NewFence(hosted.NewPostgres(w.hosted))
	h := w.heartbeat(&transport{}, strict, nil)
	// pass lets time pass on both sides.
	pass := func(d time.Duration) {
		t.Helper()
		w.exec(w.primary, `update primary_fence set confirmed_at = confirmed_at - $1::interval`, d)
		w.exec(w.hosted, `update continuity_replication_state set leased_until = leased_until - $1::interval where role = 'primary'`, d)
	}
	ask := func() error {
		_, err := fence.Open(t.Context(), 1, "no answer", "edge")
		return err
	}
	if s := w.beat(h); !s.Direct(primary.Strict) {
		t.Fatalf("%+v", s)
	}
	if err := ask(); !errors.Is(err, continuity.ErrNotYet) {
		t.Fatalf("the queue has opened while the primary writes: %v", err)
	}
	granted := scalar[time.Duration](w, w.hosted, `select leased_until - last_seen_at from continuity_replication_state where role = 'primary'`)
	if granted < lease+primary.WriteTimeout {
		t.Errorf("the queue may open %s after a heartbeat, when a write may still be under way", granted)
	}
	pass(lease - time.Minute)
	// It is heard, and takes no hope from that.
	if s := w.beat(h); !s.Direct(primary.Strict) {
		t.Errorf("a minute before the end: %+v", s)
	}
	if err := ask(); !errors.Is(err, continuity.ErrNotYet) {
		t.Fatalf("a minute before the end: %v", err)
	}
	pass(time.Minute)
	if s := w.beat(h); s.Direct(primary.Strict) {
		t.Errorf("direct writes outlast the lease: %+v", s)
	}
	pass(primary.WriteTimeout + time.Second)
	if err := ask(); err != nil {
		t.Errorf("the lease is over: %v", err)
	}
	if s := w.beat(h); s.Mode != continuity.Queue {
		t.Errorf("%+v", s)
	}
}

// TestStrictPrimaryOpensAtOnce after a start: the lease is there before the drainer
// has opened.
func TestStrictPrimaryOpensAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	strict, err := primary.New(primary.Options{Pool: w.primary, Policy: primary.Strict, Lease: 30 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(w.primary, `update primary_fence set confirmed_at = '-infinity', closed = true`)
	if s := w.beat(w.heartbeat(&transport{}, strict, nil)); !s.Closed || !s.Leased {
		t.Errorf("%+v", s)
	}
	if err := strict.Adopt(t.Context(), continuity.Fence{Epoch: 1, Mode: continuity.Direct}, time.Time{}, "the drainer"); err != nil {
		t.Fatal(err)
	}
	if s, err := strict.State(t.Context()); err != nil || !s.Direct(primary.Strict) {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestHeartbeatFindsHostedRestored within the epoch, where the fence looks as before.
func TestHeartbeatFindsHostedRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	woken := 0
	h := w.heartbeat(&transport{}, w.p, func() { woken++ })
	for range 3 {
		if s := w.beat(h); s.Closed || woken != 0 {
			t.Fatalf("%+v, woken %d times", s, woken)
		}
	}
	w.exec(w.hosted, `update continuity_replication_state set beats = 1`)
	if s := w.beat(h); !s.Closed || woken != 1 || s.Beats != 3 {
		t.Errorf("%+v, woken %d times", s, woken)
	}
	// By one beat less, too: the next was counted in what is forgotten.
	w.exec(w.primary, `update primary_fence set closed = false`)
	w.exec(w.hosted, `update continuity_replication_state set beats = 2`)
	if s := w.beat(h); !s.Closed || woken != 2 {
		t.Errorf("%+v, woken %d times", s, woken)
	}
}

// TestOvertakenHeartbeat: the answer that another replica's has overtaken is no
// sign of a restore.
func TestOvertakenHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.heartbeat(&transport{}, w.p, nil)
	h := w.heartbeat(&transport{call: func(_ int64, _ string, whole func() error) error {
		err := whole()
		w.beat(other)
		w.beat(other)
		return err
	}}, w.p, nil)
	if s := w.beat(h); s.Closed || s.Beats != 3 {
		t.Errorf("%+v", s)
	}
}
