package device

import (
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestClockIsReadInABusyLedger has notifications come without a quiet time, on a
// machine whose monotonic clock stood still for an hour.
func TestClockIsReadInABusyLedger(t *testing.T) {
	pool := pgtest.New(t)
	view := NewView()
	if err := view.LoadAll(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	view.clock.read = view.clock.read.Add(-time.Hour)
	if err := view.load(t.Context(), pool, []daydb.Restaurant{north}); err != nil {
		t.Fatal(err)
	}
	var now time.Time
	if err := pool.QueryRow(t.Context(), `select now()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	if behind := now.Sub(view.Now()); behind > 30*time.Minute {
		t.Errorf("the clock is %s behind", behind)
	}
}
