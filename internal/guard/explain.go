package guard

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/robfig/cron/v3"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
)

// Explanation answers, for one day database, why it is still here.
type Explanation struct {
	DBName string `json:"dbName"`
	daydb.Restaurant
	BusinessDay daydb.Day   `json:"businessDay"`
	State       daydb.State `json:"state"`
	Since       time.Time   `json:"since"`
	AgeDays     int         `json:"ageDays"`
	// Documents and Archived count documents and deletions as of the last
	// evaluation; nil before the first one.
	Documents *int64       `json:"documents"`
	Archived  *int64       `json:"archived"`
	Hold      *daydb.Hold  `json:"hold"`
	SealedAt  *time.Time   `json:"sealedAt"`
	DroppedAt *time.Time   `json:"droppedAt"`
	Locks     *Locks       `json:"locks"`
	Eligible  bool         `json:"eligible"`
	Next      Next         `json:"next"`
	History   []daydb.Line `json:"history,omitempty"`
	Proof     *Proof       `json:"proof"`
	// DropIntendedAt is set once a drop was committed; see the history.
	DropIntendedAt *time.Time `json:"dropIntendedAt"`
	Restored       []Restored `json:"restored,omitempty"`
	// Unsynced is what devices say that they hold of the day; those that are
	// waited for keep lock 1 red.
	Unsynced []daydb.Unsynced `json:"unsynced,omitempty"`
	// Warnings say what CouchDB has at this moment that is not as it should be.
	Warnings []string `json:"warnings,omitempty"`
	// Summary says all of it in words, a line each.
	Summary []string `json:"summary,omitempty"`
}

// Locks as of the last evaluation.
type Locks struct {
	Lock1 Lock  `json:"lock1"`
	Lock2 Lock2 `json:"lock2"`
	Lock3 Lock3 `json:"lock3"`
}

// Next is what happens next, when, and why then. When is nil for what waits for
// a person.
type Next struct {
	Action  string     `json:"action"`
	When    *time.Time `json:"when"`
	Because string     `json:"because"`
}

// Proof of the last complete comparison.
type Proof struct {
	SHA256    string    `json:"sha256"`
	Documents int64     `json:"documents"`
	At        time.Time `json:"at"`
}

// Restored is a copy of a dropped day, rebuilt from the archive.
type Restored struct {
	DBName    string    `json:"dbName"`
	State     string    `json:"state"`
	Documents int64     `json:"documents"`
	Reason    string    `json:"reason"`
	Actor     string    `json:"actor"`
	CreatedAt time.Time `json:"createdAt"`
}

// Explain answers for one day, with its history. ErrNotFound of package daydb
// for a name that is not in the ledger.
func (g *Guard) Explain(ctx context.Context, name string) (Explanation, error) {
	d, err := daydb.Load(ctx, g.Pool, name)
	if err != nil {
		return Explanation{}, err
	}
	around, err := g.circumstances(ctx, []daydb.DayDB{d})
	if err != nil {
		return Explanation{}, err
	}
	x := g.describe(d, around[d.ID])
	if x.History, err = daydb.History(ctx, g.Pool, d.ID); err != nil {
		return Explanation{}, err
	}
	if x.Restored, err = restoredOf(ctx, g.Pool, d.ID); err != nil {
		return Explanation{}, err
	}
	x.Warnings = g.present(ctx, d)
	x.Summary = summarize(x, around[d.ID])
	return x, nil
}

// List answers for many days, without history and summary.
func (g *Guard) List(ctx context.Context, f daydb.Filter) ([]Explanation, error) {
	days, err := daydb.List(ctx, g.Pool, f)
	if err != nil {
		return nil, err
	}
	around, err := g.circumstances(ctx, days)
	if err != nil {
		return nil, err
	}
	all := make([]Explanation, 0, len(days))
	for _, d := range days {
		all = append(all, g.describe(d, around[d.ID]))
	}
	return all, nil
}

// circumstances are what an explanation needs beyond the row.
type circumstances struct {
	now time.Time
	// zone is UTC when that of the restaurant, unknownZone, does not exist.
	zone        *time.Location
	unknownZone string
	today       daydb.Day
	flags       flags.Flags
	// inactive restaurants are not rotated; what they left behind is evaluated.
	inactive bool
	// paused says of a cron, by its name, who has paused it and why.
	paused map[string]string
	last   *Evaluation

	elsewhere elsewhere
}

func (g *Guard) circumstances(ctx context.Context, days []daydb.DayDB) (map[int64]circumstances, error) {
	ids := idsOf(days)
	last, err := latestOf(ctx, g.Pool, ids)
	if err != nil {
		return nil, err
	}
	around, err := g.elsewhereOf(ctx, g.Pool, ids...)
	if err != nil {
		return nil, err
	}
	paused, err := pauses(ctx, g.Pool)
	if err != nil {
		return nil, err
	}
	rows, err := g.Pool.Query(ctx, `
		select
		  d.id,
		  now(),
		  r.timezone,
		  not r.active,
		  coalesce(f.rolling_db, false),
		  coalesce(f.rolling_db_drop, false),
		  coalesce(f.device_routed, false)
		from day_databases d
		join restaurants r using (company_id, restaurant_id)
		left join company_feature_flags f using (company_id)
		where d.id = any($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("circumstances: %w", err)
	}
	all := make(map[int64]circumstances, len(days))
	var (
		id       int64
		timezone string
	)
	c := circumstances{paused: paused}
	scan := []any{&id, &c.now, &timezone, &c.inactive, &c.flags.RollingDb, &c.flags.RollingDbDrop, &c.flags.DeviceRouted}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		found := c
		found.last, found.elsewhere = last[id], around[id]
		if found.zone, err = time.LoadLocation(timezone); err != nil {
			found.zone, found.unknownZone = time.UTC, timezone
		}
		found.today = daydb.DayOf(found.now, found.zone)
		all[id] = found
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("circumstances: %w", err)
	}
	return all, nil
}

// pauses returns what is said of each cron that is paused.
func pauses(ctx context.Context, db daydb.Querier) (map[string]string, error) {
	rows, err := db.Query(ctx, `select cron, actor, reason from cron_pauses`)
	if err != nil {
		return nil, fmt.Errorf("pauses: %w", err)
	}
	paused := make(map[string]string)
	var name, actor, reason string
	_, err = pgx.ForEachRow(rows, []any{&name, &actor, &reason}, func() error {
		paused[name] = fmt.Sprintf("%s is paused by %s: %s", name, actor, reason)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pauses: %w", err)
	}
	return paused, nil
}

func (g *Guard) describe(d daydb.DayDB, c circumstances) Explanation {
	x := Explanation{
		DBName:         d.Name,
		Restaurant:     d.Restaurant,
		BusinessDay:    d.BusinessDay,
		State:          d.State,
		Since:          d.Since.UTC(),
		AgeDays:        c.today.DaysSince(d.BusinessDay),
		Hold:           d.Hold,
		SealedAt:       d.SealedAt,
		DroppedAt:      d.DroppedAt,
		DropIntendedAt: d.DropIntendedAt,
		Unsynced:       c.elsewhere.unsynced,
	}
	if c.last != nil {
		e := g.reuse(*c.last, d, c.flags, c.today, c.elsewhere)
		e.Lock3.EvaluatedAt = c.now.UTC()
		x.Locks = &Locks{Lock1: e.Lock1, Lock2: e.Lock2, Lock3: e.Lock3}
		x.Documents, x.Archived = &e.Documents, &e.Archived
		x.Eligible = e.Eligible && d.State != daydb.Dropped
	}
	if d.Proof != nil {
		x.Proof = &Proof{SHA256: hex.EncodeToString(d.Proof.SHA256), Documents: d.Proof.Documents, At: d.Proof.At.UTC()}
	}
	x.Next = g.next(d, c, x)
	cron := Name
	if rotates(d) {
		cron = rotateName
	}
	if why, paused := c.paused[cron]; paused && x.Next.When != nil {
		x.Next.When, x.Next.Because = nil, why
	}
	return x
}

// rotateName is the cron that moves a day until it is over.
const rotateName = "rolling-db-rotate"

func rotates(d daydb.DayDB) bool { return d.State == daydb.Prewarmed || d.State == daydb.Active }

// next says what happens next, if its cron is not paused. Times come from the
// guard's own schedule in the restaurant's zone.
func (g *Guard) next(d daydb.DayDB, c circumstances, x Explanation) Next {
	if c.unknownZone != "" && d.State != daydb.Dropped {
		return Next{"none", nil, fmt.Sprintf("%v, and every cron leaves the restaurant out", unknownZone(c.unknownZone))}
	}
	night := nextNight(c)
	if rotates(d) && !c.flags.RollingDb {
		return Next{"none", nil, fmt.Sprintf("rollingDb of %s is off: nothing is rotated", d.CompanyID)}
	}
	if rotates(d) && c.inactive {
		return Next{"none", nil, fmt.Sprintf("the restaurant %s is not active: it is not rotated", d.Restaurant)}
	}
	switch d.State {
	case daydb.Prewarmed:
		begins := time.Date(0, 1, 1, daydb.RolloverHour, 0, 0, 0, time.UTC).Format("15:04")
		return Next{"activate", rotationOf(c, d.BusinessDay), fmt.Sprintf("rolling-db-rotate makes it ACTIVE when business day %s begins, at %s in %s",
			d.BusinessDay, begins, c.zone)}
	case daydb.Active:
		return Next{"drain", rotationOf(c, d.BusinessDay.Add(1)), "rolling-db-rotate makes it DRAINING when the next business day begins"}
	case daydb.Dropped:
		return Next{"none", nil, "the database is gone; its documents are in Postgres, and `rollingd restore` rebuilds it"}
	}
	if !c.flags.RollingDb {
		return Next{"none", nil, fmt.Sprintf("rollingDb of %s is off: nothing is evaluated or dropped", d.CompanyID)}
	}
	if x.Locks == nil {
		return Next{"evaluate", &night, "it has not been evaluated yet"}
	}
	if !x.Locks.Lock1.Green || !x.Locks.Lock2.Green {
		return Next{"evaluate", &night, "locks are red: " + strings.Join(wordsOf(x), "; ")}
	}
	switch {
	case d.State == daydb.Draining:
		return Next{"archive", &night, "locks 1 and 2 are green"}
	case d.Hold != nil:
		return Next{"none", nil, fmt.Sprintf("held by %s: %s", d.Hold.Actor, d.Hold.Reason)}
	case !c.flags.RollingDbDrop:
		return Next{"none", nil, fmt.Sprintf("rollingDbDrop of %s is off: the database is kept", d.CompanyID)}
	case c.elsewhere.undelivered.QueueOpen && x.Locks.Lock3.Green:
		return Next{"evaluate", &night, "the continuity plane's queue is open and may hold commands for it: nothing is sealed or dropped until it is drained"}
	case !x.Locks.Lock3.Green:
		due := nightOf(c, x.Locks.Lock3.GreenOn)
		return Next{"seal", &due, fmt.Sprintf("it is %s old and must be older than %d", count(x.AgeDays, "day"), g.TTLDays)}
	case d.State == daydb.Archived:
		return Next{"seal", &night, "all three locks are green and rollingDbDrop is on"}
	}
	if settled := d.SealedAt.Add(g.Settle); settled.After(night) {
		due := nightAfter(c, settled)
		return Next{"drop", &due, fmt.Sprintf("it was sealed at %s and settles for %s", d.SealedAt.In(c.zone).Format(time.DateTime), g.Settle)}
	}
	return Next{"drop", &night, "it is sealed and has settled by then; it is archived to the end and proven again before the DELETE"}
}

var schedule = func() cron.Schedule {
	s, err := cron.ParseStandard(Schedule)
	if err != nil {
		panic(err) // A constant.
	}
	return s
}()

func nextNight(c circumstances) time.Time { return nightAfter(c, c.now) }

// nightAfter is the guard's first run after t.
func nightAfter(c circumstances, t time.Time) time.Time { return schedule.Next(t.In(c.zone)).UTC() }

// rotationOf is when a day begins. One that has begun already waits for the next
// rotation, since the last has not come as far.
func rotationOf(c circumstances, day daydb.Day) *time.Time {
	begins := day.Start(c.zone)
	if begins.Before(c.now) {
		begins = c.today.Add(1).Start(c.zone)
	}
	begins = begins.UTC()
	return &begins
}

// nightOf is the guard's first run within a business day, which is the last
// hour of that day.
func nightOf(c circumstances, day daydb.Day) time.Time {
	start := day.Start(c.zone)
	if start.Before(c.now) {
		start = c.now
	}
	return nightAfter(c, start)
}
