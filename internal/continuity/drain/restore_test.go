package drain

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/pg"
)

// TestPrimaryRestored takes the primary back to what it was before the drain while
// its process lives on, in the ways in which that can be noticed: every queued
// command is handed out again, and what the primary still has is not done twice.
func TestPrimaryRestored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		epoch continuity.Epoch
		mode  continuity.Mode
		end   continuity.Epoch
	}{
		"before the outage": {1, continuity.Direct, 5},
		"in the drain":      {2, continuity.Catchup, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			d := w.drainer(nil)
			w.run(d)
			w.forget("")
			w.exec(w.primary, `
				begin;
				set local session_replication_role = replica;
				delete from primary_fence_flips where epoch > `+fmt.Sprint(c.epoch)+`;
				update primary_fence set epoch = `+fmt.Sprint(c.epoch)+`, seen_epoch = `+fmt.Sprint(c.epoch)+`, mode = '`+string(c.mode)+`';
				select setval('fencing_tokens_seq', 1);
				commit`)
			if r := w.run(d); !r.Reconciled {
				t.Errorf("not noticed: %+v", r)
			}
			w.finish(c.end)
			w.checkOutage()
		})
	}
	t.Run("while sealed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.outage()
		stopped := false
		d := w.drainer(&transport{before: func(_ int64, function string) error {
			if function == "continuity_cutover" && !stopped {
				stopped = true
				return errStopped
			}
			return nil
		}})
		if _, err := d.RunOnce(t.Context()); !errors.Is(err, errStopped) {
			t.Fatal(err)
		}
		w.forget("")
		r := w.run(d)
		if !r.Reconciled || r.Cutover != nil {
			t.Errorf("the cutover was granted: %+v", r)
		}
		w.finish(4)
		w.checkOutage()
	})
}

// TestPrimaryRestoredUnnoticed takes the primary back without a trace in the
// fence. The books tell all the same, before anything is drained on top of what is
// missing.
func TestPrimaryRestoredUnnoticed(t *testing.T) {
	t.Parallel()
	// fence makes the primary's copy one of the backup.
	fence := func(w *world, epoch continuity.Epoch, mode continuity.Mode) {
		w.exec(w.primary, `
			begin;
			set local session_replication_role = replica;
			delete from primary_fence_flips where epoch > `+fmt.Sprint(epoch)+`;
			update primary_fence set epoch = `+fmt.Sprint(epoch)+`, seen_epoch = `+fmt.Sprint(epoch)+`, mode = '`+string(mode)+`', closed = true;
			commit`)
	}
	for name, at := range map[string]continuity.Fence{
		"before the outage": {Epoch: 1, Mode: continuity.Direct},
		"in the drain":      {Epoch: 2, Mode: continuity.Catchup},
	} {
		t.Run("in the middle of the drain, to "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			claims := 0
			stopping := w.drainer(&transport{before: func(_ int64, function string) error {
				if function == "continuity_claim_commands" {
					claims++
				}
				if claims == 3 { // The order o1 is prepared, and not delivered.
					return errStopped
				}
				return nil
			}})
			if _, err := stopping.RunOnce(t.Context()); !errors.Is(err, errStopped) {
				t.Fatal(err)
			}
			w.forget("")
			fence(w, at.Epoch, at.Mode)
			if r := w.run(w.drainer(nil)); !r.Reconciled {
				t.Errorf("not noticed: %+v", r)
			}
			w.finish(4)
			w.checkOutage()
		})
	}
	t.Run("to a time before it knew the fence", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.outage()
		w.run(w.drainer(nil))
		w.forget("")
		fence(w, 0, continuity.Direct)
		w.exec(w.primary, `
			begin;
			set local session_replication_role = replica;
			update continuity_inbox set epoch = 0;
			update primary_fence_flips set closed = false;
			commit`)
		if r := w.run(w.drainer(nil)); !r.Reconciled {
			t.Errorf("not noticed: %+v", r)
		}
		w.finish(5)
		w.checkOutage()
	})
	t.Run("in another outage, and a heartbeat comes first", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.outage()
		w.run(w.drainer(nil))
		w.openQueue(3)
		w.forget("")
		fence(w, 1, continuity.Direct)
		restarted := w.drainer(nil)
		if err := restarted.Primary.Adopt(t.Context(), continuity.Fence{Epoch: 4, Mode: continuity.Queue}, time.Time{}, "heartbeat"); err != nil {
			t.Fatal(err)
		}
		if r := w.run(restarted); !r.Reconciled {
			t.Errorf("not noticed: %+v", r)
		}
		w.finish(6)
		w.checkOutage()
	})
	t.Run("within an epoch, to before a redrive", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.outage()
		d := w.drainer(nil)
		w.run(d)
		applied := scalar[string](w, w.primary, `select string_agg(idempotency_key, ' ') from continuity_inbox where way = 'drained'`)
		w.exec(w.primary, `
			begin;
			set local session_replication_role = replica;
			update orders set status = 'preparing', version = 3 where order_id = 'o3';
			update primary_outbox set payload = payload || '{"version": 3}' where aggregate_id = 'o3';
			commit`)
		jump := command("jump", "", "", "").CommandID
		if _, err := w.queue.Redrive(t.Context(), jump, "test", "it is due now"); err != nil {
			t.Fatal(err)
		}
		if r := w.run(d); r.Applied != 1 || r.Fence.Epoch != 3 {
			t.Fatalf("%+v", r)
		}
		w.exec(w.primary, `
			begin;
			set local session_replication_role = replica;
			delete from primary_drained where idempotency_key <> all(string_to_array('`+applied+` late', ' '));
			delete from primary_outbox where aggregate_id = 'o3' and payload ->> 'status' = 'delivered';
			update orders set status = 'preparing', version = 3 where order_id = 'o3';
			delete from continuity_inbox where way = 'drained' and idempotency_key <> all(string_to_array('`+applied+`', ' '));
			update leases set expires_at = now();
			commit`)
		if r := w.run(w.drainer(nil)); !r.Reconciled {
			t.Errorf("not noticed: %+v", r)
		}
		w.run(w.drainer(nil))
		if s := scalar[string](w, w.primary, `select status from orders where order_id = 'o3'`); s != "delivered" {
			t.Errorf("o3 is %s", s)
		}
	})
}

// TestHostedRestored takes the hosted fence back behind the primary's epoch.
func TestHostedRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	w.run(d)
	w.exec(w.hosted, `
		begin;
		set local session_replication_role = replica;
		update continuity_fence set epoch = 2, mode = 'QUEUE', high_water_mark = null, sealed_at = null;
		update continuity_commands set status = 'pending', settled_at = null, claim_token = null where idempotency_key = 'prepare';
		delete from continuity_commands where idempotency_key = 'c1';
		delete from continuity_epochs where epoch > 2;
		commit`)
	r := w.run(d)
	if !r.Reconciled || r.Fence.Mode != continuity.Direct || r.Fence.Epoch != 5 {
		t.Errorf("%+v", r)
	}
	w.checkDirect(d, 5)
	orders := scalar[string](w, w.primary, `select string_agg(concat_ws(' ', order_id, status, version), ', ' order by order_id) from orders`)
	if orders != "o1 delivered 4, o2 cancelled 2, o3 pending 1" {
		t.Errorf("orders: %s", orders)
	}
}

// TestHostedRestoredWithinAnEpoch takes the hosted database back to an hour ago: the
// fence was the same, the events and the number of heartbeats were not.
func TestHostedRestoredWithinAnEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	w.run(d)
	w.exec(w.primary, `update primary_fence set beats = 1000`)
	w.exec(w.primary, `update primary_outbox set published_at = now()`)
	w.exec(w.hosted, `insert into continuity_replication_state (node_id, role, mode, instance, beats) values ('p', 'primary', 'primary', 'p', 900)`)
	d = w.drainer(&transport{before: func(_ int64, function string) error {
		if function == "continuity_reconcile_epoch" {
			if s, err := d.Primary.State(t.Context()); err != nil || !s.Closed {
				t.Errorf("the queue is opened while direct writes are open: %+v, %v", s, err)
			}
		}
		return nil
	}})
	published := func() int {
		return scalar[int](w, w.primary, `select count(*) from primary_outbox where epoch >= 2 and published_at is not null`)
	}
	r := w.run(d)
	if !r.Reconciled || r.Fence.Mode != continuity.Direct || r.Fence.Epoch != 5 || published() != 0 {
		t.Errorf("%+v, %d events are not published again", r, published())
	}
	w.checkDirect(d, 5)
	w.checkOutage()
	if r := w.run(d); r.Reconciled {
		t.Errorf("it is found again: %+v", r)
	}
	if beats := scalar[int64](w, w.primary, `select beats from primary_fence`); beats != 900 {
		t.Errorf("the primary remembers %d beats", beats)
	}
}

// TestReconcileFaults breaks the call that begins the new epoch: not sent, done but
// not answered, killed on either side. Until the next run direct writes are closed.
func TestReconcileFaults(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct{ before, after error }{
		"not sent":       {before: errNotSent},
		"unanswered":     {after: errUnanswered},
		"killed before":  {before: errStopped},
		"killed behind":  {after: errStopped},
		"refused by now": {before: &continuity.StaleEpochError{Current: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			w.run(w.drainer(nil))
			w.exec(w.primary, `update primary_fence set beats = 1000`)
			broken := func(answer error) func(int64, string) error {
				return func(_ int64, function string) error {
					if function == "continuity_reconcile_epoch" {
						return answer
					}
					return nil
				}
			}
			d := w.drainer(&transport{before: broken(kind.before), after: broken(kind.after)})
			if r, err := d.RunOnce(t.Context()); err == nil {
				t.Fatalf("nothing was broken: %+v", r)
			}
			if s, err := d.Primary.State(t.Context()); err != nil || s.Direct(primary.Available) {
				t.Errorf("direct writes are open: %+v, %v", s, err)
			}
			w.heal()
			r := w.run(w.drainer(nil))
			if !r.Reconciled || r.Fence.Mode != continuity.Direct {
				t.Errorf("the next run: %+v", r)
			}
			w.checkDirect(d, r.Fence.Epoch)
			w.checkOutage()
			w.checkHistory(true)
		})
	}
}

// TestEpochSeenOnly closes on an epoch that nobody has begun: an edge remembers
// what a restored hosted database has forgotten.
func TestEpochSeenOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.drainer(nil)
	w.run(d)
	if err := d.Primary.See(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	r := w.run(d)
	if !r.Reconciled || r.Fence.Mode != continuity.Direct || r.Fence.Epoch <= 7 {
		t.Errorf("%+v", r)
	}
	w.checkDirect(d, r.Fence.Epoch)
}

// TestReopenedWhileSealed has an edge lose its patience between the seal and the
// cutover, and queue one more command.
func TestReopenedWhileSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	tr := &transport{before: func(_ int64, function string) error {
		if function != "continuity_cutover" {
			return nil
		}
		w.exec(w.hosted, `update continuity_fence set sealed_at = now() - interval '1 hour'`)
		if _, err := w.fence.Reopen(t.Context(), 2, "edge"); err != nil {
			t.Error(err)
		}
		w.enqueue(command("refund", "order.update_status", "o1", `{"status":"refunded"}`))
		return nil
	}}
	if r, err := w.drainer(tr).RunOnce(t.Context()); err == nil && r.Cutover != nil {
		t.Errorf("the cutover was granted: %+v", r)
	}
	w.finish(3)
	if s := scalar[string](w, w.primary, `select status from orders where order_id = 'o1'`); s != "refunded" {
		t.Errorf("the command behind the reopening: %s", s)
	}
}

// TestDeadHead has the head of an aggregate die: there is no cutover until a
// person has decided, and the refusal is final for a direct write too.
func TestDeadHead(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(w *world, c continuity.Command) error{
		"skipped": func(w *world, c continuity.Command) error {
			_, err := w.queue.Skip(w.Context(), c.CommandID, "test", "gone")
			return err
		},
		"redriven": func(w *world, c continuity.Command) error {
			w.exec(w.primary, `insert into orders (order_id, company_id, restaurant_id, details) values ('o9', 'acme', 'north', '{}')`)
			_, err := w.queue.Redrive(w.Context(), c.CommandID, "test", "its order is there")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			orphan := command("orphan", "order.cancel", "o9", `{}`)
			behind := command("behind", "order.update_status", "o9", `{"status":"cancelled"}`)
			w.enqueue(orphan, behind)
			d := w.drainer(nil)
			if r := w.run(d); r.Dead != 2 || r.WaitingFor != "dead" || r.Cutover != nil {
				t.Errorf("with a dead head: %+v", r)
			}
			if q, err := w.queue.Find(t.Context(), "behind"); err != nil || q.Status != "pending" || q.Attempts != 0 {
				t.Errorf("what is behind a dead head: %+v, %v", q, err)
			}
			if err := decide(w, orphan); err != nil {
				t.Fatal(err)
			}
			r := w.run(d)
			if r.Cutover == nil {
				t.Errorf("after the decision: %+v", r)
			}
			_, err := d.Primary.Apply(t.Context(), orphan, r.Fence.Epoch)
			if refused := err != nil; refused != (name == "skipped") {
				t.Errorf("direct: %v", err)
			}
		})
	}
}

// TestRedrivenAfterTheCutover drains what a person brings back in DIRECT.
func TestRedrivenAfterTheCutover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	w.run(d)
	for _, s := range []string{"paid", "preparing"} {
		if _, err := d.Primary.Apply(t.Context(), command("o3 "+s, "order.update_status", "o3", `{"status":"`+s+`"}`), 3); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.queue.Redrive(t.Context(), command("jump", "", "", "").CommandID, "test", "it is due now"); err != nil {
		t.Fatal(err)
	}
	if r := w.run(d); r.Applied != 1 || r.Fence.Mode != continuity.Direct {
		t.Errorf("%+v", r)
	}
	if s := scalar[string](w, w.primary, `select status from orders where order_id = 'o3'`); s != "delivered" {
		t.Errorf("o3 is %s", s)
	}
	w.checkHistory(true)
}

// TestNotReady drains, and keeps the queue open while edges do not reach the
// primary.
func TestNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	reached := false
	d.Ready = func() bool { return reached }
	if r := w.run(d); r.Applied != 7 || r.WaitingFor != "reach" || r.Fence.Mode != continuity.Catchup {
		t.Errorf("%+v", r)
	}
	w.enqueue(command("refund", "order.update_status", "o1", `{"status":"refunded"}`))
	reached = true
	if r := w.run(d); r.Applied != 1 || r.Cutover == nil {
		t.Errorf("%+v", r)
	}
}

// TestAttempts has a command fail for a reason outside of it: after eight
// attempts it is dead, with the reason, and has no effect.
func TestAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(w.drainer(nil))
	w.openQueue(1)
	w.exec(w.primary, `alter table cashflow_entries add constraint broken check (false) not valid`)
	c := command("c1", "cashflow.record", "c1", `{"companyId":"acme","restaurantId":"north","kind":"income","amount":5}`)
	w.enqueue(c)
	d := w.drainer(nil)
	for attempt := 1; attempt <= 8; attempt++ {
		w.heal()
		r := w.run(d)
		if want := attempt < 8; (r.Failed == 1) != want || (r.Dead == 1) == want || want && r.WaitingFor != "waiting" {
			t.Fatalf("attempt %d: %+v", attempt, r)
		}
	}
	q, err := w.queue.Find(t.Context(), "c1")
	if err != nil || q.Status != "dead" || q.LastError == nil || *q.LastError != "failed: Postgres says 23514" {
		t.Errorf("%+v, %v", q, err)
	}
	w.checkHistory(true)
}

// TestPrimaryAway has Postgres go away in the middle: no attempt is used up.
func TestPrimaryAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	p := d.Primary
	claims := 0
	away := &transport{after: func(_ int64, function string) error {
		if function == "continuity_claim_commands" {
			if claims++; claims == 1 {
				w.pool.Close()
			}
		}
		return nil
	}}
	broken := w.drainer(away)
	broken.Primary = p
	_, _ = broken.RunOnce(t.Context())
	if n := scalar[int](w, w.hosted, `select sum(attempts) from continuity_commands`); n != 0 {
		t.Errorf("%d attempts", n)
	}
	var err error
	if w.pool, err = pg.Open(t.Context(), w.primary.Config().ConnString(), pg.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.finish(3)
	w.checkOutage()
}

// TestOptions refuses what cannot work.
func TestOptions(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{}); err == nil {
		t.Error("nothing was asked for")
	}
	good := newWorld(t).drainer(nil).Options
	good.ApplyTimeout = good.ClaimLease + time.Second
	if _, err := New(good); err == nil {
		t.Error("a command may outlast its claim")
	}
}

// forget takes back what the primary did under epoch 2.
func (w *world) forget(keep string) {
	w.Helper()
	w.exec(w.primary, `
		begin;
		set local session_replication_role = replica;
		delete from primary_drained where idempotency_key <> all(string_to_array('`+keep+`', ' '));
		delete from primary_outbox where payload ->> 'commandId' in (select command_id::text from continuity_inbox where way = 'drained' and idempotency_key <> all(string_to_array('`+keep+`', ' ')));
		delete from primary_notices;
		delete from primary_refusals;
		delete from payments where payment_id = 'p1';
		delete from cashflow_entries;
		delete from orders where order_id = 'o3';
		update orders set status = 'paid', version = 2 where order_id = 'o1';
		update orders set status = 'pending', version = 1 where order_id = 'o2';
		delete from continuity_inbox where way = 'drained' and idempotency_key <> all(string_to_array('`+keep+`', ' '));
		update leases set expires_at = now();
		commit`)
}
