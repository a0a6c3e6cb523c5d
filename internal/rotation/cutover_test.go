package rotation_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/run"
)

// TestNotRoutedIntoADayThatIsOver: a company that was switched off and on again
// has restaurants whose ACTIVE day is from before. A run of one of them alone
// must not send the tills of the others there.
func TestNotRoutedIntoADayThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	today := w.today()
	w.rotated(run.Scope{BusinessDay: today.Add(-3)})
	if !w.flags("acme").DeviceRouted {
		t.Fatal("the company is not routed")
	}
	w.setFlags("acme", false)
	w.setFlags("acme", true)

	canary := run.Scope{CompanyID: r1.CompanyID, RestaurantID: r1.RestaurantID}
	report := w.rotated(canary)
	w.wantStates(r1, today.Add(-3).String()+" DRAINING", today.Add(-2).String()+" DRAINING", today.String()+" ACTIVE", today.Add(1).String()+" PREWARMED")
	if w.flags("acme").DeviceRouted {
		t.Error("tills of r2 are routed into a day that was over three days ago")
	}
	if report.Counters()["waiting"] != 1 {
		t.Errorf("the run does not say that the company waits: %v", report.Counters())
	}

	w.rotated(run.Scope{})
	if !w.flags("acme").DeviceRouted {
		t.Error("the company is not routed once r2 has its day")
	}
}
