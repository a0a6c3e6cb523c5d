package manifest_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/manifest"
)

func parseDay(t testing.TB, s string) daydb.Day {
	t.Helper()
	day, err := daydb.ParseDay(s)
	if err != nil {
		t.Fatal(err)
	}
	return day
}

func TestBuild(t *testing.T) {
	created := "1796026337"
	day := func(s string, state daydb.State, created *string) daydb.DayDB {
		return daydb.DayDB{BusinessDay: parseDay(t, s), State: state, InstanceStartTime: created}
	}
	tests := map[string]struct {
		days     []daydb.DayDB
		current  string
		overlays []string
	}{
		"nothing": {nil, "", nil},
		"one day": {[]daydb.DayDB{day("20261130", daydb.Active, &created)}, "20261130", nil},
		"newest first, whatever the order of entry": {[]daydb.DayDB{
			day("20261128", daydb.Draining, &created),
			day("20261130", daydb.Active, &created),
			day("20261129", daydb.Draining, &created),
			day("20261001", daydb.Draining, &created),
		}, "20261130", []string{"20261129", "20261128", "20261001"}},
		"only days that devices mount": {[]daydb.DayDB{
			day("20261201", daydb.Prewarmed, &created),
			day("20261129", daydb.Archived, &created),
			day("20261128", daydb.Droppable, &created),
			day("20261127", daydb.Dropped, &created),
		}, "", nil},
		"only databases that were created": {[]daydb.DayDB{
			day("20261130", daydb.Active, nil),
			day("20261129", daydb.Draining, nil),
		}, "", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := manifest.Build(tt.days)
			current := ""
			if m.CurrentBusinessDay != nil {
				current = *m.CurrentBusinessDay
				if *m.CurrentDayDB != "daily_"+current {
					t.Errorf("current database %s", *m.CurrentDayDB)
				}
			}
			var overlays []string
			for _, o := range m.Overlays {
				overlays = append(overlays, o.BusinessDay)
				if o.DBName != "daily_"+o.BusinessDay {
					t.Errorf("overlay %+v", o)
				}
			}
			if current != tt.current || fmt.Sprint(overlays) != fmt.Sprint(tt.overlays) {
				t.Errorf("current %q, overlays %v", current, overlays)
			}
			m.Generation, m.UpdatedAt = 1, "2026-11-30T08:00:03Z"
			raw, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := contracts.ParseDayManifest(raw); err != nil {
				t.Errorf("a device cannot read %s: %v", raw, err)
			}
		})
	}
}
