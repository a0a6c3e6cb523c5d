package hosted_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

func submissions(commands ...continuity.Command) []hosted.Submission {
	all := make([]hosted.Submission, len(commands))
	for i, c := range commands {
		all[i].Command = c
	}
	return all
}

func (w *world) enqueueAll(all []hosted.Submission) []hosted.Entry {
	w.Helper()
	entries := must[[]hosted.Entry](w)(w.queue.EnqueueAll(w.Context(), all))
	if len(entries) != len(all) {
		w.Fatalf("%d entries for %d submissions", len(entries), len(all))
	}
	return entries
}

// TestEachOfABatchHasItsOwnAnswer puts every kind of command into one call.
func TestEachOfABatchHasItsOwnAnswer(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		w.enqueue(order("known", "o1"))
		known, reused, twice, otherID := order("known", "o1"), order("known", "o2"), order("twice", "o3"), order("other id", "o4")
		otherID.CommandID = w.find("known").CommandID
		nameless, silent, large := order("nameless", " \t"), order("silent", "o5"), order("large", "o6")
		silent.Payload = json.RawMessage(`null`)
		large.Payload = json.RawMessage(`"` + strings.Repeat("x", contracts.MaxCommandPayloadBytes) + `"`)
		nul := order("nul \x00", "o7")
		again := twice
		again.CommandID = uuid.New()
		all := submissions(order("first", "o1"), known, reused, twice, again, otherID, nameless, silent, large, nul, order("late", "o8"), order("last", "o1"))
		all[10].Epoch = 1
		all[11].Epoch = 2
		entries := w.enqueueAll(all)

		for i, want := range []error{
			2: continuity.ErrKeyReused, 5: continuity.ErrInvalid, 6: continuity.ErrInvalid, 7: continuity.ErrInvalid,
			8: continuity.ErrPayloadTooLarge, 9: continuity.ErrInvalid, 11: nil,
		} {
			if i != 10 && !errors.Is(entries[i].Err, want) {
				t.Errorf("%s is answered with %+v, want %v", all[i].IdempotencyKey, entries[i], want)
			}
		}
		w.wantStale(entries[10].Err, 2)
		for i, e := range entries {
			if refused := e.Err != nil; !refused && (e.Deduplicated != (i == 1 || i == 4) || e.Epoch != 2 || e.Status != contracts.CommandPending) {
				t.Errorf("%s has the receipt %+v", all[i].IdempotencyKey, e.Receipt)
			}
		}
		if entries[4].CommandID != twice.CommandID || entries[4].Sequence != entries[3].Sequence {
			t.Errorf("the second of a key has the receipt %+v, the first %+v", entries[4], entries[3])
		}
		if entries[0].Sequence >= entries[11].Sequence {
			t.Errorf("of one aggregate the first is %d, the last %d", entries[0].Sequence, entries[11].Sequence)
		}
		if keys := w.list(`select idempotency_key from continuity_commands`); !slices.Equal(keys, []string{"first", "known", "last", "twice"}) {
			t.Errorf("the queue has %v", keys)
		}
	})
}

// TestTheFirstOfAKeyThatMayEnterDoes: the one before it has another epoch.
func TestTheFirstOfAKeyThatMayEnterDoes(t *testing.T) {
	w := direct(t)
	w.openQueue()
	all := submissions(order("k", "o1"), order("k", "o1"), order("k", "o1"))
	all[0].Epoch = 1
	entries := w.enqueueAll(all)
	// A key that is there by then has its receipt in every epoch.
	for i, e := range entries {
		if e.Err != nil || e.Deduplicated != (i != 1) || e.CommandID != all[1].CommandID {
			t.Errorf("%d: %+v", i, e)
		}
	}
}

// TestAValueThatNobodyCanHoldIsOneCommands: Postgres refuses the whole call for it.
func TestAValueThatNobodyCanHoldIsOneCommands(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		poison := order("poison", "o1")
		poison.Payload = json.RawMessage(`{"text": "\u0000"}`)
		entries := w.enqueueAll(submissions(order("before", "o1"), poison, order("behind", "o1")))
		w.wantErr(entries[1].Err, continuity.ErrInvalid)
		if entries[0].Err != nil || entries[2].Err != nil || entries[0].Sequence >= entries[2].Sequence {
			t.Errorf("%+v", entries)
		}
	})
}

func TestABatchPassesTheGate(t *testing.T) {
	w := direct(t)
	all := submissions(order("k1", "o1"), order("k2", "o2"))
	all[1].Epoch = 7
	entries := w.enqueueAll(all)
	w.wantErr(entries[0].Err, continuity.ErrNotOpen)
	w.wantStale(entries[1].Err, 1)
	w.openDrain()
	w.enqueue(order("known", "o1"))
	must[hosted.FenceState](w)(w.fence.Seal(t.Context(), 2, 1))
	entries = w.enqueueAll(submissions(order("k1", "o1"), order("known", "o1")))
	w.wantErr(entries[0].Err, continuity.ErrSealed)
	if entries[1].Err != nil || !entries[1].Deduplicated {
		t.Errorf("a known key: %+v", entries[1])
	}
}

// TestBatchesOfTheSameAggregates have them in every order: nobody waits for somebody who waits.
func TestBatchesOfTheSameAggregates(t *testing.T) {
	w := direct(t)
	w.openQueue()
	w.patient()
	const callers, calls, aggregates = 4, 10, 20
	var wait sync.WaitGroup
	for caller := range callers {
		wait.Go(func() {
			for call := range calls {
				var commands []continuity.Command
				for a := range aggregates {
					a = (a*7 + caller*5 + call) % aggregates
					commands = append(commands, order(fmt.Sprint(caller, call, a), fmt.Sprint(a)))
				}
				for _, e := range must[[]hosted.Entry](w)(w.queue.EnqueueAll(t.Context(), submissions(commands...))) {
					if e.Err != nil {
						t.Error(e.Err)
					}
				}
			}
		})
	}
	wait.Wait()
	if n := scan[int](w, `select count(*) from continuity_commands`); n != callers*calls*aggregates {
		t.Errorf("%d commands", n)
	}
	if n := scan[int](w, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func TestAListIsBounded(t *testing.T) {
	w := direct(t)
	w.openDrain()
	for _, n := range []int{0, hosted.MaxBatch + 1} {
		for _, call := range []string{`continuity_enqueue_commands`, `continuity_ack_commands`} {
			err := w.transport.Call(t.Context(), call, map[string]any{
				map[string]string{`continuity_enqueue_commands`: "p_commands", `continuity_ack_commands`: "p_claims"}[call]: json.RawMessage(
					"[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]"),
			}, nil)
			w.wantErr(err, continuity.ErrInvalid)
		}
	}
	if entries := w.enqueueAll(nil); len(entries) != 0 {
		t.Errorf("%+v", entries)
	}
}

// TestAcksTogether acks what holds, and names what is lost.
func TestAcksTogether(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		for _, key := range []string{"a", "b", "c", "d"} {
			w.enqueue(order(key, key))
		}
		claims := w.claim(100)
		w.ack(claims[0])
		w.expire(claims[1])
		must[int](w)(w.queue.ReleaseExpired(t.Context()))
		again := w.claimOne()
		for range 2 { // It may be repeated.
			lost := must[[]uuid.UUID](w)(w.queue.AckAll(t.Context(), claims))
			if !slices.Equal(lost, []uuid.UUID{claims[1].CommandID}) {
				t.Errorf("lost are %v, want %s", lost, claims[1].CommandID)
			}
		}
		if status := w.find("b").Status; status != contracts.CommandClaimed {
			t.Errorf("the other's claim is %s", status)
		}
		if lost := must[[]uuid.UUID](w)(w.queue.AckAll(t.Context(), []continuity.Claim{again})); len(lost) != 0 {
			t.Errorf("lost are %v", lost)
		}
		if n := scan[int](w, `select count(*) from continuity_commands where status = 'acked' and settled_at is not null`); n != 4 {
			t.Errorf("%d are acked", n)
		}
	})
}
