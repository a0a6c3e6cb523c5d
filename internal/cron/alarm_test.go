package cron

import (
	"testing"
	"time"

	robfig "github.com/robfig/cron/v3"
)

func TestAlarmRingsForTheZonesInUse(t *testing.T) {
	t.Parallel()
	clock := robfig.New(robfig.WithLocation(time.UTC))
	clock.Start()
	defer clock.Stop()
	a := newAlarm(clock)
	soon := entry{zone: "UTC", schedule: robfig.Every(time.Second)}
	late := entry{zone: "Pacific/Easter", schedule: robfig.Every(time.Hour)}
	a.set([]entry{soon, late})
	a.set([]entry{soon, late}) // Again, as every look does.
	if n := len(clock.Entries()); n != 2 {
		t.Errorf("%d entries of two zones", n)
	}
	<-a.rings
	a.set([]entry{late})
	if n := len(clock.Entries()); n != 1 {
		t.Errorf("%d entries of one zone", n)
	}
	a.ring()
	a.ring() // Nobody listens, and nobody is held up.
	a.clear()
	if n := len(clock.Entries()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}
