package daydb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/rollingd/rollingd/contracts"
)

// RolloverHour is the local hour at which a business day begins: day D runs
// from D 05:00 to D+1 05:00 in the restaurant's own zone.
const RolloverHour = 5

var (
	// ErrInvalidDay is returned for text that is no real civil day as YYYYMMDD.
	ErrInvalidDay = errors.New("not a calendar day as YYYYMMDD")
	// ErrUnknownZone is returned for a time zone that Postgres does not know.
	ErrUnknownZone = errors.New("unknown time zone")
)

// Day is a civil date, the business day of a restaurant. It holds no time and
// no zone, so a change of clocks cannot move it. The zero Day is no day.
type Day struct {
	// n counts days from 0001-01-01, which is 1.
	n int32
}

// ParseDay reads a Day from its only format, YYYYMMDD.
func ParseDay(s string) (Day, error) {
	if !contracts.ValidDay(s) {
		return Day{}, fmt.Errorf("%w: %q", ErrInvalidDay, s)
	}
	t, err := time.Parse(dayLayout, s)
	if err != nil {
		return Day{}, fmt.Errorf("%w: %q", ErrInvalidDay, s)
	}
	return dayOfDate(t), nil
}

// DayOf returns the business day that the instant t belongs to in loc.
func DayOf(t time.Time, loc *time.Location) Day {
	local := t.In(loc)
	day := dayOfDate(time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, time.UTC))
	if local.Hour() < RolloverHour {
		return day.Add(-1)
	}
	return day
}

// rowQuerier is what reading one row needs: a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Today returns the business day that it is now in the given zone, by
// Postgres' now(). The hours are subtracted from the local wall clock, so the
// result does not depend on the zone of the session or of the process.
// ErrUnknownZone for a zone that was typed into the database by hand, or that
// this server's zone data do not have.
func Today(ctx context.Context, db rowQuerier, timezone string) (Day, error) {
	var day Day
	err := db.QueryRow(ctx,
		`select ((now() at time zone $1) - make_interval(hours => $2))::date`,
		timezone, RolloverHour).Scan(&day)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == stateInvalidParameter {
		return Day{}, fmt.Errorf("business day in %s: %w", timezone, ErrUnknownZone)
	}
	if err != nil {
		return Day{}, fmt.Errorf("business day in %s: %w", timezone, err)
	}
	return day, nil
}

// stateInvalidParameter is the SQLSTATE of a zone that Postgres does not know.
const stateInvalidParameter = "22023"

const (
	dayLayout     = "20060102"
	secondsPerDay = 24 * 60 * 60
)

// dayOfDate takes a midnight in UTC, where every day has 24 hours.
func dayOfDate(midnight time.Time) Day {
	return Day{n: int32((midnight.Unix()-dayZero)/secondsPerDay) + 1}
}

var dayZero = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

func (d Day) midnight() time.Time {
	return time.Unix(dayZero+int64(d.n-1)*secondsPerDay, 0).UTC()
}

// IsZero reports whether d is no day.
func (d Day) IsZero() bool { return d.n == 0 }

// Add returns the day that is n days later, or earlier when n is negative.
func (d Day) Add(n int) Day { return Day{n: d.n + int32(n)} }

// DaysSince returns how many days d lies after other; a difference of dates,
// not of hours.
func (d Day) DaysSince(other Day) int { return int(d.n - other.n) }

// Before reports whether d is an earlier day than other.
func (d Day) Before(other Day) bool { return d.n < other.n }

// String returns the day as YYYYMMDD, and the empty string for the zero Day.
func (d Day) String() string {
	if d.IsZero() {
		return ""
	}
	return d.midnight().Format(dayLayout)
}

// MarshalText writes the day as YYYYMMDD, for JSON among others.
func (d Day) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (d *Day) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Day{}
		return nil
	}
	day, err := ParseDay(string(text))
	if err != nil {
		return err
	}
	*d = day
	return nil
}

// DateValue makes a Day a Postgres date.
func (d Day) DateValue() (pgtype.Date, error) {
	if d.IsZero() {
		return pgtype.Date{}, nil
	}
	return pgtype.Date{Time: d.midnight(), Valid: true}, nil
}

// ScanDate makes a Postgres date a Day.
func (d *Day) ScanDate(v pgtype.Date) error {
	if !v.Valid {
		*d = Day{}
		return nil
	}
	if v.InfinityModifier != pgtype.Finite {
		return fmt.Errorf("%w: infinity", ErrInvalidDay)
	}
	*d = dayOfDate(v.Time)
	return nil
}

// Start returns the instant at which the business day begins in loc.
func (d Day) Start(loc *time.Location) time.Time {
	m := d.midnight()
	return time.Date(m.Year(), m.Month(), m.Day(), RolloverHour, 0, 0, 0, loc)
}
