package hosted_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

func keysOf(claims []continuity.Claim) []string {
	keys := []string{}
	for _, c := range claims {
		keys = append(keys, c.IdempotencyKey)
	}
	return keys
}

func TestClaimTakesTheHeadOfEachAggregate(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		for _, key := range []string{"a1", "a2", "b1", "a3", "c1"} {
			w.enqueue(order(key, key[:1]))
		}
		first := w.claim(100)
		if got := keysOf(first); !slices.Equal(got, []string{"a1", "b1", "c1"}) {
			t.Fatalf("claimed %v", got)
		}
		if more := w.claim(100); len(more) != 0 {
			t.Fatalf("claimed %v while the heads are out", keysOf(more))
		}
		w.ack(first[0])
		if next := w.claimOne(); next.IdempotencyKey != "a2" {
			t.Errorf("after a1 comes %s", next.IdempotencyKey)
		}
		// One that waits for its next attempt keeps its aggregate back.
		must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), first[1].CommandID, first[1].Token, "later", false))
		w.enqueue(order("b2", "b"))
		if more := w.claim(100); len(more) != 0 {
			t.Errorf("claimed %v", keysOf(more))
		}
	})
}

// TestAggregatesOfTwoTypesAreTwo: the type is part of the aggregate, and no way of joining them mixes two up.
func TestAggregatesOfTwoTypesAreTwo(t *testing.T) {
	w := direct(t)
	w.openDrain()
	for i, pair := range [][2]string{{"order", "1"}, {"payment", "1"}, {"order 1", "1"}, {"order", "1 1"}} {
		c := order(fmt.Sprint(i), pair[1])
		c.AggregateType = pair[0]
		w.enqueue(c)
	}
	if claims := w.claim(100); len(claims) != 4 {
		t.Errorf("claimed %v", keysOf(claims))
	}
}

// TestClaimsBesideAnUncommittedOne holds a claim's transaction open: the row is locked, and still pending for others.
func TestClaimsBesideAnUncommittedOne(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("a1", "a"))
		w.enqueue(order("a2", "a"))
		w.enqueue(order("b1", "b"))
		tx := w.begin()
		var n int
		err := tx.QueryRow(t.Context(), `select jsonb_array_length(continuity_claim_commands('first', 1, 60, null, null))`).Scan(&n)
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		if got := keysOf(w.claim(100)); !slices.Equal(got, []string{"b1"}) {
			t.Errorf("while a1 is locked, %v is claimed", got)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.claim(100); len(got) != 0 {
			t.Errorf("while a1 is claimed, %v is claimed", keysOf(got))
		}
	})
}

// TestTwoWorkersKeepTheOrderOfEveryAggregate drains many aggregates with workers that fail, snooze and lose claims.
func TestTwoWorkersKeepTheOrderOfEveryAggregate(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.patient()
		const aggregates, each = 12, 5
		for i := range each {
			for a := range aggregates {
				w.enqueue(order(fmt.Sprintf("a%d-%d", a, i), fmt.Sprintf("a%d", a)))
			}
		}
		var (
			mu      sync.Mutex
			applied = map[string][]continuity.Sequence{}
			out     = map[string]int{}
			tokens  = map[continuity.ClaimToken]bool{}
			done    int
		)
		work := func(worker string) {
			for turn := 0; ; turn++ {
				claims, err := w.queue.Claim(t.Context(), hosted.ClaimOptions{Worker: worker, Limit: 3, Lease: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				for i, c := range claims {
					mu.Lock()
					out[c.AggregateID]++
					if out[c.AggregateID] != 1 || tokens[c.Token] {
						t.Errorf("%d claims of %s are out, token %d", out[c.AggregateID], c.AggregateID, c.Token)
					}
					tokens[c.Token] = true
					mu.Unlock()
					// What the others may claim is decided before the database is told.
					mu.Lock()
					out[c.AggregateID]--
					if (turn+i)%4 != 0 {
						applied[c.AggregateID] = append(applied[c.AggregateID], c.Sequence)
						done++
					}
					mu.Unlock()
					if (turn+i)%4 == 0 {
						err = w.queue.Snooze(t.Context(), c.CommandID, c.Token, 0)
					} else {
						err = w.queue.Ack(t.Context(), c.CommandID, c.Token)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				mu.Lock()
				finished := done == aggregates*each
				mu.Unlock()
				if finished || t.Failed() {
					return
				}
			}
		}
		var wait sync.WaitGroup
		for _, worker := range []string{"same name", "same name", "other name"} {
			wait.Go(func() { work(worker) })
		}
		wait.Wait()
		for a, sequences := range applied {
			if len(sequences) != each || !slices.IsSorted(sequences) {
				t.Errorf("%s was applied as %v", a, sequences)
			}
		}
	})
}

// TestClaimIsProvenByItsToken: whoever has lost a claim changes nothing, whatever its worker is called.
func TestClaimIsProvenByItsToken(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		lost := w.claimOne()
		w.expire(lost)
		if n := must[int](w)(w.queue.ReleaseExpired(t.Context())); n != 1 {
			t.Fatalf("%d claims were released", n)
		}
		stopped := func(moment string) {
			t.Helper()
			before := scan[string](w, `select continuity_commands::text from continuity_commands`)
			_, failed := w.queue.Fail(t.Context(), lost.CommandID, lost.Token, "x", true)
			for operation, err := range map[string]error{
				"ack":    w.queue.Ack(t.Context(), lost.CommandID, lost.Token),
				"fail":   failed,
				"snooze": w.queue.Snooze(t.Context(), lost.CommandID, lost.Token, time.Second),
				"extend": w.queue.Extend(t.Context(), lost.CommandID, lost.Token, time.Minute),
			} {
				if err == nil {
					t.Errorf("%s: %s succeeds", moment, operation)
					continue
				}
				w.wantErr(err, continuity.ErrLostClaim)
			}
			if after := scan[string](w, `select continuity_commands::text from continuity_commands`); after != before {
				t.Errorf("%s: the row was %s and is %s", moment, before, after)
			}
		}
		stopped("after the sweep")
		other := w.claimOne()
		if other.Token <= lost.Token {
			t.Errorf("the token %d follows %d", other.Token, lost.Token)
		}
		stopped("with another claim out")
		w.ack(other)
		stopped("after the other's ack")
	})
}

// TestLeaseThatEndedCountsAnAttempt: a command that kills its workers comes to its end as well.
func TestLeaseThatEndedCountsAnAttempt(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		for attempt := range contracts.MaxAttempts {
			c := w.claimOne() // The claim sweeps by itself.
			if c.Attempts != attempt {
				t.Fatalf("the claim has %d attempts, want %d", c.Attempts, attempt)
			}
			w.expire(c)
		}
		if claims := w.claim(1); len(claims) != 0 {
			t.Fatalf("claimed %+v", claims)
		}
		c := w.find("k1")
		if c.Status != contracts.CommandDead || c.Attempts != contracts.MaxAttempts || c.LastError == nil || *c.LastError != "the lease of worker ended" {
			t.Errorf("the command is %+v", c)
		}
	})
}

// TestSweepLeavesWhatWasSettledMeanwhile holds an ack open, and lets the sweep look at the row in its old state.
func TestSweepLeavesWhatWasSettledMeanwhile(t *testing.T) {
	w := direct(t)
	w.openDrain()
	w.enqueue(order("k1", "o1"))
	c := w.claimOne()
	w.expire(c)
	tx := w.begin()
	if _, err := tx.Exec(t.Context(), `select continuity_ack_command($1, $2)`, c.CommandID, c.Token); err != nil {
		t.Fatal(err)
	}
	if n := must[int](w)(w.queue.ReleaseExpired(t.Context())); n != 0 {
		t.Errorf("%d claims were released under an ack", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := must[int](w)(w.queue.ReleaseExpired(t.Context())); n != 0 {
		t.Errorf("%d claims were released after the ack", n)
	}
	if got := w.find("k1"); got.Status != contracts.CommandAcked || got.Attempts != 0 {
		t.Errorf("the command is %+v", got)
	}
}

func TestExtendedClaimIsNotSwept(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		c := w.claimOne()
		w.expire(c)
		// Nobody has noticed its end, so it goes on.
		if err := w.queue.Extend(t.Context(), c.CommandID, c.Token, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := must[int](w)(w.queue.ReleaseExpired(t.Context())); n != 0 {
			t.Errorf("%d claims were released", n)
		}
		if until := scan[time.Duration](w, `select claimed_until - now() from continuity_commands`); until <= 30*time.Second || until > time.Minute {
			t.Errorf("the lease lasts %v", until)
		}
		w.ack(c)
	})
}

// TestAnswerThatWasLostIsAskedForAgain: with the same token, the second call answers as the first did.
func TestAnswerThatWasLostIsAskedForAgain(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		for _, key := range []string{"acked", "failed", "dead", "snoozed"} {
			w.enqueue(order(key, key))
		}
		claims := w.claim(4)
		for range 3 {
			w.ack(claims[0])
			failed := must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), claims[1].CommandID, claims[1].Token, "x", false))
			if failed.Attempts != 1 || failed.Status != contracts.CommandPending {
				t.Errorf("failed: %+v", failed)
			}
			dead := must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), claims[2].CommandID, claims[2].Token, "x", true))
			if dead.Attempts != 1 || dead.Status != contracts.CommandDead {
				t.Errorf("dead: %+v", dead)
			}
			if err := w.queue.Snooze(t.Context(), claims[3].CommandID, claims[3].Token, time.Minute); err != nil {
				t.Error(err)
			}
		}
		w.awaken()
		again := w.claim(4)
		if got := keysOf(again); !slices.Equal(got, []string{"failed", "snoozed"}) {
			t.Fatalf("claimed %v", got)
		}
		// A repetition that comes after the next claim is too late.
		_, err := w.queue.Fail(t.Context(), claims[1].CommandID, claims[1].Token, "x", false)
		w.wantErr(err, continuity.ErrLostClaim)
	})
}

func TestSnoozeUsesUpNoAttempt(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.enqueue(order("k1", "o1"))
		for range 2 * contracts.MaxAttempts {
			c := w.claimOne()
			if c.Attempts != 0 {
				t.Fatalf("%d attempts", c.Attempts)
			}
			if err := w.queue.Snooze(t.Context(), c.CommandID, c.Token, 500*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if claims := w.claim(1); len(claims) != 0 {
				t.Fatal("a snoozed command is claimed at once")
			}
			w.awaken()
		}
	})
}

func TestBackoffGrowsWithJitter(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		const commands = 12
		w.exec(`
			create table waits (attempts int, wait interval);
			create function note_wait() returns trigger language plpgsql as $$ begin
			  insert into public.waits values (new.attempts, new.available_at - now());
			  return null;
			end $$;
			create trigger note_wait after update on continuity_commands for each row
			  when (new.attempts > old.attempts) execute function note_wait()`)
		for i := range commands {
			w.enqueue(order(fmt.Sprint("k", i), fmt.Sprint("o", i)))
		}
		for failures := 1; failures <= contracts.MaxAttempts; failures++ {
			claims := w.claim(commands)
			if len(claims) != commands {
				t.Fatalf("claimed %v", keysOf(claims))
			}
			for _, c := range claims {
				got := must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), c.CommandID, c.Token, "no", false))
				status := contracts.CommandPending
				if failures == contracts.MaxAttempts {
					status = contracts.CommandDead
				}
				if got.Status != status || got.Attempts != failures || *got.LastError != "no" {
					t.Fatalf("after %d failures: %+v", failures, got)
				}
			}
			// A trigger notes when each failed, by the clock that the wait begins at.
			low := scan[float64](w, `select extract(epoch from min(wait)) from waits where attempts = $1`, failures)
			high := scan[float64](w, `select extract(epoch from max(wait)) from waits where attempts = $1`, failures)
			want := contracts.Backoff(failures).Seconds()
			if low < want*(1-contracts.BackoffJitter) || high > want*(1+contracts.BackoffJitter) {
				t.Errorf("after %d failures the wait is %v to %v, want %v", failures, low, high, want)
			}
			if high-low < want*contracts.BackoffJitter/4 {
				t.Errorf("after %d failures all wait %v to %v", failures, low, high)
			}
			w.awaken()
		}
		if claims := w.claim(commands); len(claims) != 0 {
			t.Errorf("dead commands are claimed: %v", keysOf(claims))
		}
	})
}

func TestUnknownTypeStaysPending(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		unknown := order("k1", "o1")
		unknown.CommandType = "order.teleport"
		w.enqueue(unknown)
		w.enqueue(order("behind", "o1"))
		w.enqueue(order("other", "o2"))
		if c := w.claimOne(); c.IdempotencyKey != "other" {
			t.Fatalf("claimed %s", c.IdempotencyKey)
		}
		if s := must[hosted.QueueStats](w)(w.queue.Stats(t.Context())); !slices.Equal(s.UnknownTypes, []string{"order.teleport"}) {
			t.Errorf("unknown types: %v", s.UnknownTypes)
		}
		// The type becomes known with the version that can apply it.
		w.exec(`insert into continuity_command_types (command_type) values ('order.teleport')`)
		if c := w.claimOne(); c.IdempotencyKey != "k1" {
			t.Errorf("claimed %s", c.IdempotencyKey)
		}
	})
}

func TestEssentialTypesAreKnown(t *testing.T) {
	w := direct(t)
	known := scan[[]string](w, `select array_agg(command_type order by command_type) from continuity_command_types`)
	want := slices.Sorted(slices.Values(contracts.EssentialCommandTypes()))
	if !slices.Equal(known, want) {
		t.Errorf("known are %v, want %v", known, want)
	}
}

func TestClaimStopsAtTheMark(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		first := w.enqueue(order("k1", "o1"))
		w.enqueue(order("k2", "o2"))
		claims := must[[]continuity.Claim](w)(w.queue.Claim(t.Context(), hosted.ClaimOptions{
			Worker: "w", Limit: 10, Lease: time.Minute, UpTo: &first.Sequence,
		}))
		if got := keysOf(claims); !slices.Equal(got, []string{"k1"}) {
			t.Errorf("claimed %v", got)
		}
	})
}

func TestClaimAsksForALittle(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		for _, o := range []hosted.ClaimOptions{
			{Worker: "", Limit: 1, Lease: time.Minute},
			{Worker: "  ", Limit: 1, Lease: time.Minute},
			{Worker: strings.Repeat("w", 257), Limit: 1, Lease: time.Minute},
			{Worker: "w", Limit: 0, Lease: time.Minute},
			{Worker: "w", Limit: 101, Lease: time.Minute},
			{Worker: "w", Limit: 1, Lease: 0},
			{Worker: "w", Limit: 1, Lease: time.Hour + time.Second},
		} {
			_, err := w.queue.Claim(t.Context(), o)
			w.wantErr(err, continuity.ErrInvalid)
			_, err = w.outbox.Claim(t.Context(), o.Worker, o.Limit, o.Lease)
			w.wantErr(err, continuity.ErrInvalid)
		}
	})
}
