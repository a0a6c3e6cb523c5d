package hosted_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// kill enqueues a command of the type for the aggregate "o1" and lets it die.
func (w *world) kill(key, commandType string) hosted.QueuedCommand {
	w.Helper()
	c := order(key, "o1")
	c.CommandType = commandType
	w.enqueue(c)
	claim := w.claimOne()
	return must[hosted.QueuedCommand](w)(w.queue.Fail(w.Context(), claim.CommandID, claim.Token, "conflict", true))
}

func TestDeadHeadHoldsItsAggregateOrNot(t *testing.T) {
	for commandType, holds := range map[string]bool{
		"order.create":          true,
		"order.update_status":   false,
		"order.confirm_payment": true,
		"order.cancel":          true,
		"payment.record":        true,
		"cashflow.record":       false,
	} {
		t.Run(commandType, func(t *testing.T) {
			w := direct(t)
			w.openDrain()
			dead := w.kill("head", commandType)
			if dead.Status != contracts.CommandDead || *dead.LastError != "conflict" {
				t.Fatalf("the head is %+v", dead)
			}
			w.enqueue(order("next", "o1"))
			w.enqueue(order("other", "o2"))
			want := []string{"next", "other"}
			if holds {
				want = []string{"other"}
			}
			if got := keysOf(w.claim(10)); !slices.Equal(got, want) {
				t.Errorf("claimed %v, want %v", got, want)
			}
			stats := must[hosted.QueueStats](w)(w.queue.Stats(t.Context()))
			if (stats.BlockedAggregates == 1) != holds || stats.UnacknowledgedDead != 1 {
				t.Errorf("the numbers are %+v", stats)
			}
		})
	}
}

func TestSkipGoesOnWithoutTheDead(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		dead := w.kill("head", "order.create")
		next := w.enqueue(order("next", "o1"))
		for range 2 { // The first answer may have been lost.
			got := must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), dead.CommandID, "ana", "the customer has left"))
			if got.Status != contracts.CommandDead || *got.SkippedBy != "ana" || *got.SkipReason != "the customer has left" || got.SkippedAt == nil {
				t.Errorf("skipped: %+v", got)
			}
		}
		if c := w.claimOne(); c.IdempotencyKey != "next" {
			t.Errorf("claimed %s", c.IdempotencyKey)
		}
		if s := must[hosted.QueueStats](w)(w.queue.Stats(t.Context())); s.BlockedAggregates != 0 || s.UnacknowledgedDead != 0 || s.Commands["dead"] != 1 {
			t.Errorf("the numbers are %+v", s)
		}
		_, err := w.queue.Skip(t.Context(), next.CommandID, "ana", "x")
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.queue.Skip(t.Context(), uuid.New(), "ana", "x")
		w.wantErr(err, continuity.ErrUnknownCommand)
		_, err = w.queue.Skip(t.Context(), dead.CommandID, "", "x")
		w.wantErr(err, continuity.ErrInvalid)
	})
}

func TestSkipBuriesAnUnknownType(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		unknown := order("k1", "o1")
		unknown.CommandType = "order.teleport"
		w.enqueue(unknown)
		w.enqueue(order("next", "o1"))
		got := must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), unknown.CommandID, "ana", "no such thing"))
		if got.Status != contracts.CommandDead || *got.LastError != "the command type is unknown" || got.SettledAt == nil {
			t.Errorf("skipped: %+v", got)
		}
		if c := w.claimOne(); c.IdempotencyKey != "next" {
			t.Errorf("claimed %s", c.IdempotencyKey)
		}
	})
}

func TestRedriveBringsTheDeadBack(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		dead := w.kill("head", "order.create")
		w.enqueue(order("next", "o1"))
		for range 2 {
			got := must[hosted.QueuedCommand](w)(w.queue.Redrive(t.Context(), dead.CommandID, "ana", "the cause is mended"))
			if got.Status != contracts.CommandPending || got.Attempts != 0 || got.SettledAt != nil {
				t.Errorf("redriven: %+v", got)
			}
		}
		c := w.claimOne()
		if c.IdempotencyKey != "head" || c.Attempts != 0 {
			t.Fatalf("claimed %+v", c)
		}
		// A claimed one is on its way, and keeps its claim.
		if got := must[hosted.QueuedCommand](w)(w.queue.Redrive(t.Context(), dead.CommandID, "ana", "again")); got.Status != contracts.CommandClaimed {
			t.Errorf("redriven under its claim: %+v", got)
		}
		w.ack(c)
		_, err := w.queue.Redrive(t.Context(), dead.CommandID, "ana", "again")
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.queue.Redrive(t.Context(), uuid.New(), "ana", "x")
		w.wantErr(err, continuity.ErrUnknownCommand)
		if c := w.claimOne(); c.IdempotencyKey != "next" {
			t.Errorf("claimed %s", c.IdempotencyKey)
		}
	})
}

// TestRedriveUndoesASkip: the command behind it may be out by then, and then the two are not out together.
func TestRedriveUndoesASkip(t *testing.T) {
	w := direct(t)
	w.openDrain()
	dead := w.kill("head", "order.create")
	w.enqueue(order("next", "o1"))
	must[hosted.QueuedCommand](w)(w.queue.Skip(t.Context(), dead.CommandID, "ana", "x"))
	next := w.claimOne()
	got := must[hosted.QueuedCommand](w)(w.queue.Redrive(t.Context(), dead.CommandID, "ana", "it was needed"))
	if got.SkippedAt != nil || got.SkippedBy != nil || got.SkipReason != nil {
		t.Errorf("redriven: %+v", got)
	}
	if claims := w.claim(10); len(claims) != 0 {
		t.Errorf("claimed %v beside %s", keysOf(claims), next.IdempotencyKey)
	}
	w.ack(next)
	if c := w.claimOne(); c.IdempotencyKey != "head" {
		t.Errorf("claimed %s", c.IdempotencyKey)
	}
}

// TestRedriveWaitsForClaims: between the look at the heads and the claim no earlier command comes back.
func TestRedriveWaitsForClaims(t *testing.T) {
	w := direct(t)
	w.openDrain()
	dead := w.kill("head", "order.update_status")
	w.enqueue(order("next", "o1"))
	tx := w.begin()
	if _, err := tx.Exec(t.Context(), `select continuity_claim_commands('first', 1, 60, null, null)`); err != nil {
		t.Fatal(err)
	}
	redriven := make(chan error, 1)
	go func() {
		_, err := w.queue.Redrive(t.Context(), dead.CommandID, "ana", "x")
		redriven <- err
	}()
	w.waiting(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-redriven; err != nil {
		t.Fatal(err)
	}
	if claims := w.claim(10); len(claims) != 0 {
		t.Errorf("claimed %v while the next one is out", keysOf(claims))
	}
}
