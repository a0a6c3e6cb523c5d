package cron

import (
	"testing"
	"time"
)

// fleetZones are the zones of Chile, whose clocks change at midnight, and some that change at other hours or never.
var fleetZones = []string{
	"America/Santiago",
	"America/Punta_Arenas",
	"Pacific/Easter",
	"America/Sao_Paulo",
	"America/New_York",
	"Europe/Lisbon",
	"Asia/Kathmandu",
	"UTC",
}

func mustLoad(t *testing.T, zone string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// TestOncePerCivilDate walks through two years of both schedules: every date has its one scheduled time, at that hour of
// the local clock, also on the dates on which the clock changes.
func TestOncePerCivilDate(t *testing.T) {
	for _, local := range []string{"UTC", "America/Santiago", "Pacific/Kiritimati"} {
		setLocal(t, mustLoad(t, local))
		for _, zone := range fleetZones {
			for spec, hour := range map[string]int{"0 4 * * *": 4, "0 5 * * *": 5} {
				loc := mustLoad(t, zone)
				schedule, err := parse(spec, loc)
				if err != nil {
					t.Fatal(err)
				}
				at := time.Date(2025, 12, 31, 12, 0, 0, 0, loc)
				for day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < 2028; day = day.AddDate(0, 0, 1) {
					at = schedule.Next(at)
					got := at.In(loc)
					if got.Year() != day.Year() || got.YearDay() != day.YearDay() || got.Hour() != hour || got.Minute() != 0 {
						t.Fatalf("process in %s: %s in %s on %s is at %s", local, spec, zone, day.Format(time.DateOnly), got)
					}
				}
			}
		}
	}
}

// setLocal sets the zone of the process, as TZ does.
func setLocal(t *testing.T, loc *time.Location) {
	former := time.Local
	time.Local = loc
	t.Cleanup(func() { time.Local = former })
}

func TestLastDue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, zone, spec string
		since, now       string
		want             string
	}{
		{"the minute itself", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-11-30T08:00:00Z", "2026-11-30T08:00:00Z"},
		{"a moment before", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-11-30T07:59:59Z", "2026-11-29T08:00:00Z"},
		{"the night the clock falls back", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-04-05T12:00:00Z", "2026-04-05T09:00:00Z"},
		{"the day before", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-04-05T08:59:00Z", "2026-04-04T08:00:00Z"},
		{"the night the clock springs forward", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-09-06T12:00:00Z", "2026-09-06T08:00:00Z"},
		{"four in that night", "America/Santiago", "0 4 * * *", "2026-01-01T00:00:00Z", "2026-09-06T12:00:00Z", "2026-09-06T07:00:00Z"},
		{"no change in the south", "America/Punta_Arenas", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-06-15T12:00:00Z", "2026-06-15T08:00:00Z"},
		{"two hours later on the island", "Pacific/Easter", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-06-15T12:00:00Z", "2026-06-15T11:00:00Z"},
		{"the island falls back at 22:00", "Pacific/Easter", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-04-05T12:00:00Z", "2026-04-05T11:00:00Z"},
		{"nothing before the cron was known", "America/Santiago", "0 5 * * *", "2026-11-30T08:00:00Z", "2026-11-30T20:00:00Z", ""},
		{"known a moment before", "America/Santiago", "0 5 * * *", "2026-11-30T07:59:59Z", "2026-11-30T20:00:00Z", "2026-11-30T08:00:00Z"},
		{"after a month away", "America/Santiago", "0 5 * * *", "2026-01-01T00:00:00Z", "2026-11-30T20:00:00Z", "2026-11-30T08:00:00Z"},
		{"monthly", "UTC", "0 3 1 * *", "2026-01-01T00:00:00Z", "2026-11-30T20:00:00Z", "2026-11-01T03:00:00Z"},
		{"yearly", "UTC", "0 3 1 1 *", "2020-01-01T00:00:00Z", "2026-12-31T20:00:00Z", "2026-01-01T03:00:00Z"},
		{"every minute", "UTC", "* * * * *", "2026-01-01T00:00:00Z", "2026-11-30T20:00:59Z", "2026-11-30T20:00:00Z"},
		{"never", "UTC", "0 0 30 2 *", "2020-01-01T00:00:00Z", "2026-11-30T20:00:00Z", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			schedule, err := parse(c.spec, mustLoad(t, c.zone))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if at := lastDue(schedule, mustTime(t, c.since), mustTime(t, c.now)); !at.IsZero() {
				got = at.UTC().Format(time.RFC3339)
			}
			if got != c.want {
				t.Errorf("last due is %q, want %q", got, c.want)
			}
		})
	}
}

func mustTime(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"", "5", "0 5 * *", "61 * * * *", "@every 1h", "daily"} {
		if _, err := parse(spec, time.UTC); err == nil {
			t.Errorf("%q is taken for a schedule", spec)
		}
	}
}
