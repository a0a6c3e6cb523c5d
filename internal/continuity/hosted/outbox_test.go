package hosted_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

func event(name, aggregate string) hosted.Event {
	return hosted.Event{
		EventID:       uuid.New(),
		EventType:     name,
		AggregateType: "order",
		AggregateID:   aggregate,
		Payload:       json.RawMessage(`{"status": "paid"}`),
		Epoch:         1,
	}
}

func (w *world) claimEvents() []hosted.EventClaim {
	w.Helper()
	return must[[]hosted.EventClaim](w)(w.outbox.Claim(w.Context(), "subscriber", 100, time.Minute))
}

func names(claims []hosted.EventClaim) []string {
	list := []string{}
	for _, c := range claims {
		list = append(list, c.EventType)
	}
	return list
}

func TestEventGoesThroughTheOutbox(t *testing.T) {
	eachTransport(t, func(w *world) {
		sent := event("a1", "a")
		receipt := must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), sent))
		if receipt.EventID != sent.EventID || receipt.Deduplicated || receipt.Status != contracts.OutboxPending {
			t.Errorf("the receipt is %+v", receipt)
		}
		if again := must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), sent)); !again.Deduplicated || again.Sequence != receipt.Sequence {
			t.Errorf("the second receipt is %+v", again)
		}
		other := sent
		other.Payload = json.RawMessage(`{"status": "cancelled"}`)
		_, err := w.outbox.Publish(t.Context(), other)
		w.wantErr(err, continuity.ErrKeyReused)
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("a2", "a")))
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("b1", "b")))

		claims := w.claimEvents()
		if got := names(claims); !slices.Equal(got, []string{"a1", "b1"}) {
			t.Fatalf("claimed %v", got)
		}
		if c := claims[0]; c.EventID != sent.EventID || c.Epoch != 1 || c.AggregateID != "a" || !sameJSON(t, c.Payload, sent.Payload) {
			t.Errorf("the claim is %+v", c)
		}
		for range 2 {
			if err := w.outbox.Ack(t.Context(), claims[0].EventID, claims[0].Token); err != nil {
				t.Fatal(err)
			}
		}
		if got := names(w.claimEvents()); !slices.Equal(got, []string{"a2"}) {
			t.Errorf("claimed %v", got)
		}
	})
}

func TestEventIsTriedEightTimes(t *testing.T) {
	eachTransport(t, func(w *world) {
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("a1", "a")))
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("a2", "a")))
		for attempt := range contracts.MaxAttempts {
			claims := w.claimEvents()
			if len(claims) != 1 || claims[0].EventType != "a1" || claims[0].Attempts != attempt {
				t.Fatalf("claimed %+v", claims)
			}
			want := contracts.OutboxPending
			if attempt == contracts.MaxAttempts-1 {
				want = contracts.OutboxDead
			}
			for range 2 {
				if got := must[contracts.OutboxStatus](w)(w.outbox.Fail(t.Context(), claims[0].EventID, claims[0].Token, "no", false)); got != want {
					t.Fatalf("after %d failures it is %s", attempt+1, got)
				}
			}
			w.exec(`update continuity_outbox set available_at = now() where status = 'pending'`)
		}
		// What is dead is older than what follows, and keeps nothing back.
		if got := names(w.claimEvents()); !slices.Equal(got, []string{"a2"}) {
			t.Errorf("claimed %v", got)
		}
	})
}

func TestEventClaimIsLost(t *testing.T) {
	eachTransport(t, func(w *world) {
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("a1", "a")))
		lost := w.claimEvents()[0]
		w.exec(`update continuity_outbox set claimed_until = now() - interval '1 second'`)
		other := w.claimEvents()[0]
		if other.Attempts != 1 {
			t.Errorf("an ended lease counts as %d attempts", other.Attempts)
		}
		w.wantErr(w.outbox.Ack(t.Context(), lost.EventID, lost.Token), continuity.ErrLostClaim)
		_, err := w.outbox.Fail(t.Context(), lost.EventID, lost.Token, "x", true)
		w.wantErr(err, continuity.ErrLostClaim)
		if err := w.outbox.Ack(t.Context(), other.EventID, other.Token); err != nil {
			t.Error(err)
		}
	})
}

// TestEventOfAnEpochThatHasNotCome: the hosted database was restored, and the primary is ahead of it.
func TestEventOfAnEpochThatHasNotCome(t *testing.T) {
	eachTransport(t, func(w *world) {
		early := event("a1", "a")
		early.Epoch = 2
		_, err := w.outbox.Publish(t.Context(), early)
		w.wantStale(err, 1)
		w.openQueue()
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), early))
		must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event("a2", "a"))) // It has waited since epoch 1.
	})
}

func TestSnapshotNeverGoesBack(t *testing.T) {
	eachTransport(t, func(w *world) {
		_, err := w.snapshots.Read(t.Context(), "menu")
		w.wantErr(err, hosted.ErrNoSnapshot)
		put := func(payload string, version int64) bool {
			return must[bool](w)(w.snapshots.Put(t.Context(), "menu", json.RawMessage(payload), version))
		}
		read := func() hosted.Snapshot {
			return must[hosted.Snapshot](w)(w.snapshots.Read(t.Context(), "menu"))
		}
		if !put(`{"v": 5}`, 5) || put(`{"v": 4}`, 4) {
			t.Error("an older version was stored, or a first one was not")
		}
		if got := read(); got.Version != 5 || string(got.Payload) != `{"v": 5}` {
			t.Errorf("the snapshot is %+v", got)
		}
		w.exec(`update continuity_snapshots set published_at = now() - interval '1 hour'`)
		if got := read(); got.Age.Duration().Round(time.Minute) != time.Hour {
			t.Errorf("the age is %v", got.Age.Duration())
		}
		if !put(`{"v": 5}`, 5) || read().Age.Duration() > 30*time.Minute {
			t.Error("the same version again is not fresh")
		}
		if !put(`{"v": 6}`, 6) || read().Version != 6 {
			t.Error("a newer version was not stored")
		}
		_, err = w.snapshots.Put(t.Context(), "", json.RawMessage(`{}`), 1)
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.snapshots.Put(t.Context(), "menu", nil, 7)
		w.wantErr(err, continuity.ErrInvalid)
	})
}

// TestOlderSnapshotWaitsBehindANewerOne holds the newer one open: the older one sees it in the end, and gives way.
func TestOlderSnapshotWaitsBehindANewerOne(t *testing.T) {
	w := direct(t)
	must[bool](w)(w.snapshots.Put(t.Context(), "menu", json.RawMessage(`{"v": 1}`), 1))
	tx := w.begin()
	if _, err := tx.Exec(t.Context(), `select continuity_put_snapshot('menu', '{"v": 3}', 3)`); err != nil {
		t.Fatal(err)
	}
	type result struct {
		stored bool
		err    error
	}
	done := make(chan result, 1)
	go func() {
		stored, err := w.snapshots.Put(t.Context(), "menu", json.RawMessage(`{"v": 2}`), 2)
		done <- result{stored, err}
	}()
	w.waitingFor("transactionid", 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.stored || got.err != nil {
		t.Errorf("the older one: %+v", got)
	}
	if got := must[hosted.Snapshot](w)(w.snapshots.Read(t.Context(), "menu")); got.Version != 3 {
		t.Errorf("the snapshot is %+v", got)
	}
}

func TestHeartbeat(t *testing.T) {
	eachTransport(t, func(w *world) {
		beat := hosted.Heartbeat{NodeID: "primary-1", Role: hosted.RolePrimary, Mode: contracts.ModePrimary, LastCommand: 3, Instance: "p1"}
		state := must[hosted.Grant](w)(w.nodes.Beat(t.Context(), beat))
		if state.Epoch != 1 || state.Mode != continuity.Direct || !state.Leased || state.Beats != 1 {
			t.Errorf("the beat returns %+v", state)
		}
		beat.LastCommand, beat.Mode, beat.Instance = 2, contracts.ModeRecovering, "p2"
		must[hosted.Grant](w)(w.nodes.Beat(t.Context(), beat))
		w.exec(`update continuity_replication_state set last_seen_at = now() - interval '1 minute'`)
		nodes := must[[]hosted.Node](w)(w.nodes.List(t.Context()))
		if len(nodes) != 1 || nodes[0].LastCommand != 3 || nodes[0].Mode != contracts.ModeRecovering || nodes[0].Instance != "p2" ||
			nodes[0].LastDrainAt == nil || nodes[0].LastSnapshotAt != nil || nodes[0].Silent.Duration() < time.Minute || nodes[0].Silent.Duration() > 10*time.Minute {
			t.Errorf("the nodes are %+v", nodes)
		}
		for _, change := range []func(*hosted.Heartbeat){
			func(h *hosted.Heartbeat) { h.NodeID = "" },
			func(h *hosted.Heartbeat) { h.Instance = "" },
			func(h *hosted.Heartbeat) { h.Role = "observer" },
			func(h *hosted.Heartbeat) { h.Mode = "asleep" },
			func(h *hosted.Heartbeat) { h.Lease = 2 * time.Hour },
			func(h *hosted.Heartbeat) { h.Role, h.Lease = hosted.RoleEdge, time.Second },
		} {
			bad := beat
			change(&bad)
			if _, err := w.nodes.Beat(t.Context(), bad); !errors.Is(err, continuity.ErrInvalid) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
	})
}

// TestBeatsAreCounted, those of primaries, whatever they are called.
func TestBeatsAreCounted(t *testing.T) {
	eachTransport(t, func(w *world) {
		for i, node := range []string{"primary-1", "primary-1", "edge-1", "primary-2", "primary-1"} {
			beat := hosted.Heartbeat{NodeID: node, Role: hosted.RolePrimary, Mode: contracts.ModePrimary, Instance: "i"}
			if node == "edge-1" {
				beat.Role = hosted.RoleEdge
			}
			got := must[hosted.Grant](w)(w.nodes.Beat(t.Context(), beat))
			if want := []int64{1, 2, 2, 3, 4}[i]; got.Beats != want || w.state().Beats != want {
				t.Errorf("beat %d of %s: %d, want %d", i, node, got.Beats, want)
			}
		}
	})
}

// TestUnclaimedEventsAreDeleted when nobody subscribes, and none for a subscriber
// that was away for less than the retention.
func TestUnclaimedEventsAreDeleted(t *testing.T) {
	eachTransport(t, func(w *world) {
		const retention = 14 * 24 * time.Hour
		purge := func() int { return must[int](w)(w.outbox.PurgeUnclaimed(t.Context(), retention)) }
		for _, name := range []string{"old", "recent", "taken"} {
			must[hosted.EventReceipt](w)(w.outbox.Publish(t.Context(), event(name, name)))
		}
		w.exec(`update continuity_outbox set published_at = now() - interval '15 days' where event_type in ('old', 'taken')`)
		w.exec(`update continuity_outbox set status = 'delivered', settled_at = now() - interval '13 days', claimed_by = 'subscriber' where event_type = 'taken'`)
		if n := purge(); n != 0 {
			t.Errorf("%d events of a subscriber that was away for 13 days are purged", n)
		}
		w.exec(`update continuity_outbox set status = 'claimed', settled_at = null, claimed_until = now() where event_type = 'taken'`)
		if n := purge(); n != 0 {
			t.Errorf("%d events of a subscriber that holds one are purged", n)
		}
		w.exec(`update continuity_outbox set status = 'pending', claimed_until = null, attempts = 1 where event_type = 'taken'`)
		if n := purge(); n != 1 {
			t.Errorf("%d events are purged, want the old one", n)
		}
		if left := names(w.claimEvents()); !slices.Equal(left, []string{"recent", "taken"}) {
			t.Errorf("what is left is %v", left)
		}
		_, err := w.outbox.PurgeUnclaimed(t.Context(), retention-time.Second)
		w.wantErr(err, continuity.ErrInvalid)
	})
}
