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

func (w *world) state() hosted.FenceState {
	w.Helper()
	return must[hosted.FenceState](w)(w.fence.State(w.Context()))
}

func (w *world) wantFence(epoch continuity.Epoch, mode continuity.Mode) {
	w.Helper()
	if s := w.state(); s.Epoch != epoch || s.Mode != mode || (s.HighWaterMark != nil) != (mode == continuity.Sealed) {
		w.Fatalf("the fence is %+v, want %s(%d)", s, mode, epoch)
	}
}

// events is the fence's log in words.
func (w *world) events() []string {
	w.Helper()
	list := []string{}
	for _, flip := range must[[]hosted.Flip](w)(w.fence.Log(w.Context(), 0, 1000)) {
		list = append(list, flip.Event)
	}
	return list
}

// seal brings the fence from CATCHUP(2) with term 1 to SEALED(2).
func (w *world) seal() continuity.Sequence {
	w.Helper()
	s := must[hosted.FenceState](w)(w.fence.Seal(w.Context(), 2, 1))
	if s.Mode != continuity.Sealed || s.HighWaterMark == nil {
		w.Fatalf("sealed: %+v", s)
	}
	return *s.HighWaterMark
}

// sealedFor makes the seal as old as this.
func (w *world) sealedFor(age time.Duration) {
	w.Helper()
	w.exec(`update continuity_fence set sealed_at = now() - $1::interval`, age)
}

// reason is what a Refusal with ErrNotYet says.
func reason(t *testing.T, err error) string {
	t.Helper()
	refusal := (*hosted.Refusal)(nil)
	if !errors.Is(err, continuity.ErrNotYet) || !errors.As(err, &refusal) {
		t.Fatalf("the error is %v, want ErrNotYet", err)
	}
	var detail struct{ Reason string }
	if err := json.Unmarshal([]byte(refusal.Detail), &detail); err != nil {
		t.Fatal(err)
	}
	return detail.Reason
}

func TestOutagePassesThroughTheModes(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.wantFence(1, continuity.Direct)
		_, err := w.queue.Enqueue(t.Context(), order("early", "o1"), 0)
		w.wantErr(err, continuity.ErrNotOpen)

		w.openQueue()
		w.wantFence(2, continuity.Queue)
		w.enqueue(order("k1", "o1"))
		_, err = w.queue.Claim(t.Context(), hosted.ClaimOptions{Worker: "w", Limit: 1, Lease: time.Minute, Epoch: 2})
		w.wantErr(err, continuity.ErrNotOpen)

		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 1))
		w.wantFence(2, continuity.Catchup)
		last := w.enqueue(order("k2", "o2"))
		w.ack(w.claim(1)[0])

		hwm := w.seal()
		if hwm != last.Sequence {
			t.Errorf("the mark is %d, the last command %d", hwm, last.Sequence)
		}
		_, err = w.queue.Enqueue(t.Context(), order("k3", "o3"), 2)
		w.wantErr(err, continuity.ErrSealed)
		_, err = w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 2})
		if got := reason(t, err); got != "unacked" {
			t.Errorf("with a command left: %s", got)
		}
		w.ack(w.claimOne())
		w.exec(`update continuity_fence set sealed_at = now() - interval '1500 milliseconds'`)
		proof := must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 2}))
		if proof.Accepted != 2 || proof.Applied != 2 || proof.Dead != 0 || len(proof.UnacknowledgedDead) != 0 ||
			proof.Sealed.Duration() < 1500*time.Millisecond || proof.Sealed.Duration() > time.Minute ||
			proof.Fence.Epoch != 3 || proof.Fence.Mode != continuity.Direct {
			t.Errorf("the proof is %+v", proof)
		}
		w.wantFence(3, continuity.Direct)
		_, err = w.queue.Enqueue(t.Context(), order("late", "o1"), 2)
		w.wantStale(err, 3)
		_, err = w.queue.Enqueue(t.Context(), order("late", "o1"), 0)
		w.wantErr(err, continuity.ErrNotOpen)

		if got, want := w.events(), []string{"begin", "open", "catchup", "seal", "cutover"}; !slices.Equal(got, want) {
			t.Errorf("the log is %v", got)
		}
		flips := must[[]hosted.Flip](w)(w.fence.Log(t.Context(), 0, 1000))
		cutover := flips[4]
		if cutover.Epoch != 3 || cutover.Mode != continuity.Direct || *cutover.HighWaterMark != hwm || cutover.Term != 1 {
			t.Errorf("the cutover is logged as %+v", cutover)
		}
		if open := flips[1]; open.Actor != "edge-1" || *open.Reason != "test" || open.Epoch != 2 {
			t.Errorf("the opening is logged as %+v", open)
		}
		if page := must[[]hosted.Flip](w)(w.fence.Log(t.Context(), flips[1].ID, 1)); len(page) != 1 || page[0].Event != "catchup" {
			t.Errorf("the next page is %+v", page)
		}
	})
}

// TestKnownKeyIsAnsweredInEveryMode is what a client sees whose first answer was lost, before and after the cutover.
func TestKnownKeyIsAnsweredInEveryMode(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		c := order("k1", "o1")
		first := w.enqueue(c)
		again := func(status contracts.CommandStatus) {
			t.Helper()
			for _, epoch := range []continuity.Epoch{0, 2, 77} {
				receipt := must[continuity.Receipt](w)(w.queue.Enqueue(t.Context(), c, epoch))
				if !receipt.Deduplicated || receipt.Sequence != first.Sequence || receipt.Epoch != 2 || receipt.Status != status {
					t.Errorf("the receipt is %+v", receipt)
				}
			}
		}
		again(contracts.CommandPending)
		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 1))
		hwm := w.seal()
		again(contracts.CommandPending)
		w.ack(w.claimOne())
		again(contracts.CommandAcked)
		must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1}))
		again(contracts.CommandAcked)
		other := c
		other.Payload = json.RawMessage(`{"other": true}`)
		_, err := w.queue.Enqueue(t.Context(), other, 0)
		w.wantErr(err, continuity.ErrKeyReused)
	})
}

// TestStepsAreRepeated: each answers the same when its first answer was lost, and is logged once.
func TestStepsAreRepeated(t *testing.T) {
	eachTransport(t, func(w *world) {
		twice := func(step func() (hosted.FenceState, error)) hosted.FenceState {
			t.Helper()
			first := must[hosted.FenceState](w)(step())
			second := must[hosted.FenceState](w)(step())
			if first.Epoch != second.Epoch || first.Mode != second.Mode || !first.ChangedAt.Equal(second.ChangedAt) {
				t.Errorf("first %+v, then %+v", first, second)
			}
			return second
		}
		twice(func() (hosted.FenceState, error) { return w.fence.Open(t.Context(), 1, "r", "edge-1") })
		twice(func() (hosted.FenceState, error) { return w.fence.Open(t.Context(), 1, "r", "edge-2") })
		w.enqueue(order("k1", "o1"))
		twice(func() (hosted.FenceState, error) { return w.fence.BeginCatchup(t.Context(), 2, 1) })
		hwm := *twice(func() (hosted.FenceState, error) { return w.fence.Seal(t.Context(), 2, 1) }).HighWaterMark
		w.ack(w.claimOne())
		cutover := func() (hosted.CutoverProof, error) {
			return w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1})
		}
		first := must[hosted.CutoverProof](w)(cutover())
		second := must[hosted.CutoverProof](w)(cutover())
		if first.Sealed != second.Sealed || second.Accepted != 1 || second.Fence.Epoch != 3 || second.Fence.Mode != continuity.Direct {
			t.Errorf("first %+v, then %+v", first, second)
		}
		// Of another mark it is not a repetition.
		_, err := w.fence.Cutover(t.Context(), 2, 1, hwm+1, hosted.Attestation{Applied: 1})
		w.wantStale(err, 3)
		if got, want := w.events(), []string{"begin", "open", "catchup", "seal", "cutover"}; !slices.Equal(got, want) {
			t.Errorf("the log is %v", got)
		}
		// Once a later epoch has come, the old answer would be a lie.
		must[hosted.FenceState](w)(w.fence.ForceQueue(t.Context(), 3, "ana", "x"))
		_, err = cutover()
		w.wantStale(err, 4)
	})
}

// TestStepsOutOfOrder calls every step in every mode.
func TestStepsOutOfOrder(t *testing.T) {
	eachTransport(t, func(w *world) {
		ctx := t.Context()
		seal := func() error { _, err := w.fence.Seal(ctx, w.state().Epoch, 1); return err }
		catchup := func() error { _, err := w.fence.BeginCatchup(ctx, w.state().Epoch, 1); return err }
		cutover := func() error {
			_, err := w.fence.Cutover(ctx, w.state().Epoch, 1, 0, hosted.Attestation{})
			return err
		}
		reopen := func() error { _, err := w.fence.Reopen(ctx, w.state().Epoch, "edge-1"); return err }
		unseal := func() error { _, err := w.fence.Unseal(ctx, w.state().Epoch, 1); return err }

		w.wantErr(unseal(), continuity.ErrNotOpen)
		w.wantErr(seal(), continuity.ErrNotOpen)
		w.wantErr(catchup(), continuity.ErrNotOpen)
		w.wantErr(cutover(), continuity.ErrNotOpen)
		w.wantErr(reopen(), continuity.ErrNotOpen)
		w.wantFence(1, continuity.Direct)
		w.openQueue()
		w.wantErr(seal(), continuity.ErrNotOpen)
		w.wantErr(cutover(), continuity.ErrNotOpen)
		w.wantErr(reopen(), nil)
		w.wantFence(2, continuity.Queue)
		w.wantErr(catchup(), nil)
		w.wantErr(cutover(), continuity.ErrNotOpen)
		w.wantErr(reopen(), nil)
		w.wantFence(2, continuity.Catchup)
		w.wantErr(unseal(), nil)
		w.wantErr(seal(), nil)
		w.wantFence(2, continuity.Sealed)
		w.wantErr(unseal(), nil)
		w.wantFence(2, continuity.Catchup)
		w.wantErr(cutover(), continuity.ErrNotOpen)
		w.wantErr(seal(), nil)
		w.wantErr(catchup(), nil)
		w.sealedFor(-time.Hour) // However long it takes until the next call.
		w.wantErr(reopen(), continuity.ErrNotYet)
		w.wantFence(2, continuity.Sealed)

		for _, epoch := range []continuity.Epoch{1, 3} {
			for name, step := range map[string]func() error{
				"catchup": func() error { _, err := w.fence.BeginCatchup(ctx, epoch, 1); return err },
				"seal":    func() error { _, err := w.fence.Seal(ctx, epoch, 1); return err },
				"cutover": func() error { _, err := w.fence.Cutover(ctx, epoch, 1, 0, hosted.Attestation{}); return err },
				"unseal":  func() error { _, err := w.fence.Unseal(ctx, epoch, 1); return err },
				"reopen":  func() error { _, err := w.fence.Reopen(ctx, epoch, "edge-1"); return err },
				"open":    func() error { _, err := w.fence.Open(ctx, epoch+1, "r", "edge-1"); return err },
				"claim": func() error {
					_, err := w.queue.Claim(ctx, hosted.ClaimOptions{Worker: "w", Limit: 1, Lease: time.Minute, Epoch: epoch})
					return err
				},
				"enqueue": func() error { _, err := w.queue.Enqueue(ctx, order("k", "o"), epoch); return err },
			} {
				t.Log(name)
				w.wantStale(step(), 2)
			}
		}
		w.wantFence(2, continuity.Sealed)
	})
}

func TestDrainerWithAnOldTerm(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		w.enqueue(order("k1", "o1"))
		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 5))
		_, err := w.fence.BeginCatchup(t.Context(), 2, 4)
		w.wantErr(err, continuity.ErrLostClaim)
		hwm := *must[hosted.FenceState](w)(w.fence.Seal(t.Context(), 2, 5)).HighWaterMark
		w.ack(w.claimOne())
		// Another drainer takes over while the queue is sealed.
		if s := must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 6)); s.Mode != continuity.Sealed || s.Term != 6 {
			t.Errorf("taken over: %+v", s)
		}
		_, err = w.fence.Seal(t.Context(), 2, 5)
		w.wantErr(err, continuity.ErrLostClaim)
		_, err = w.fence.Unseal(t.Context(), 2, 5)
		w.wantErr(err, continuity.ErrLostClaim)
		_, err = w.fence.Cutover(t.Context(), 2, 5, hwm, hosted.Attestation{Applied: 1})
		w.wantErr(err, continuity.ErrLostClaim)
		w.wantFence(2, continuity.Sealed)
		must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), 2, 6, hwm, hosted.Attestation{Applied: 1}))
	})
}

// TestANewTermIsNoFlip: each run of a drain has a term of its own, and one that waits for a person runs every few
// seconds for days. The log, from which nothing is ever deleted, does not grow with it.
func TestANewTermIsNoFlip(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		for term := hosted.Term(2); term < 5; term++ {
			if s := must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, term)); s.Term != term || s.Mode != continuity.Catchup {
				t.Errorf("taken over: %+v", s)
			}
		}
		_, err := w.fence.BeginCatchup(t.Context(), 2, 3)
		w.wantErr(err, continuity.ErrLostClaim)
		if got, want := w.events(), []string{"begin", "open", "catchup"}; !slices.Equal(got, want) {
			t.Errorf("the log is %v", got)
		}
	})
}

func TestSealedTooLongIsReopened(t *testing.T) {
	eachTransport(t, func(w *world) {
		if limit := scan[int](w, `select seal_limit_seconds from continuity_fence`); limit != 5 {
			t.Errorf("the limit is %d s", limit)
		}
		must[hosted.FenceState](w)(w.fence.Configure(t.Context(), hosted.FenceSettings{SealLimit: 10 * time.Minute}))
		w.openDrain()
		hwm := w.seal()
		w.sealedFor(9 * time.Minute)
		_, err := w.fence.Reopen(t.Context(), 2, "edge-1")
		if got := reason(t, err); got != "sealed" {
			t.Errorf("the reason is %s", got)
		}
		w.sealedFor(11 * time.Minute)
		for range 2 {
			if s := must[hosted.FenceState](w)(w.fence.Reopen(t.Context(), 2, "edge-1")); s.Mode != continuity.Queue || s.HighWaterMark != nil {
				t.Errorf("reopened: %+v", s)
			}
		}
		// The primary that was slow has missed its moment, also when it seals anew with another mark.
		_, err = w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{})
		w.wantErr(err, continuity.ErrNotOpen)
		w.enqueue(order("k1", "o1"))
		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), 2, 1))
		w.seal()
		_, err = w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{})
		if got := reason(t, err); got != "mark" {
			t.Errorf("the reason is %s", got)
		}
		if got, want := w.events(), []string{"begin", "open", "catchup", "seal", "reopen", "catchup", "seal"}; !slices.Equal(got, want) {
			t.Errorf("the log is %v", got)
		}
	})
}

func TestSealWaitsForWhatCannotBeDrained(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		refused := func(want string) {
			t.Helper()
			_, err := w.fence.Seal(t.Context(), 2, 1)
			if got := reason(t, err); got != want {
				t.Errorf("the reason is %s, want %s", got, want)
			}
			w.wantFence(2, continuity.Catchup)
		}
		dead := w.kill("dead", "order.create")
		refused("dead")
		must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), dead.CommandID, "ana", "x"))

		w.enqueue(order("waits", "o2"))
		c := w.claimOne()
		// Its worker may have died: for as long as the lease lasts the cutover could not come.
		refused("claimed")
		must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), c.CommandID, c.Token, "no", false))
		refused("waiting")
		w.awaken()

		unknown := order("unknown", "o3")
		unknown.CommandType = "order.teleport"
		w.enqueue(unknown)
		refused("waiting")
		must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), unknown.CommandID, "ana", "x"))
		w.seal()
	})
}

func TestCutoverCountsTheDead(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		harmless := w.kill("harmless", "order.update_status")
		for _, key := range []string{"k1", "k2"} {
			w.enqueue(order(key, key))
		}
		hwm := w.seal()
		claims := w.claim(2)
		w.ack(claims[0])
		must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), claims[1].CommandID, claims[1].Token, "conflict", true))
		_, err := w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1})
		if got := reason(t, err); got != "dead" {
			t.Errorf("the reason is %s", got)
		}
		must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), claims[1].CommandID, "ana", "x"))
		proof := must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1}))
		if proof.Accepted != 3 || proof.Applied != 1 || proof.Dead != 2 || !slices.Equal(proof.UnacknowledgedDead, []uuid.UUID{harmless.CommandID}) {
			t.Errorf("the proof is %+v", proof)
		}
	})
}

// TestCutoverBelievesTheInbox: fewer commands on the primary than were acked means that it has lost some, more than were
// accepted that the queue has.
func TestCutoverBelievesTheInbox(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		w.ack(w.claimOne())
		hwm := w.seal()
		for _, applied := range []int64{0, 2} {
			_, err := w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: applied})
			if got := reason(t, err); got != "inbox" {
				t.Errorf("with %d applied the reason is %s", applied, got)
			}
		}
		w.wantFence(2, continuity.Sealed)
		err := w.transport.Call(t.Context(), "continuity_cutover", map[string]any{
			"p_epoch": 2, "p_term": 1, "p_hwm": hwm, "p_attest": json.RawMessage(`{}`),
		}, nil)
		w.wantErr(err, continuity.ErrInvalid)
		must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{Applied: 1}))
	})
}

// TestReconcileBeginsAboveBoth plays both restores.
func TestReconcileBeginsAboveBoth(t *testing.T) {
	for name, c := range map[string]struct {
		primary, want continuity.Epoch
		replayed      []string
	}{
		"hosted restored":          {9, 10, []string{}},
		"primary restored":         {2, 6, []string{"second", "third"}},
		"primary restored to zero": {0, 6, []string{"first", "second", "third"}},
		"as far as each other":     {5, 6, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(w *world) {
				w.exec(`update continuity_fence set epoch = 5, term = 40, mode = 'QUEUE'`)
				for i, key := range []string{"first", "second", "third"} {
					w.enqueue(order(key, key))
					w.exec(`
						update continuity_commands
						set epoch = $2, status = 'acked', settled_at = now()
						where idempotency_key = $1`, key, []int{1, 2, 4}[i])
				}
				// The term of a primary that was restored begins lower, too.
				s := must[hosted.FenceState](w)(w.fence.Reconcile(t.Context(), 5, c.primary, 3))
				if s.Epoch != c.want || s.Mode != continuity.Queue || s.Term != 3 {
					t.Errorf("reconciled: %+v", s)
				}
				// Somebody who was paused meanwhile begins no other.
				var stale *continuity.StaleEpochError
				if _, err := w.fence.Reconcile(t.Context(), 5, c.primary, 2); !errors.As(err, &stale) || stale.Current != c.want {
					t.Errorf("reconciled twice: %v", err)
				}
				must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), c.want, 3))
				const forgotten = 1_000_000
				if got := w.enqueue(order("new", "new")); got.Sequence < forgotten || got.Epoch != c.want {
					t.Errorf("a new command is %+v", got)
				}
				claims := w.claim(10)
				if got := keysOf(claims); !slices.Equal(got, append(c.replayed, "new")) {
					t.Errorf("handed out again are %v, want %v", got, c.replayed)
				}
				if claims[0].Token < forgotten {
					t.Errorf("a new claim is %+v", claims[0])
				}
				if got := w.events(); !slices.Equal(got, []string{"begin", "reconcile", "catchup"}) {
					t.Errorf("the log is %v", got)
				}
				w.checkLog()
			})
		})
	}
}

// TestReconcileOfALongPast hands out more than one statement's time allows.
func TestReconcileOfALongPast(t *testing.T) {
	eachTransport(t, func(w *world) {
		const past = 12_000
		w.exec(`
			insert into continuity_commands (command_id, idempotency_key, command_type, aggregate_type, aggregate_id,
			  payload, payload_hash, epoch, status, settled_at)
			select gen_random_uuid(), 'k' || i, 'order.create', 'order', 'o', '{}', '', 1, 'acked', now()
			from generate_series(1, $1) i`, past)
		if s := must[hosted.FenceState](w)(w.fence.Reconcile(t.Context(), 1, 0, 1)); s.Epoch != 2 || s.Mode != continuity.Queue {
			t.Errorf("reconciled: %+v", s)
		}
		if n := w.unsettled(); n != past {
			t.Errorf("%d commands are handed out again", n)
		}
		if got := w.events(); !slices.Equal(got, []string{"begin", "reconcile"}) {
			t.Errorf("the log is %v", got)
		}
		flips := must[[]hosted.Flip](w)(w.fence.Log(t.Context(), 0, 10))
		if want := `{"toDrain": 12000, "hostedEpoch": 1, "primaryEpoch": 0}`; string(flips[1].Detail) != want {
			t.Errorf("it is logged as %s", flips[1].Detail)
		}
	})
}

func TestPersonForcesTheFence(t *testing.T) {
	eachTransport(t, func(w *world) {
		_, err := w.fence.ForceQueue(t.Context(), 2, "ana", "drill")
		w.wantStale(err, 1)
		_, err = w.fence.ForceQueue(t.Context(), 1, "", "drill")
		w.wantErr(err, continuity.ErrInvalid)
		for range 2 {
			must[hosted.FenceState](w)(w.fence.ForceQueue(t.Context(), 1, "ana", "drill"))
			w.wantFence(2, continuity.Queue)
		}
		w.enqueue(order("k1", "o1"))
		_, err = w.fence.ForceDirect(t.Context(), 1, "ana", "drill")
		w.wantStale(err, 2)
		for range 2 {
			must[hosted.FenceState](w)(w.fence.ForceDirect(t.Context(), 2, "ana", "the drill is over"))
			w.wantFence(3, continuity.Direct)
		}
		if c := w.claimOne(); c.IdempotencyKey != "k1" {
			t.Errorf("claimed %+v", c)
		}
		flips := must[[]hosted.Flip](w)(w.fence.Log(t.Context(), 0, 10))
		if got := w.events(); !slices.Equal(got, []string{"begin", "force_queue", "force_direct"}) {
			t.Fatalf("the log is %v", got)
		}
		w.checkLog()
		if last := flips[2]; last.Actor != "ana" || *last.Reason != "the drill is over" || string(last.Detail) != `{"left": 1}` {
			t.Errorf("it is logged as %+v", last)
		}
	})
}
