package primary

import (
	"errors"
	"testing"

	"github.com/rollingd/rollingd/internal/pg"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	want := map[Move]Verdict{}
	for _, m := range Moves() {
		want[m] = Moved
	}
	for _, s := range Statuses() {
		want[Move{s, s}] = There
	}
	for _, late := range []Move{
		{Paid, Pending}, {Preparing, Pending}, {Preparing, Paid},
		{Delivered, Pending}, {Delivered, Paid}, {Delivered, Preparing}, {Delivered, Cancelled},
		{Cancelled, Pending}, {Cancelled, Paid}, {Cancelled, Preparing}, {Cancelled, Delivered}, {Cancelled, Refunded},
		{Refunded, Pending}, {Refunded, Paid}, {Refunded, Preparing}, {Refunded, Delivered}, {Refunded, Cancelled},
	} {
		want[late] = Overtaken
	}
	for _, from := range Statuses() {
		for _, to := range Statuses() {
			got, err := Judge(from, to)
			if w, allowed := want[Move{from, to}]; got != w || allowed != (err == nil) {
				t.Errorf("from %s to %s: %q, %v; want %q", from, to, got, err, w)
			}
			if err != nil && !errors.Is(err, ErrIllegalMove) {
				t.Errorf("from %s to %s: %v", from, to, err)
			}
		}
	}
	if _, err := Judge(Pending, "lost"); !errors.Is(err, ErrIllegalMove) {
		t.Errorf("to no status: %v", err)
	}
}

// TestMovesOfTheTrigger takes an order by hand from every status to every other.
func TestMovesOfTheTrigger(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	for _, from := range Statuses() {
		for _, to := range Statuses() {
			if from == to {
				continue
			}
			exec(t, s.pool, `delete from orders`)
			exec(t, s.pool, `insert into orders (order_id, company_id, restaurant_id, details) values ('o', 'acme', 'north', '{}')`)
			exec(t, s.pool, `alter table orders disable trigger orders_check`)
			exec(t, s.pool, `update orders set status = $1`, from)
			exec(t, s.pool, `alter table orders enable trigger orders_check`)
			_, err := s.pool.Exec(t.Context(), `update orders set status = $1, version = version + 1`, to)
			verdict, _ := Judge(from, to)
			if (verdict == Moved) != (err == nil) || err != nil && pg.Code(err) != "RD002" {
				t.Errorf("from %s to %s: the code says %q, the trigger %v", from, to, verdict, err)
			}
		}
	}
}
