package daydb_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // A container without zone data must not fail these.

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func day(t testing.TB, s string) daydb.Day {
	t.Helper()
	d, err := daydb.ParseDay(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// starts holds when business days begin around the changes of 2026, as instants
// worked out by hand: Chile's clocks change at midnight, forward on 6 September
// (there is no 00:30) and back on 5 April (there are two 23:30 on the 4th).
var starts = []struct{ zone, day, at string }{
	{"America/Santiago", "20260404", "2026-04-04T08:00:00Z"},
	{"America/Santiago", "20260405", "2026-04-05T09:00:00Z"},
	{"America/Santiago", "20260406", "2026-04-06T09:00:00Z"},
	{"America/Santiago", "20260905", "2026-09-05T09:00:00Z"},
	{"America/Santiago", "20260906", "2026-09-06T08:00:00Z"},
	{"America/Santiago", "20260907", "2026-09-07T08:00:00Z"},
	{"Pacific/Easter", "20260404", "2026-04-04T10:00:00Z"},
	{"Pacific/Easter", "20260405", "2026-04-05T11:00:00Z"},
	{"Pacific/Easter", "20260905", "2026-09-05T11:00:00Z"},
	{"Pacific/Easter", "20260906", "2026-09-06T10:00:00Z"},
	{"America/Punta_Arenas", "20260405", "2026-04-05T08:00:00Z"},
	{"America/Punta_Arenas", "20260906", "2026-09-06T08:00:00Z"},
	{"UTC", "20260101", "2026-01-01T05:00:00Z"},
	{"Asia/Kathmandu", "20260101", "2025-12-31T23:15:00Z"},
	{"Pacific/Kiritimati", "20260101", "2025-12-31T15:00:00Z"},
}

func TestDayOfAndStart(t *testing.T) {
	// The zone of the process changes nothing.
	local := time.Local
	defer func() { time.Local = local }()
	for _, process := range []string{"UTC", "Asia/Tokyo", "America/Santiago"} {
		time.Local = location(t, process)
		for _, tt := range starts {
			at, err := time.Parse(time.RFC3339, tt.at)
			if err != nil {
				t.Fatal(err)
			}
			loc, want := location(t, tt.zone), day(t, tt.day)
			if got := daydb.DayOf(at, loc); got != want {
				t.Errorf("DayOf(%s, %s) = %s, want %s", tt.at, tt.zone, got, want)
			}
			if got := daydb.DayOf(at.Add(-time.Nanosecond), loc); got != want.Add(-1) {
				t.Errorf("DayOf just before %s in %s = %s, want %s", tt.at, tt.zone, got, want.Add(-1))
			}
			if got := want.Start(loc); !got.Equal(at) {
				t.Errorf("%s begins in %s at %s, want %s", tt.day, tt.zone, got.UTC(), tt.at)
			}
		}
	}
}

// at makes Today decide as if now() were this instant.
type at struct {
	conn    *pgx.Conn
	instant string
}

func (a at) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if strings.Count(sql, "now()") != 1 {
		panic("Today asks for the time in another way: " + sql)
	}
	return a.conn.QueryRow(ctx, strings.ReplaceAll(sql, "now()", "timestamptz '"+a.instant+"'"), args...)
}

// Postgres and Go agree on the business day at every hour around the changes of
// clocks, whatever the zone of the session.
func TestTodayAgreesWithDayOf(t *testing.T) {
	pool := pgtest.New(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, session := range []string{"Asia/Tokyo", "America/Santiago"} {
		if _, err := conn.Exec(t.Context(), `set timezone to '`+session+`'`); err != nil {
			t.Fatal(err)
		}
		for _, zone := range []string{"America/Santiago", "Pacific/Easter", "America/Punta_Arenas"} {
			loc := location(t, zone)
			for _, from := range []string{"2026-04-03T12:00:00Z", "2026-09-05T00:00:00Z", "2026-12-31T00:00:00Z"} {
				instant, err := time.Parse(time.RFC3339, from)
				if err != nil {
					t.Fatal(err)
				}
				for range 120 {
					for _, moment := range []time.Time{instant, instant.Add(-time.Microsecond)} {
						text := moment.Format(time.RFC3339Nano)
						got, err := daydb.Today(t.Context(), at{conn.Conn(), text}, zone)
						if err != nil {
							t.Fatal(err)
						}
						if want := daydb.DayOf(moment, loc); got != want {
							t.Errorf("%s in %s, session in %s: Postgres says %s, Go %s", text, zone, session, got, want)
						}
					}
					instant = instant.Add(30 * time.Minute)
				}
			}
		}
	}
	if _, err := daydb.Today(t.Context(), pool, "America/Nowhere"); err == nil {
		t.Error("a zone that does not exist has a business day")
	}
}

// A difference of dates: thirty days across September are 719 hours.
func TestDaysAreDates(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		days     int
	}{
		{"20260830", "20260929", 30},
		{"20260320", "20260419", 30},
		{"20240228", "20240301", 2},
		{"20230228", "20230301", 1},
		{"20261231", "20270101", 1},
		{"00010101", "99991231", 3652058},
	} {
		from, to := day(t, tt.from), day(t, tt.to)
		if got := to.DaysSince(from); got != tt.days {
			t.Errorf("%s to %s: %d days, want %d", tt.from, tt.to, got, tt.days)
		}
		if got := from.Add(tt.days); got != to {
			t.Errorf("%s + %d = %s, want %s", tt.from, tt.days, got, tt.to)
		}
		if !from.Before(to) || to.Before(from) || from.Before(from) {
			t.Errorf("Before is wrong for %s and %s", tt.from, tt.to)
		}
	}
}

func TestDayInPostgres(t *testing.T) {
	pool := pgtest.New(t)
	for _, text := range []string{"20260906", "00010101", "99991231", "19691231", ""} {
		var want daydb.Day
		if text != "" {
			want = day(t, text)
		}
		var got daydb.Day
		var shown *string
		err := pool.QueryRow(t.Context(), `select $1::date, to_char($1::date, 'YYYYMMDD')`, want).Scan(&got, &shown)
		if err != nil {
			t.Fatal(err)
		}
		if got != want || (shown == nil) != want.IsZero() || shown != nil && *shown != text {
			t.Errorf("%q came back as %s, shown as %v", text, got, shown)
		}
	}
	var d daydb.Day
	if err := d.ScanDate(pgtype.Date{Valid: true, InfinityModifier: pgtype.Infinity}); !errors.Is(err, daydb.ErrInvalidDay) {
		t.Errorf("infinity: %v", err)
	}
}

func TestDayInJSON(t *testing.T) {
	var v struct {
		Day  daydb.Day `json:"day"`
		None daydb.Day `json:"none,omitzero"`
	}
	if err := json.Unmarshal([]byte(`{"day":"20260906"}`), &v); err != nil || v.Day != day(t, "20260906") {
		t.Errorf("%+v, %v", v, err)
	}
	if raw, err := json.Marshal(v); err != nil || string(raw) != `{"day":"20260906"}` {
		t.Errorf("%s, %v", raw, err)
	}
	if err := json.Unmarshal([]byte(`{"day":"20260230"}`), &v); !errors.Is(err, daydb.ErrInvalidDay) {
		t.Errorf("30 February: %v", err)
	}
}

func FuzzParseDay(f *testing.F) {
	for _, s := range []string{"20260906", "20260230", "20240229", "2026-09-06", "", "00000101", "99991231", "+2026090", "２０２６0906"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := daydb.ParseDay(s)
		want, parseErr := time.Parse("20060102", s)
		if (err == nil) != (parseErr == nil && want.Year() >= 1) {
			t.Fatalf("ParseDay(%q): %v, time.Parse: %v", s, err, parseErr)
		}
		if err != nil {
			if !errors.Is(err, daydb.ErrInvalidDay) || !d.IsZero() {
				t.Errorf("ParseDay(%q) = %s, %v", s, d, err)
			}
			return
		}
		if d.String() != s {
			t.Errorf("ParseDay(%q) is %s", s, d)
		}
		if back := d.Add(1).Add(-1); back != d || d.Add(1).DaysSince(d) != 1 {
			t.Errorf("%s is not a day after %s", d.Add(1), d)
		}
	})
}
