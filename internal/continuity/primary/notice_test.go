package primary

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
)

// TestNotices has a payment be confirmed for an order that was cancelled, and a
// person see to it.
func TestNotices(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "", ofNorth))
	s.apply(order1("order.cancel", "", `{}`))
	late := s.apply(order1("order.confirm_payment", "", paidBy1))
	open, err := s.Notices(t.Context(), 0, 10)
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	var detail struct{ TransactionID, Amount, Status string }
	if err := json.Unmarshal(open[0].Detail, &detail); err != nil || detail.TransactionID != "t1" || detail.Amount != "12990.00" || detail.Status != "cancelled" {
		t.Errorf("detail %s, %v", open[0].Detail, err)
	}
	if open[0].CommandID != late.CommandID || open[0].Code != NoticePaidAfterEnd || open[0].AggregateID != "o1" {
		t.Errorf("%+v", open[0])
	}
	for _, actor := range []string{"ana", "ben"} {
		if n, err := s.Acknowledge(t.Context(), open[0].ID, actor); err != nil || n.AcknowledgedBy == nil || *n.AcknowledgedBy != "ana" {
			t.Errorf("%+v, %v", n, err)
		}
	}
	if open, err := s.Notices(t.Context(), 0, 10); err != nil || len(open) != 0 {
		t.Errorf("%+v, %v", open, err)
	}
	if _, err := s.Acknowledge(t.Context(), 99, "ana"); !errors.Is(err, ErrUnknownNotice) {
		t.Error(err)
	}
}

// TestAlone opens a primary that has no hosted database.
func TestAlone(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	c := order1("order.create", "", ofNorth)
	if _, err := s.Apply(t.Context(), c, 0); !errors.Is(err, continuity.ErrNotOpen) {
		t.Errorf("before it was opened: %v", err)
	}
	if ok, err := s.Reopen(t.Context()); err != nil || !ok {
		t.Fatalf("%t, %v", ok, err)
	}
	if out, err := s.Apply(t.Context(), c, 0); err != nil || out.Epoch != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	s.open(1, continuity.Direct)
	if out, err := s.Apply(t.Context(), c, 1); err != nil || !out.Deduplicated {
		t.Errorf("%+v, %v", out, err)
	}
}
