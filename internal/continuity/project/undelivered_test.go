package project

import (
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/migrations"
)

func TestUndelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.day(south, yesterday, daydb.Active)
	old, err := daydb.Load(t.Context(), w.pool, w.name(north, yesterday))
	if err != nil {
		t.Fatal(err)
	}
	ids := []int64{old.ID, other.ID}
	expect := func(what string, want map[int64]Undelivered) {
		t.Helper()
		got, err := UndeliveredOf(t.Context(), w.pool, ids)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if got[id] != want[id] {
				t.Errorf("%s, day %d: %+v, want %+v", what, id, got[id], want[id])
			}
		}
	}
	expect("at first", nil)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	expect("in no day yet", map[int64]Undelivered{old.ID: {Documents: 1, Events: 1}})
	w.run()
	expect("not told", map[int64]Undelivered{old.ID: {Events: 1}})
	w.exec(`update primary_outbox set published_at = now()`)
	expect("delivered", nil)

	w.rotate(north)
	now, err := daydb.Load(t.Context(), w.pool, w.name(north, today))
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, now.ID)
	w.apply(north, "order.confirm_payment", "o1", `{"transactionId":"t1"}`)
	expect("of a day that is over", map[int64]Undelivered{old.ID: {Documents: 1, Events: 1}, now.ID: {Documents: 1, Events: 1}})
	w.run()
	w.exec(`update primary_outbox set published_at = now()`)
	expect("delivered to both", nil)

	w.exec(`update primary_fence set epoch = 2, seen_epoch = 2, mode = 'CATCHUP'`)
	open := Undelivered{QueueOpen: true}
	expect("the queue is open", map[int64]Undelivered{old.ID: open, other.ID: open, now.ID: open})
	if open.Count() != 1 {
		t.Error("an open queue counts as nothing")
	}
	w.exec(`update primary_fence set epoch = 3, seen_epoch = 3, mode = 'DIRECT'`)

	// The work queue is the hosted migrations' table, on this database.
	if _, err := pg.Migrate(t.Context(), w.pool, migrations.Hosted()); err != nil {
		t.Fatal(err)
	}
	w.exec(`insert into public.continuity_commands
		(command_id, idempotency_key, command_type, payload_hash, epoch, aggregate_type, aggregate_id, payload, status, settled_at, claimed_until)
		select gen_random_uuid(), gen_random_uuid()::text, 'order.cancel', '', 1, 'order', c.*
		from (values
		  ('o1', '{}'::jsonb, 'pending', null::timestamptz, null::timestamptz),
		  ('o1', '{}', 'acked', now(), null),
		  ('o1', '{}', 'dead', now(), null),
		  ('new', '{"companyId":"acme","restaurantId":"south"}', 'claimed', null, now())) c`)
	expect("work", map[int64]Undelivered{old.ID: {Commands: 1}, other.ID: {Commands: 1}})
}
