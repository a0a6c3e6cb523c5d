// Package demo plays business days of two restaurants against a running server:
// simulated tills write to CouchDB as devices do, the nights are run through the
// admin API, and at the end every document that a till was ever told is stored
// is looked for in CouchDB and in Postgres, byte for byte.
//
// It knows the server from outside only, by HTTP and SQL, and uses no package of
// the product: what looks for a loss must not share the code that could lose.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of a play. The server must be fresh: without restaurants, and with no
// databases of its environment in CouchDB.
type Options struct {
	// API is the URL of the server, Token one of its tokens, with the role
	// destroyer.
	API, Token string
	// CouchDB is the URL of the server's CouchDB, with an administrator's
	// credentials; ProxySecret is the secret of its proxy authentication.
	CouchDB, ProxySecret string
	// Database is the DSN of the server's Postgres.
	Database string
	// Env is the server's environment, the prefix of its database names.
	Env string

	// Days is how many business days are played, the last of which is today.
	Days int
	// TTLDays is the server's own: the age that a day must exceed to be dropped.
	TTLDays int
	// Seed makes two plays sell the same.
	Seed uint64

	// Progress gets a line for each day, written over the one before if InPlace.
	Progress io.Writer
	InPlace  bool
}

// BeyondTTL is how many days a play needs beyond the TTL, so that the days of
// the script have come to their end: the last of them is dropped.
const BeyondTTL = 5

func (o Options) validate() error {
	if o.Days < o.TTLDays+BeyondTTL {
		return fmt.Errorf("%d days are too few to see a database dropped that must be older than %d days: play %d or more",
			o.Days, o.TTLDays, o.TTLDays+BeyondTTL)
	}
	return nil
}

// Play plays all days, and then verifies. What went wrong in the play is in the
// summary's Faults; an error is what kept it from being played to its end.
func Play(ctx context.Context, opts Options) (Summary, error) {
	began := time.Now()
	if err := opts.validate(); err != nil {
		return Summary{}, err
	}
	pool, err := pgxpool.New(ctx, opts.Database)
	if err != nil {
		return Summary{}, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer pool.Close()
	couch, err := newCouchDB(opts.CouchDB)
	if err != nil {
		return Summary{}, err
	}
	p := newPlay(opts, couch, pool)
	if err := p.calendar(ctx); err != nil {
		return Summary{}, err
	}
	progress := newProgress(opts.Progress, opts.InPlace, began)
	err = p.run(ctx, progress)
	progress.end()
	if err != nil {
		return Summary{}, err
	}
	summary, err := p.summarize(ctx)
	summary.Seconds = time.Since(began).Seconds()
	return summary, err
}

// zones are where the restaurants can be; the first is used unless a night of
// the server's own schedule is near there, which would take part in the play.
var zones = []string{"America/Santiago", "Asia/Tokyo"}

// calendar chooses the zone and counts the days back from today, by Postgres'
// clock.
func (p *play) calendar(ctx context.Context) error {
	for _, zone := range zones {
		hour, today, err := p.today(ctx, zone)
		if err != nil {
			return err
		}
		if hour >= 2 && hour <= 5 {
			continue
		}
		p.zone = zone
		for i := range p.opts.Days {
			p.days = append(p.days, daysBefore(today, p.opts.Days-1-i))
		}
		p.eve = daysBefore(today, p.opts.Days)
		return nil
	}
	return errors.New("it is night everywhere") // The zones are half a day apart.
}

// today returns the local hour and the date of the business day, by Postgres'
// clock.
func (p *play) today(ctx context.Context, zone string) (hour int, day time.Time, err error) {
	err = p.pool.QueryRow(ctx, `
		select
		  extract(hour from now() at time zone $1)::int,
		  ((now() at time zone $1) - interval '5 hours')::date`, zone).Scan(&hour, &day)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("today in %s: %w", zone, err)
	}
	return hour, day, nil
}

func daysBefore(day time.Time, n int) string { return day.AddDate(0, 0, -n).Format("20060102") }
