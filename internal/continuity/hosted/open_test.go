package hosted_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// hear makes the primary heard.
func (w *world) hear() {
	w.Helper()
	must[hosted.Grant](w)(w.nodes.Beat(w.Context(), hosted.Heartbeat{
		NodeID: "primary-1", Role: hosted.RolePrimary, Mode: contracts.ModePrimary, Instance: "p1",
	}))
}

// see is a report of an edge that reaches the primary.
func (w *world) see(edge string) {
	w.Helper()
	must[hosted.Grant](w)(w.nodes.Beat(w.Context(), hosted.Heartbeat{
		NodeID: edge, Role: hosted.RoleEdge, Mode: contracts.ModePrimary, Instance: edge,
	}))
}

// wantWaiting fails unless the edge is told to wait for it, with the fence as it is.
func (w *world) wantWaiting(instance, what string) {
	w.Helper()
	before := w.state()
	state, err := w.fence.Open(w.Context(), before.Epoch, "no answer", instance)
	w.wantErr(err, continuity.ErrNotYet)
	if !strings.HasSuffix(err.Error(), "waiting for "+what) || state.Epoch != before.Epoch || state.Mode != continuity.Direct {
		w.Errorf("the error is %v, the fence %+v", err, state)
	}
}

// TestOneEdgeIsNotBelievedAgainstThePrimary: it may have lost its own tunnel only.
func TestOneEdgeIsNotBelievedAgainstThePrimary(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		w.see("edge-2")
		for range 3 {
			w.wantWaiting("edge-1", "reports") // However often it says so.
		}
		if s := must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-2")); s.Mode != continuity.Queue {
			t.Errorf("two edges: %+v", s)
		}
	})
}

// TestOnlyEdgeIsBelieved: there is nobody else who could say so. Edges of the past are nobody.
func TestOnlyEdgeIsBelieved(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		w.see("edge-2")
		w.exec(`update continuity_replication_state set last_seen_at = now() - interval '11 minutes' where role = 'edge'`)
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-1"))
		w.wantFence(2, continuity.Queue)
	})
}

func TestSilentPrimaryIsEnough(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		w.see("edge-2")
		w.wantWaiting("edge-1", "reports")
		w.exec(`update continuity_replication_state set last_seen_at = now() - interval '16 seconds' where role = 'primary'`)
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-1"))
		w.wantFence(2, continuity.Queue)
	})
}

// TestReportsOfThePastDoNotCount: neither those of edges that have been silent since, nor of those that see the primary.
func TestReportsOfThePastDoNotCount(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		w.see("edge-2")
		w.wantWaiting("edge-1", "reports")
		w.exec(`update continuity_replication_state set last_seen_at = now() - interval '31 seconds' where node_id = 'edge-1'`)
		w.wantWaiting("edge-2", "reports")
		w.see("edge-2")
		w.wantWaiting("edge-3", "reports")
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-2"))
		w.wantFence(2, continuity.Queue)
	})
}

// lease is a beat of a primary that writes under a lease alone.
func (w *world) lease() hosted.Grant {
	w.Helper()
	return must[hosted.Grant](w)(w.nodes.Beat(w.Context(), hosted.Heartbeat{
		NodeID: "primary-1", Role: hosted.RolePrimary, Mode: contracts.ModePrimary, Instance: "p1", Lease: 14 * time.Minute,
	}))
}

// TestQueueWaitsForTheLease of a primary that asks for one, however many edges do not reach it; and it gets no other from
// the time on when they are enough.
func TestQueueWaitsForTheLease(t *testing.T) {
	eachTransport(t, func(w *world) {
		ends := func() time.Time {
			return scan[time.Time](w, `select leased_until from continuity_replication_state where role = 'primary'`)
		}
		w.see("edge-2")
		if !w.lease().Leased {
			t.Fatal("the first lease is refused")
		}
		w.wantWaiting("edge-1", "reports")
		first := ends()
		if !w.lease().Leased || !ends().After(first) {
			t.Error("one edge of two ends a lease")
		}
		w.wantWaiting("edge-2", "lease")
		last := ends()
		if grant := w.lease(); grant.Leased || grant.Mode != continuity.Direct || !ends().Equal(last) {
			t.Errorf("a lease is given while the queue is asked for: %+v", grant)
		}
		// It is not heard any more, and may write all the same.
		w.exec(`update continuity_replication_state set last_seen_at = now() - interval '1 hour' where role = 'primary'`)
		w.wantWaiting("edge-1", "lease")
		w.exec(`update continuity_replication_state set leased_until = now() where role = 'primary'`)
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-1"))
		w.wantFence(2, continuity.Queue)
		if !w.lease().Leased {
			t.Error("a primary that drains is given none for the time behind the cutover")
		}
	})
}

// TestLeaseComesBack when edges reach the primary again, and lasts while the dwell time keeps the queue closed. One that
// asks for none any more is waited for no more.
func TestLeaseComesBack(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.lease()
		w.wantWaiting("edge-1", "lease")
		w.exec(`update continuity_fence set dwell_until = now() + interval '1 minute'`)
		if !w.lease().Leased {
			t.Error("it is refused although the queue cannot open")
		}
		w.exec(`update continuity_fence set dwell_until = null`)
		if w.lease().Leased {
			t.Error("it is given although the queue can open")
		}
		w.see("edge-1")
		if !w.lease().Leased {
			t.Error("the edge reaches the primary again, and the lease is refused")
		}
		w.hear()
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-1"))
		w.wantFence(2, continuity.Queue)
	})
}

// TestLeaseAndOpeningAtOnce: whoever comes second sees what the first has done.
func TestLeaseAndOpeningAtOnce(t *testing.T) {
	t.Run("the lease first", func(t *testing.T) {
		w := direct(t)
		tx := w.begin()
		if _, err := tx.Exec(t.Context(), `select continuity_heartbeat('p', 'primary', 'primary', 0, 'p', 840)`); err != nil {
			t.Fatal(err)
		}
		opened := later(func() (hosted.FenceState, error) { return w.fence.Open(t.Context(), 1, "no answer", "edge-1") })
		w.waiting(1)
		w.commit(tx)
		_, err := opened()
		w.wantErr(err, continuity.ErrNotYet)
		w.wantFence(1, continuity.Direct)
	})
	t.Run("the opening first", func(t *testing.T) {
		w := direct(t)
		tx := w.begin()
		if _, err := tx.Exec(t.Context(), `select continuity_open_epoch(1, 'no answer', 'edge-1')`); err != nil {
			t.Fatal(err)
		}
		grant := later(func() (hosted.Grant, error) {
			return w.nodes.Beat(t.Context(), hosted.Heartbeat{NodeID: "p", Role: hosted.RolePrimary, Mode: contracts.ModePrimary, Instance: "p", Lease: time.Second})
		})
		w.waiting(1)
		w.commit(tx)
		if g, err := grant(); err != nil || g.Mode != continuity.Queue {
			t.Errorf("%+v, %v", g, err)
		}
	})
}

func TestOnlyAnEdgeOpens(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		_, err := w.fence.Open(t.Context(), 1, "no answer", "primary-1")
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.fence.Open(t.Context(), 1, "", "edge-1")
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.fence.Open(t.Context(), 1, "no answer", "")
		w.wantErr(err, continuity.ErrInvalid)
		w.wantFence(1, continuity.Direct)
	})
}

// TestDwellDoublesWhileTheTunnelFlaps plays outages that follow each other closely, and then one after a calm.
func TestDwellDoublesWhileTheTunnelFlaps(t *testing.T) {
	w := direct(t)
	outage := func(epoch continuity.Epoch) time.Duration {
		t.Helper()
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), epoch, "no answer", "edge-1"))
		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), epoch+1, 1))
		sealed := must[hosted.FenceState](w)(w.fence.Seal(t.Context(), epoch+1, 1))
		proof := must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), epoch+1, 1, *sealed.HighWaterMark, hosted.Attestation{}))
		return proof.Fence.Dwell.Duration()
	}
	pass := func() { w.exec(`update continuity_fence set dwell_until = now()`) }
	for i, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
		if dwell := outage(continuity.Epoch(1 + 2*i)); dwell != want*time.Second {
			t.Errorf("after outage %d direct writes stay open for %v, want %v s", i+1, dwell, want)
		}
		w.exec(`update continuity_fence set dwell_until = dwell_until + interval '1 hour'`) // However long it takes until the next call.
		w.wantWaiting("edge-1", "dwell")
		pass()
	}
	w.exec(`update continuity_fence set direct_since = now() - interval '11 minutes'`)
	if dwell := outage(13); dwell != 5*time.Second {
		t.Errorf("after a calm they stay open for %v", dwell)
	}
	// A person does not wait.
	must[hosted.FenceState](w)(w.fence.ForceQueue(t.Context(), 15, "ana", "x"))
}

func TestConditionsAreSettings(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.hear()
		w.see("edge-3")
		must[hosted.FenceState](w)(w.fence.Configure(t.Context(), hosted.FenceSettings{MinReports: 3, Dwell: 7 * time.Second}))
		w.wantWaiting("edge-1", "reports")
		w.wantWaiting("edge-2", "reports")
		must[hosted.FenceState](w)(w.fence.Configure(t.Context(), hosted.FenceSettings{MinReports: 1}))
		must[hosted.FenceState](w)(w.fence.Open(t.Context(), 1, "no answer", "edge-1"))
		must[hosted.FenceState](w)(w.fence.Configure(t.Context(), hosted.FenceSettings{Stale: 30 * time.Second, SealLimit: time.Minute}))
		got := scan[string](w, `select concat_ws(' ', min_reports, stale_seconds, dwell_seconds, seal_limit_seconds) from continuity_fence`)
		if got != "1 30 7 60" {
			t.Errorf("the settings are %s", got)
		}
		_, err := w.fence.Configure(t.Context(), hosted.FenceSettings{MinReports: -1})
		w.wantErr(err, continuity.ErrInvalid)
	})
}

// TestTwoEdgesOpenAtOnce holds the fence so that all of them stand at the gate, and lets go.
func TestTwoEdgesOpenAtOnce(t *testing.T) {
	eachTransport(t, func(w *world) {
		const edges = 4
		tx := w.begin()
		if _, err := tx.Exec(t.Context(), `select continuity_lock_fence_shared()`); err != nil {
			t.Fatal(err)
		}
		type result struct {
			state hosted.FenceState
			err   error
		}
		results := make(chan result, edges)
		for i := range edges {
			go func() {
				s, err := w.fence.Open(t.Context(), 1, "no answer", fmt.Sprint("edge-", i))
				results <- result{s, err}
			}()
		}
		w.waiting(edges)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range edges {
			if r := <-results; r.err != nil || r.state.Epoch != 2 || r.state.Mode != continuity.Queue {
				t.Errorf("%+v", r)
			}
		}
		if n := scan[int](w, `select count(*) from continuity_epochs where event = 'open'`); n != 1 {
			t.Errorf("it was opened %d times", n)
		}
		if n := scan[int](w, `select count(*) from continuity_replication_state where role = 'edge'`); n != edges {
			t.Errorf("%d edges are known", n)
		}
	})
}
