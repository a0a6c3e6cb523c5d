package primary

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestGates tries both ways in every state of the fence, under the epoch before,
// the present one and the next.
func TestGates(t *testing.T) {
	t.Parallel()
	const present = continuity.Epoch(5)
	stale := errors.New("stale")
	type gate struct {
		closed bool
		mode   continuity.Mode
	}
	// By the epoch of the command: 4, 5 and 6.
	for g, want := range map[gate]struct{ direct, drained [3]error }{
		{false, continuity.Direct}:  {[3]error{stale, nil, stale}, [3]error{nil, continuity.ErrNotOpen, stale}},
		{false, continuity.Queue}:   {[3]error{stale, continuity.ErrNotOpen, stale}, [3]error{continuity.ErrNotOpen, continuity.ErrNotOpen, stale}},
		{false, continuity.Catchup}: {[3]error{stale, continuity.ErrNotOpen, stale}, [3]error{nil, nil, stale}},
		{false, continuity.Sealed}:  {[3]error{stale, continuity.ErrNotOpen, stale}, [3]error{nil, nil, stale}},
		{true, continuity.Direct}:   {[3]error{stale, continuity.ErrNotOpen, stale}, [3]error{continuity.ErrNotOpen, continuity.ErrNotOpen, stale}},
		{true, continuity.Catchup}:  {[3]error{stale, continuity.ErrNotOpen, stale}, [3]error{continuity.ErrNotOpen, continuity.ErrNotOpen, stale}},
	} {
		t.Run(fmt.Sprintf("%s closed %t", g.mode, g.closed), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, Options{})
			s.open(present, g.mode)
			if g.closed {
				if err := s.Close(t.Context(), "test"); err != nil {
					t.Fatal(err)
				}
			}
			check := func(way string, epoch continuity.Epoch, err, want error) {
				t.Helper()
				var e *continuity.StaleEpochError
				if isStale := errors.As(err, &e); isStale != (want == stale) || isStale && e.Current != present || want != stale && !errors.Is(err, want) {
					t.Errorf("%s under %d: %v, want %v", way, epoch, err, want)
				}
			}
			for i := range 3 {
				epoch := present - 1 + continuity.Epoch(i)
				_, err := s.Apply(t.Context(), commandFor(fmt.Sprint("d", i), "order.create", "", ofNorth), epoch)
				check(direct, epoch, err, want.direct[i])
				_, err = s.ApplyClaim(t.Context(), s.claim(commandFor(fmt.Sprint("q", i), "order.create", "", ofNorth), epoch), held{})
				check(drained, epoch, err, want.drained[i])
			}
		})
	}
}

// TestFenceOnlyRises tries to take it back by every function and by hand.
func TestFenceOnlyRises(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	if st, err := s.State(t.Context()); err != nil || !st.Closed || st.Epoch != 0 || st.Direct(Available) || !st.ConfirmedAt.IsZero() {
		t.Errorf("at first: %+v, %v", st, err)
	}
	s.open(4, continuity.Direct)
	behind := func(what string, f continuity.Fence) {
		t.Helper()
		if err := s.Adopt(t.Context(), f, time.Now(), "test"); !errors.Is(err, ErrBehind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	behind("an older epoch", continuity.Fence{Epoch: 3, Mode: continuity.Catchup})
	behind("the other gate of the epoch", continuity.Fence{Epoch: 4, Mode: continuity.Queue})
	if err := s.See(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if st, _ := s.State(t.Context()); !st.Closed || st.Seen != 6 || st.Epoch != 4 {
		t.Errorf("after epoch 6 was seen: %+v", st)
	}
	behind("a reading from before", continuity.Fence{Epoch: 4, Mode: continuity.Direct})
	if ok, err := s.Reopen(t.Context()); ok || err != nil {
		t.Errorf("reopened although a later epoch was seen: %v", err)
	}
	s.open(6, continuity.Queue)
	if err := s.See(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if st, _ := s.State(t.Context()); st.Closed || st.Seen != 6 || st.Epoch != 6 {
		t.Errorf("after epoch 2 was named: %+v", st)
	}
	for _, sql := range []string{
		`update primary_fence set epoch = 5`, `update primary_fence set seen_epoch = 5`,
		`update primary_fence set mode = 'DIRECT'`, `delete from primary_fence`,
		`update primary_fence_flips set epoch = 1`, `delete from primary_fence_flips`, `truncate primary_fence_flips`,
		`insert into primary_fence default values`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s went through", sql)
		}
	}
	log := text[string](s, `select string_agg(concat_ws(' ', epoch, mode, closed), ', ' order by id) from primary_fence_flips`)
	if log != "0 DIRECT t, 4 DIRECT f, 4 DIRECT t, 6 QUEUE f" {
		t.Errorf("the log says %s", log)
	}
}

// TestPolicies has the reading of the hosted fence grow too old.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for policy, want := range map[Policy]error{Available: nil, Strict: continuity.ErrNotOpen} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, Options{Policy: policy})
			s.open(1, continuity.Direct)
			s.apply(order1("order.create", "fresh", ofNorth))
			exec(t, s.pool, `update primary_fence set confirmed_at = now() - interval '1 hour 1 second'`)
			_, err := s.Apply(t.Context(), commandFor("o2", "order.create", "old", ofNorth), 1)
			if !errors.Is(err, want) {
				t.Fatalf("%v, want %v", err, want)
			}
			if err == nil && (text[bool](s, `select unconfirmed from continuity_inbox where idempotency_key = 'fresh'`) ||
				!text[bool](s, `select unconfirmed from continuity_inbox where idempotency_key = 'old'`)) {
				t.Error("not flagged as it should be")
			}
			if err := s.Close(t.Context(), "start"); err != nil {
				t.Fatal(err)
			}
			if ok, err := s.Reopen(t.Context()); err != nil || ok != (policy == Available) {
				t.Errorf("reopened: %t, %v", ok, err)
			}
			flips := s.count("primary_fence_flips")
			s.open(1, continuity.Direct)
			s.open(1, continuity.Direct)
			if _, err := s.Apply(t.Context(), commandFor("o3", "order.create", "", ofNorth), 1); err != nil {
				t.Errorf("read again: %v", err)
			}
			if n := s.count("primary_fence_flips") - flips; policy == Available && n != 0 {
				t.Errorf("%d flips of a renewal", n)
			}
			s.open(2, continuity.Queue)
			if err := s.Close(t.Context(), "start"); err != nil {
				t.Fatal(err)
			}
			if ok, _ := s.Reopen(t.Context()); ok {
				t.Error("reopened although the queue was open")
			}
		})
	}
}

// TestFlipWaitsForWrites has a direct write stop between its check and its
// commit while the fence closes: the flip waits, and its entry in the log stands
// behind the write.
func TestFlipWaitsForWrites(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	// The lock of an order that the write needs stops it behind its check.
	s.apply(order1("order.create", "", ofNorth))
	blocker, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Rollback(context.WithoutCancel(t.Context()))
	if _, err := blocker.Exec(t.Context(), `select from orders for update`); err != nil {
		t.Fatal(err)
	}
	write := make(chan error, 1)
	go func() {
		_, err := s.applyInTime(order1("order.cancel", "", `{}`), 1)
		write <- err
	}()
	s.waitFor(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'transactionid'`, 1)
	flip := make(chan error, 1)
	now, _ := s.Clock(t.Context())
	go func() {
		flip <- s.Adopt(t.Context(), continuity.Fence{Epoch: 2, Mode: continuity.Queue}, now, "test")
	}()
	s.waitFor(`select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`, 1)
	late := make(chan error, 1)
	go func() {
		_, err := s.applyInTime(commandFor("o2", "order.create", "", ofNorth), 1)
		late <- err
	}()
	s.waitFor(`select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`, 2)
	select {
	case err := <-flip:
		t.Fatalf("the flip did not wait: %v", err)
	default:
	}
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-write; err != nil {
		t.Errorf("the write that had passed the check: %v", err)
	}
	if err := <-flip; err != nil {
		t.Fatal(err)
	}
	var stale *continuity.StaleEpochError
	if err := <-late; !errors.As(err, &stale) || stale.Current != 2 {
		t.Errorf("a write that came behind the flip: %v", err)
	}
	if n := text[int64](s, `select inbox_order from primary_fence_flips where epoch = 2`); n != text[int64](s, `select max(apply_order) from continuity_inbox`) {
		t.Errorf("the flip stands behind entry %d", n)
	}
}

// waitFor returns when a query that counts says at least n.
func (s *shop) waitFor(query string, n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		var got int
		if err := s.pool.QueryRow(ctx, query).Scan(&got); err == nil && got >= n {
			return
		}
	}
	s.Fatalf("never: %s", query)
}

// TestRefusedForGood has a claim given back: neither it nor a direct write with
// its key has the effect any more, but a claim that was drawn later does.
func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(2, continuity.Catchup)
	c := s.claim(order1("order.create", "k", ofNorth), 2)
	if out, err := s.Refuse(t.Context(), c, true, "conflict", held{}); err != nil || out != nil {
		t.Fatalf("refused: %v, %v", out, err)
	}
	if _, err := s.ApplyClaim(t.Context(), c, held{}); !errors.Is(err, continuity.ErrLostClaim) {
		t.Errorf("the claim that was given back: %v", err)
	}
	s.open(3, continuity.Direct)
	if _, err := s.Apply(t.Context(), c.Command, 3); !errors.Is(err, ErrRefused) || !IsRefusal(err) {
		t.Errorf("direct: %v", err)
	}
	again := c
	again.Token++
	if out, err := s.ApplyClaim(t.Context(), again, held{}); err != nil || out.Deduplicated {
		t.Errorf("redriven: %+v, %v", out, err)
	}
	if out, err := s.Refuse(t.Context(), again, false, "no answer", held{}); err != nil || out == nil || !out.Deduplicated {
		t.Errorf("refused what has an outcome: %v, %v", out, err)
	}
	if out, err := s.Apply(t.Context(), c.Command, 3); err != nil || !out.Deduplicated {
		t.Errorf("direct, after it was redriven: %+v, %v", out, err)
	}
	if n, err := s.Drained(t.Context(), 2); err != nil || n != 1 {
		t.Errorf("%d drained, %v", n, err)
	}
}

// TestDeduplicatedIsDrained counts a queued command whose direct write came
// through after all.
func TestDeduplicatedIsDrained(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	c := order1("order.create", "k", ofNorth)
	s.apply(c)
	s.open(2, continuity.Catchup)
	for range 2 {
		if out, err := s.ApplyClaim(t.Context(), s.claim(c, 2), held{}); err != nil || !out.Deduplicated || out.Epoch != 1 {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if n, err := s.Drained(t.Context(), 2); err != nil || n != 1 {
		t.Errorf("%d drained, %v", n, err)
	}
}

// TestLeaseIsChecked has a drainer whose lease has passed on: neither can it
// apply nor give back.
func TestLeaseIsChecked(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(2, continuity.Catchup)
	leases := fence.New(s.pool, "test", time.Minute)
	lease, err := leases.Acquire(t.Context(), "drain")
	if err != nil {
		t.Fatal(err)
	}
	c := s.claim(order1("order.create", "k", ofNorth), 2)
	exec(t, s.pool, `update leases set expires_at = now() - interval '1 second'`)
	if _, err := s.ApplyClaim(t.Context(), c, lease); !errors.Is(err, fence.ErrLost) {
		t.Errorf("apply: %v", err)
	}
	if _, err := s.Refuse(t.Context(), c, true, "", lease); !errors.Is(err, fence.ErrLost) {
		t.Errorf("refuse: %v", err)
	}
	if s.count("continuity_inbox")+s.count("primary_refusals") != 0 {
		t.Error("it has left something")
	}
}

// TestInboxIsForEver tries to change what is stored.
func TestInboxIsForEver(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "", ofNorth))
	for _, sql := range []string{
		`update continuity_inbox set epoch = 9`, `delete from continuity_inbox`, `truncate continuity_inbox cascade`,
	} {
		err := pg.WithTx(t.Context(), s.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		if pg.Code(err) != "RD003" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// stopped is the lease of a process that stops in the middle of a command.
type stopped struct{ reached, resume chan struct{} }

func (s stopped) Check(context.Context, pgx.Tx) error {
	close(s.reached)
	<-s.resume
	return nil
}

// TestTakeOverFromTheStopped: a primary that stops within a transaction does not
// keep the next one from starting, and has no effect when it goes on.
func TestTakeOverFromTheStopped(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(2, continuity.Catchup)
	lease := stopped{make(chan struct{}), make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := s.ApplyClaim(t.Context(), s.claim(order1("order.create", "k", ofNorth), 2), lease)
		ended <- err
	}()
	<-lease.reached
	next := newShop(t, Options{Pool: s.pool})
	if err := next.Close(t.Context(), "another has started"); err != nil {
		t.Error(err)
	}
	close(lease.resume)
	if err := <-ended; err == nil {
		t.Error("it went on")
	}
	if n := s.count("continuity_inbox"); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// TestTakeOverFromAStoppedFlip: one that stops before the COMMIT of a flip keeps
// neither writes nor the next primary back for long.
func TestTakeOverFromAStoppedFlip(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	proxy, through := pgtest.NewProxy(t, dsn)
	s := newShop(t, Options{Pool: pgtest.Open(t, through)})
	s.open(2, continuity.Direct)
	reached, resume := make(chan struct{}), make(chan struct{})
	proxy.OnCommit(func(int64) pgtest.CommitFault {
		close(reached)
		<-resume
		return pgtest.CommitPasses
	})
	ended := make(chan error, 1)
	go func() { ended <- s.See(t.Context(), 7) }()
	<-reached
	next := newShop(t, Options{Pool: pgtest.Open(t, dsn)})
	if err := next.Close(t.Context(), "another has started"); err != nil {
		t.Error(err)
	}
	close(resume)
	if err := <-ended; err == nil {
		t.Error("it went on")
	}
	if st, err := next.State(t.Context()); err != nil || st.Seen != 2 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestPublishAgain has a hosted database come back from a backup: what it may have
// forgotten is published again, some at a time, and what was delivered long before
// that backup is not.
func TestPublishAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	exec(t, s.pool, `
		insert into primary_outbox (event_type, aggregate_type, aggregate_id, company_id, restaurant_id, payload, epoch, published_at)
		select 'x', 'x', n::text, 'acme', 'north', '{}', case when n <= 100 then 2 else 3 end, now() - case when n <= 200 then interval '20 days' else interval '1 day' end
		from generate_series(1, 25000) n;
		create table statements (touched bigint);
		create function note_statement() returns trigger language plpgsql as $$
		begin
		  insert into statements select count(*) from new;
		  return null;
		end
		$$;
		create trigger note_statement after update on primary_outbox referencing new table as new
		  for each statement execute function note_statement()`)
	if err := s.PublishAgain(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if n := text[int](s, `select count(*) from primary_outbox where published_at is null`); n != 24800 {
		t.Errorf("%d events are published again", n)
	}
	if n := text[int](s, `select max(touched) from statements`); n > 10000 {
		t.Errorf("%d in one statement, which has a time limit", n)
	}
}

// TestClockSetBack has the clock of Postgres go back by an hour after the hosted
// fence was read: the reading is not worth an hour more, and the next one counts.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{Policy: Strict})
	s.open(1, continuity.Direct)
	exec(t, s.pool, `update primary_fence set confirmed_at = now() + interval '1 hour'`)
	if st, err := s.State(t.Context()); err != nil || st.Leased {
		t.Errorf("the lease lasts: %+v, %v", st, err)
	}
	if _, err := s.Apply(t.Context(), order1("order.create", "", ofNorth), 1); !errors.Is(err, continuity.ErrNotOpen) {
		t.Errorf("a direct write: %v", err)
	}
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "", ofNorth))
	exec(t, s.pool, `update primary_fence set confirmed_at = now() + interval '1 hour'`)
	s.open(2, continuity.Queue)
	if st, err := s.State(t.Context()); err != nil || !st.Leased {
		t.Errorf("read again: %+v, %v", st, err)
	}
}
