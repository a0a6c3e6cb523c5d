package project

import (
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
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
	w.exec(`create table public.continuity_commands (aggregate_type text, aggregate_id text, payload jsonb, status text)`)
	w.exec(`insert into public.continuity_commands values
		('order', 'o1', '{}', 'pending'), ('order', 'o1', '{}', 'acked'), ('order', 'o1', '{}', 'dead'),
		('order', 'new', '{"companyId":"acme","restaurantId":"south"}', 'claimed')`)
	expect("work", map[int64]Undelivered{old.ID: {Commands: 1}, other.ID: {Commands: 1}})
}
