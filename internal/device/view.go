package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
)

// ErrNotLoaded is returned while the view has never been read.
var ErrNotLoaded = errors.New("the view of the ledger is not loaded yet")

// View is the part of Postgres that decides on a device's request, in memory: no
// request of a device makes a query. Follow keeps it fresh. While Postgres is
// away it stays as it was last: what it lets through then that it should not,
// CouchDB refuses by itself, since a seal closes _security before anything else.
type View struct {
	mu          sync.RWMutex
	restaurants map[daydb.Restaurant]*restaurant
	flags       map[string]flags.Flags
	changed     chan struct{}
	clock       clock
	// tell is set before the view is followed.
	tell func(named []daydb.Restaurant)
}

// restaurant is what the view knows of one. It is replaced, never changed.
type restaurant struct {
	legacyDB string
	days     map[daydb.Day]day
	// newest is the last day that the ledger knows.
	newest daydb.Day
	// revoked is until when the tokens of all devices are refused, devices of
	// some; zero times are never.
	revoked time.Time
	devices map[string]time.Time
}

// day is a row of the ledger as far as devices are concerned.
type day struct {
	state daydb.State
	// closed says that its seal or its drop has begun.
	closed bool
}

// clock tells Postgres' time between two looks at it.
type clock struct {
	read  time.Time
	start time.Time
}

// NewView returns a view that is not loaded yet.
func NewView() *View {
	return &View{changed: make(chan struct{}), tell: func([]daydb.Restaurant) {}}
}

// Tell has fn called after each change with what was read again, nil for all
// there is; a restaurant without an id stands for all of its company's. It has to
// be called before Follow, which waits for fn.
func (v *View) Tell(fn func(named []daydb.Restaurant)) { v.tell = fn }

// Now is Postgres' time: as last read, and carried on by the monotonic clock.
func (v *View) Now() time.Time {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.clock.read.Add(time.Since(v.clock.start))
}

// Changed returns a channel that is closed at the next change of the view.
func (v *View) Changed() <-chan struct{} {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.changed
}

// Loaded reports whether the view has been read at all.
func (v *View) Loaded() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.restaurants != nil
}

// find returns what is known of a restaurant, nil if it is not registered.
func (v *View) find(r daydb.Restaurant) (*restaurant, flags.Flags, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.restaurants == nil {
		return nil, flags.Flags{}, ErrNotLoaded
	}
	return v.restaurants[r], v.flags[r.CompanyID], nil
}

// LoadAll reads everything.
func (v *View) LoadAll(ctx context.Context, db pg.Querier) error {
	if err := v.readClock(ctx, db); err != nil {
		return err
	}
	all, err := readRestaurants(ctx, db, nil)
	if err != nil {
		return err
	}
	everyFlag, err := flags.All(ctx, db)
	if err != nil {
		return err
	}
	v.publish(func() { v.restaurants, v.flags = all, everyFlag })
	v.tell(nil)
	return nil
}

// load reads again what notifications have named.
func (v *View) load(ctx context.Context, db pg.Querier, named []daydb.Restaurant) error {
	// There may be no quiet time for long.
	if err := v.readClock(ctx, db); err != nil {
		return err
	}
	read, err := readRestaurants(ctx, db, named)
	if err != nil {
		return err
	}
	// All of them: companies are few, and a notification may be of flags alone.
	everyFlag, err := flags.All(ctx, db)
	if err != nil {
		return err
	}
	v.publish(func() {
		v.flags = everyFlag
		for r, known := range read {
			v.restaurants[r] = known
		}
	})
	v.tell(named)
	return nil
}

func (v *View) publish(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *View) readClock(ctx context.Context, db pg.Querier) error {
	var now time.Time
	if err := db.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	// From the answer on: this clock is behind Postgres' by the way back, and
	// never ahead, so that what is dated by it does not outlast a revocation.
	start := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clock = clock{read: now, start: start}
	return nil
}

// readRestaurants reads those that are named, or all of them for nil.
func readRestaurants(ctx context.Context, db pg.Querier, named []daydb.Restaurant) (map[daydb.Restaurant]*restaurant, error) {
	companies, ids := []string{}, []string{}
	for _, r := range named {
		companies, ids = append(companies, r.CompanyID), append(ids, r.RestaurantID)
	}
	args := pgx.NamedArgs{"all": named == nil, "companies": companies, "restaurants": ids}
	const which = ` where @all or (company_id, restaurant_id) in
		(select * from unnest(@companies::text[], @restaurants::text[]))`

	all := make(map[daydb.Restaurant]*restaurant)
	var (
		r      daydb.Restaurant
		legacy string
	)
	err := each(ctx, db, `select company_id, restaurant_id, legacy_db from restaurants`+which, args,
		[]any{&r.CompanyID, &r.RestaurantID, &legacy}, func() {
			all[r] = &restaurant{legacyDB: legacy, days: make(map[daydb.Day]day), devices: make(map[string]time.Time)}
		})
	if err != nil {
		return nil, fmt.Errorf("read restaurants: %w", err)
	}
	var (
		date daydb.Day
		d    day
	)
	err = each(ctx, db, `
		select
		  company_id,
		  restaurant_id,
		  business_day,
		  state,
		  seal_started_at is not null or drop_intended_at is not null
		from day_databases`+which+` order by business_day`, args,
		[]any{&r.CompanyID, &r.RestaurantID, &date, &d.state, &d.closed}, func() {
			if known := all[r]; known != nil {
				known.days[date], known.newest = d, date
			}
		})
	if err != nil {
		return nil, fmt.Errorf("read day databases: %w", err)
	}
	var (
		device  string
		revoked time.Time
	)
	err = each(ctx, db, `select company_id, restaurant_id, device_id, revoked_at from device_revocations`+which, args,
		[]any{&r.CompanyID, &r.RestaurantID, &device, &revoked}, func() {
			known := all[r]
			switch {
			case known == nil:
			case device == "":
				known.revoked = revoked
			default:
				known.devices[device] = revoked
			}
		})
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	return all, nil
}

func each(ctx context.Context, db pg.Querier, sql string, args pgx.NamedArgs, into []any, fn func()) error {
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return pg.Translate(err)
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		fn()
		return nil
	})
	return pg.Translate(err)
}
