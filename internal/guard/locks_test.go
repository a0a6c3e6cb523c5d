package guard

import (
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
)

func day(t testing.TB, s string) daydb.Day {
	t.Helper()
	d, err := daydb.ParseDay(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAge(t *testing.T) {
	for _, tc := range []struct {
		day, today string
		ttl        int
		green      bool
		greenOn    string
	}{
		{"20260801", "20260831", 30, false, "20260901"},
		{"20260801", "20260901", 30, true, "20260901"},
		// Thirty days across the night of 6 September, which has 23 hours in Chile.
		{"20260815", "20260914", 30, false, "20260915"},
		{"20260815", "20260915", 30, true, "20260915"},
		{"20260901", "20260901", 30, false, "20261002"},
		{"20260902", "20260901", 30, false, "20261003"},
		// Not even a lifetime of zero drops a day on the day itself.
		{"20260901", "20260901", 0, false, "20260902"},
		{"20260901", "20260901", -1, false, "20260902"},
		{"20260901", "20260902", 0, true, "20260902"},
		{"20241231", "20250101", 0, true, "20250101"},
		{"20240128", "20240229", 31, true, "20240229"},
	} {
		got := evaluateAge(day(t, tc.day), day(t, tc.today), tc.ttl)
		if got.Green != tc.green || got.GreenOn.String() != tc.greenOn {
			t.Errorf("%s on %s with %d days: green %v, green on %s; want %v, %s",
				tc.day, tc.today, tc.ttl, got.Green, got.GreenOn, tc.green, tc.greenOn)
		}
		if got.Green == (len(got.Reasons) > 0) {
			t.Errorf("%s on %s: green %v with reasons %v", tc.day, tc.today, got.Green, got.Reasons)
		}
	}
}

// TestEligibility runs through all 64 combinations: one of them is eligible.
func TestEligibility(t *testing.T) {
	eligible := 0
	for bits := range 64 {
		on := func(i int) bool { return bits>>i&1 == 1 }
		e := Eligibility{RollingDb: on(0), RollingDbDrop: on(1), Held: on(2), Lock1: on(3), Lock2: on(4), Lock3: on(5)}
		if ComputeEligibility(e) {
			eligible++
			if !e.RollingDb || !e.RollingDbDrop || e.Held || !e.Lock1 || !e.Lock2 || !e.Lock3 {
				t.Errorf("%+v is eligible", e)
			}
		}
	}
	if eligible != 1 {
		t.Errorf("%d combinations are eligible, want 1", eligible)
	}
}

// TestEveryCodeHasWords holds the table of words against the codes.
func TestEveryCodeHasWords(t *testing.T) {
	for _, code := range []string{
		CodeNonTerminal, CodeCoreType, CodeNoType, CodeConflict, CodeMissing, CodeExtra, CodeChanged, CodeAttachments,
		CodeRejected, CodePending, CodePurged, CodeAbsent, CodeIncarnation, CodeAge, CodeFutureDay,
	} {
		if words[code].many == "" {
			t.Errorf("%s has no words", code)
		}
	}
	one := Reason{Code: CodeNonTerminal, Count: 1, DocIDs: []string{"order-7"}}
	if got, want := one.words(), "1 document is still open: close, pay or cancel it on a till of the restaurant (order-7)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	many := Reason{Code: CodeConflict, Count: 12, DocIDs: []string{"a", "b"}}
	if got, want := many.words(), "12 documents have conflicting revisions: delete the losing ones (a, b, …)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNextRotation says when a day is activated or drained, which waits for nobody but the clock.
func TestNextRotation(t *testing.T) {
	zone, err := time.LoadLocation("America/Santiago")
	if err != nil {
		t.Fatal(err)
	}
	on := circumstances{
		now:   time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC),
		zone:  zone,
		today: day(t, "20261130"),
		flags: flags.Flags{RollingDb: true},
	}
	off := on
	off.flags.RollingDb = false
	tomorrow := "2026-12-01T08:00:00Z"
	for _, tc := range []struct {
		name   string
		c      circumstances
		state  daydb.State
		day    string
		action string
		when   string
	}{
		{name: "tomorrow", c: on, state: daydb.Prewarmed, day: "20261201", action: "activate", when: tomorrow},
		{name: "today", c: on, state: daydb.Active, day: "20261130", action: "drain", when: tomorrow},
		{name: "left behind by a rotation that failed", c: on, state: daydb.Active, day: "20261128", action: "drain", when: tomorrow},
		{name: "switched off", c: off, state: daydb.Active, day: "20261130", action: "none"},
	} {
		d := daydb.DayDB{State: tc.state, BusinessDay: day(t, tc.day)}
		got := (&Guard{}).next(d, tc.c, Explanation{})
		when := ""
		if got.When != nil {
			when = got.When.Format(time.RFC3339)
		}
		if got.Action != tc.action || when != tc.when {
			t.Errorf("%s: %s at %q, want %s at %q", tc.name, got.Action, when, tc.action, tc.when)
		}
	}
}
