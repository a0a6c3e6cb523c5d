package hosted_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

func (w *world) commit(tx pgx.Tx) {
	w.Helper()
	if err := tx.Commit(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// enqueueIn enqueues in the transaction and returns the sequence number that was drawn.
func (w *world) enqueueIn(tx pgx.Tx, c continuity.Command) continuity.Sequence {
	w.Helper()
	var text []byte
	err := tx.QueryRow(w.Context(), `select continuity_enqueue($1, $2, $3, $4, $5, $6, null, null, null)`,
		c.CommandID, c.IdempotencyKey, c.CommandType, c.AggregateType, c.AggregateID, c.Payload).Scan(&text)
	if err != nil {
		w.Fatal(err)
	}
	var receipt continuity.Receipt
	if err := json.Unmarshal(text, &receipt); err != nil {
		w.Fatal(err)
	}
	return receipt.Sequence
}

// later makes a call on the side and returns what it will come to.
func later[T any](call func() (T, error)) func() (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := call()
		done <- result{value, err}
	}()
	return func() (T, error) {
		r := <-done
		return r.value, r.err
	}
}

// TestSequenceIsTheOrderOfCommits: of two commands of one aggregate the one that is drawn first commits first, since the
// other cannot draw. Between aggregates nobody waits.
func TestSequenceIsTheOrderOfCommits(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		tx := w.begin()
		first := w.enqueueIn(tx, order("first", "o1"))
		second := later(func() (continuity.Receipt, error) {
			return w.queue.Enqueue(t.Context(), order("second", "o1"), 0)
		})
		w.waiting(1)
		elsewhere := w.enqueue(order("elsewhere", "o2"))
		if got := w.claimOne(); got.IdempotencyKey != "elsewhere" {
			t.Fatalf("claimed %s", got.IdempotencyKey)
		}
		w.commit(tx)
		receipt := must[continuity.Receipt](w)(second())
		if receipt.Sequence <= first || receipt.Sequence <= elsewhere.Sequence {
			t.Errorf("the second is %d, the first %d, the other %d", receipt.Sequence, first, elsewhere.Sequence)
		}
		if got := w.claimOne(); got.IdempotencyKey != "first" {
			t.Errorf("claimed %s", got.IdempotencyKey)
		}
	})
}

// TestLateRowIsNotPassed: a row of a lower number that becomes visible after a higher one was acked is claimed all the
// same, and lies under the mark.
func TestLateRowIsNotPassed(t *testing.T) {
	w := direct(t)
	w.openDrain()
	tx := w.begin()
	late := w.enqueueIn(tx, order("late", "o1"))
	early := w.enqueue(order("early", "o2"))
	if early.Sequence <= late {
		t.Fatalf("the numbers are %d and %d", late, early.Sequence)
	}
	w.ack(w.claimOne())
	w.commit(tx)
	if hwm := w.seal(); hwm < late {
		t.Errorf("the mark is %d, the late row %d", hwm, late)
	}
	if got := w.claimOne(); got.Sequence != late {
		t.Errorf("claimed %+v", got)
	}
}

// TestSameKeyAtOnce: the second waits for the first, and is told of it, whether it is of the same aggregate or not.
func TestSameKeyAtOnce(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		tx := w.begin()
		c := order("k1", "o1")
		sequence := w.enqueueIn(tx, c)
		again := later(func() (continuity.Receipt, error) {
			other := c
			other.CommandID = uuid.New()
			return w.queue.Enqueue(t.Context(), other, 0)
		})
		w.waiting(1)
		elsewhere := later(func() (continuity.Receipt, error) {
			return w.queue.Enqueue(t.Context(), order("k1", "o2"), 0)
		})
		w.waitingFor("transactionid", 1)
		w.commit(tx)
		if receipt := must[continuity.Receipt](w)(again()); !receipt.Deduplicated || receipt.Sequence != sequence || receipt.CommandID != c.CommandID {
			t.Errorf("the receipt is %+v", receipt)
		}
		_, err := elsewhere()
		w.wantErr(err, continuity.ErrKeyReused)
	})
}

// TestSameKeyAfterARollback: the first does not come to be, so the second is the command.
func TestSameKeyAfterARollback(t *testing.T) {
	w := direct(t)
	w.openQueue()
	tx := w.begin()
	c := order("k1", "o1")
	w.enqueueIn(tx, c)
	again := later(func() (continuity.Receipt, error) { return w.queue.Enqueue(t.Context(), c, 0) })
	w.waiting(1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if receipt := must[continuity.Receipt](w)(again()); receipt.Deduplicated {
		t.Errorf("the receipt is %+v", receipt)
	}
}

// TestSealWaitsForAnOpenEnqueue: the mark is taken after the exclusive lock, so it holds the command on its way in.
func TestSealWaitsForAnOpenEnqueue(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		tx := w.begin()
		open := w.enqueueIn(tx, order("k2", "o2"))
		sealed := later(func() (hosted.FenceState, error) { return w.fence.Seal(t.Context(), 2, 1) })
		w.waiting(1)
		w.wantFence(2, continuity.Catchup)
		w.commit(tx)
		if s := must[hosted.FenceState](w)(sealed()); *s.HighWaterMark != open {
			t.Errorf("the mark is %d, the command that was on its way %d", *s.HighWaterMark, open)
		}
	})
}

// TestEnqueueBehindTheSeal stands in the lock's queue behind the seal, and finds the gate closed.
func TestEnqueueBehindTheSeal(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		tx := w.begin()
		open := w.enqueueIn(tx, order("k1", "o1"))
		sealed := later(func() (hosted.FenceState, error) { return w.fence.Seal(t.Context(), 2, 1) })
		w.waiting(1)
		behind := later(func() (continuity.Receipt, error) {
			return w.queue.Enqueue(t.Context(), order("k2", "o2"), 2)
		})
		known := later(func() (continuity.Receipt, error) {
			return w.queue.Enqueue(t.Context(), order("k1", "o1"), 2)
		})
		w.waiting(3)
		w.commit(tx)
		s := must[hosted.FenceState](w)(sealed())
		_, err := behind()
		w.wantErr(err, continuity.ErrSealed)
		if receipt := must[continuity.Receipt](w)(known()); !receipt.Deduplicated || receipt.Sequence != open {
			t.Errorf("the receipt of the known key is %+v", receipt)
		}
		if *s.HighWaterMark != open {
			t.Errorf("the mark is %d, want %d", *s.HighWaterMark, open)
		}
		if n := scan[int](w, `select count(*) from continuity_commands where queue_sequence > $1`, *s.HighWaterMark); n != 0 {
			t.Errorf("%d commands lie beyond the mark", n)
		}
	})
}

// TestEnqueueBehindTheOpening: a command that waits while the queue opens is taken in, under the new epoch.
func TestEnqueueBehindTheOpening(t *testing.T) {
	w := direct(t)
	tx := w.begin()
	if _, err := tx.Exec(t.Context(), `select continuity_open_epoch(1, 'r', 'edge-1')`); err != nil {
		t.Fatal(err)
	}
	behind := later(func() (continuity.Receipt, error) { return w.queue.Enqueue(t.Context(), order("k1", "o1"), 0) })
	w.waiting(1)
	w.commit(tx)
	if receipt := must[continuity.Receipt](w)(behind()); receipt.Epoch != 2 {
		t.Errorf("the receipt is %+v", receipt)
	}
}

// TestSealThatIsRolledBackNeverWas: a seal that waits behind it takes its own mark.
func TestSealThatIsRolledBackNeverWas(t *testing.T) {
	w := direct(t)
	w.openDrain()
	tx := w.begin()
	if _, err := tx.Exec(t.Context(), `select continuity_seal(2, 1)`); err != nil {
		t.Fatal(err)
	}
	behind := later(func() (continuity.Receipt, error) { return w.queue.Enqueue(t.Context(), order("k1", "o1"), 2) })
	w.waiting(1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	receipt := must[continuity.Receipt](w)(behind())
	if hwm := w.seal(); hwm != receipt.Sequence {
		t.Errorf("the mark is %d, want %d", hwm, receipt.Sequence)
	}
}

// TestReopenAgainstCutover lets an edge and the primary decide a sealed queue at the same moment, in both orders.
func TestReopenAgainstCutover(t *testing.T) {
	for _, first := range []string{"reopen", "cutover"} {
		t.Run(first, func(t *testing.T) {
			eachTransport(t, func(w *world) {
				w.openDrain()
				hwm := w.seal()
				w.exec(`update continuity_fence set sealed_at = now() - interval '1 minute'`)
				tx := w.begin()
				step := map[string]string{
					"reopen":  `select continuity_reopen(2, 'edge-1')`,
					"cutover": fmt.Sprintf(`select continuity_cutover(2, 1, %d, '{"applied": 0}')`, hwm),
				}[first]
				if _, err := tx.Exec(t.Context(), step); err != nil {
					t.Fatal(err)
				}
				cutover := func() error {
					_, err := w.fence.Cutover(t.Context(), 2, 1, hwm, hosted.Attestation{})
					return err
				}
				reopen := func() error {
					_, err := w.fence.Reopen(t.Context(), 2, "edge-1")
					return err
				}
				second := cutover
				if first == "cutover" {
					second = reopen
				}
				lost := later(func() (any, error) { return nil, second() })
				w.waiting(1)
				w.commit(tx)
				_, err := lost()
				if first == "reopen" {
					w.wantErr(err, continuity.ErrNotOpen)
					w.wantFence(2, continuity.Queue)
				} else {
					w.wantStale(err, 3)
					w.wantFence(3, continuity.Direct)
				}
			})
		})
	}
}

// TestGatesAreNeverOpenTogether lets edges enqueue while the fence goes through several outages. The epoch of every row is
// one in which the queue was open, no row lies beyond the mark of its epoch, and none came twice.
func TestGatesAreNeverOpenTogether(t *testing.T) {
	w := direct(t)
	w.patient()
	ctx, stop := context.WithCancel(t.Context())
	var edges sync.WaitGroup
	accepted := make([]map[string]continuity.Receipt, 3)
	for e := range accepted {
		accepted[e] = map[string]continuity.Receipt{}
		edges.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				c := order(fmt.Sprintf("e%d-%d", e, i), fmt.Sprint("o", i%4))
				receipt, err := w.queue.Enqueue(t.Context(), c, 0)
				switch {
				case err == nil:
					accepted[e][c.IdempotencyKey] = receipt
				case !errors.Is(err, continuity.ErrNotOpen) && !errors.Is(err, continuity.ErrSealed):
					t.Error(err)
					return
				}
			}
		})
	}
	type mark struct{ epoch, hwm int64 }
	var marks []mark
	for epoch := continuity.Epoch(1); epoch < 9; epoch += 2 {
		must[hosted.FenceState](w)(w.fence.ForceQueue(t.Context(), epoch, "ana", "x"))
		for w.accepted(epoch+1) < 5 {
			if t.Failed() {
				break
			}
		}
		must[hosted.FenceState](w)(w.fence.BeginCatchup(t.Context(), epoch+1, 1))
		for range 3 {
			for _, c := range w.claim(100) {
				w.ack(c)
			}
		}
		s := must[hosted.FenceState](w)(w.fence.Seal(t.Context(), epoch+1, 1))
		for w.unsettled() > 0 {
			for _, c := range w.claim(100) {
				w.ack(c)
			}
		}
		acked := w.accepted(epoch + 1)
		proof := must[hosted.CutoverProof](w)(w.fence.Cutover(t.Context(), epoch+1, 1, *s.HighWaterMark, hosted.Attestation{Applied: acked}))
		if proof.Accepted != acked || proof.Applied != acked {
			t.Errorf("the proof of epoch %d is %+v, acked are %d", epoch+1, proof, acked)
		}
		marks = append(marks, mark{int64(epoch + 1), int64(*s.HighWaterMark)})
	}
	stop()
	edges.Wait()
	w.checkLog()
	rows := 0
	for _, receipts := range accepted {
		for key, receipt := range receipts {
			rows++
			if row := w.find(key); row.Sequence != receipt.Sequence || row.Epoch != receipt.Epoch || row.Status != contracts.CommandAcked {
				t.Errorf("%s: the receipt is %+v, the row %+v", key, receipt, row)
			}
		}
	}
	if n := scan[int](w, `select count(*) from continuity_commands`); n != rows {
		t.Errorf("%d rows, %d receipts", n, rows)
	}
	for i, m := range marks {
		from := int64(0)
		if i > 0 {
			from = marks[i-1].hwm
		}
		if n := scan[int](w, `
			select count(*)
			from continuity_commands
			where (queue_sequence > $2 and queue_sequence <= $3) <> (epoch = $1)`, m.epoch, from, m.hwm); n != 0 {
			t.Errorf("%d commands lie on the wrong side of the mark of epoch %d", n, m.epoch)
		}
	}
}

// checkLog: epochs only rise, and each has one gate.
func (w *world) checkLog() {
	w.Helper()
	last := continuity.Epoch(0)
	direct := map[continuity.Epoch]bool{}
	for _, flip := range must[[]hosted.Flip](w)(w.fence.Log(w.Context(), 0, 1000)) {
		if flip.Epoch < last {
			w.Errorf("epoch %d follows %d", flip.Epoch, last)
		}
		last = flip.Epoch
		if gate, known := direct[flip.Epoch]; known && gate != (flip.Mode == continuity.Direct) {
			w.Errorf("epoch %d has both gates", flip.Epoch)
		}
		direct[flip.Epoch] = flip.Mode == continuity.Direct
	}
}

func (w *world) accepted(epoch continuity.Epoch) int64 {
	w.Helper()
	return scan[int64](w, `select count(*) from continuity_commands where epoch = $1`, epoch)
}

func (w *world) unsettled() int {
	w.Helper()
	return scan[int](w, `select count(*) from continuity_commands where status in ('pending', 'claimed')`)
}

// TestStricterIsolationIsRefused: under it, the later statement would not see what was committed while the lock was waited
// for.
func TestStricterIsolationIsRefused(t *testing.T) {
	w := direct(t)
	w.openQueue()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, call := range []string{
			`select continuity_enqueue(gen_random_uuid(), 'k', 'order.create', 'order', 'o', '{}', null, null, null)`,
			`select continuity_seal(2, 1)`,
			`select continuity_claim_commands('w', 1, 1, null, null)`,
		} {
			err := pgx.BeginTxFunc(t.Context(), w.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), call)
				return err
			})
			if err == nil {
				t.Errorf("%s: %s", level, call)
			}
		}
	}
}

// TestHistoryCannotBeRewritten tries as the owner.
func TestHistoryCannotBeRewritten(t *testing.T) {
	w := direct(t)
	w.openQueue()
	for _, sql := range []string{
		`update continuity_epochs set epoch = 7`,
		`delete from continuity_epochs`,
		`truncate continuity_epochs`,
		`update continuity_fence set epoch = 1`,
		`delete from continuity_fence`,
		`truncate continuity_fence`,
		`insert into continuity_fence default values`,
		`insert into continuity_fence (only_row) values (false)`,
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: done", sql)
		}
	}
	w.wantFence(2, continuity.Queue)
}
