package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// legacy is a single database from before rolling databases, which many tenants
// share: one pass over its feed archives all of them, up to a checkpoint that
// they share too. A run whose scope is narrower leaves the others alone.
type legacy struct {
	db    string
	zones map[daydb.Restaurant]*time.Location
	// apart says that zones are not all tenants, but those of a run's scope: what
	// is archived of theirs moves no checkpoint.
	apart bool
	// leaving says that some of the tenants are routed, and leave as soon as what
	// rotation has left to the archive is in it.
	leaving bool
	// known are all restaurants of this database, archived from it or not.
	known map[daydb.Restaurant]bool
	// strays are the documents of none of them.
	strays *strays
}

// legacies groups the restaurants whose finished documents are archived from
// their legacy database: those that are not routed, and those that are, for as
// long as rotation has not taken them over or has left something to the archive.
// A restaurant whose zone is unknown is reported and left out; once it is known,
// its documents are read from the start.
func legacies(restaurants []daydb.Registration, company map[string]flags.Flags, over map[daydb.Restaurant]handover, report *run.Report) []legacy {
	byName := make(map[string]int)
	known := make(map[string]map[daydb.Restaurant]bool)
	for _, r := range restaurants {
		if known[r.LegacyDB] == nil {
			known[r.LegacyDB] = make(map[daydb.Restaurant]bool)
		}
		known[r.LegacyDB][r.Restaurant] = true
	}
	var all []legacy
	for _, r := range restaurants {
		routed := company[r.CompanyID].DeviceRouted
		if routed && over[r.Restaurant] == handedOver {
			continue
		}
		zone, err := time.LoadLocation(r.Timezone)
		if err != nil {
			report.Fail(run.Failure{
				CompanyID:    r.CompanyID,
				RestaurantID: r.RestaurantID,
				DBName:       r.LegacyDB,
				Step:         "archive",
				Error:        err.Error(),
			})
			continue
		}
		i, ok := byName[r.LegacyDB]
		if !ok {
			i = len(all)
			byName[r.LegacyDB] = i
			all = append(all, legacy{
				db:     r.LegacyDB,
				zones:  make(map[daydb.Restaurant]*time.Location),
				known:  known[r.LegacyDB],
				strays: &strays{},
			})
		}
		all[i].zones[r.Restaurant] = zone
		all[i].leaving = all[i].leaving || routed && over[r.Restaurant] == leftToArchive
	}
	return all
}

// within narrows a legacy database to the tenants in a run's scope.
func (l legacy) within(scope run.Scope) legacy {
	zones := make(map[daydb.Restaurant]*time.Location)
	for r, zone := range l.zones {
		if scope.Covers(r) {
			zones[r] = zone
		}
	}
	l.apart = len(zones) < len(l.zones)
	l.zones = zones
	return l
}

func (l legacy) anyIn(scope map[daydb.Restaurant]bool) bool {
	for r := range l.zones {
		if scope[r] {
			return true
		}
	}
	return false
}

// tenants returns the restaurants as company/restaurant, sorted.
func (l legacy) tenants() []string {
	all := make([]string, 0, len(l.zones))
	for r := range l.zones {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return all
}

func (a *Archiver) runLegacy(ctx context.Context, r run.Run, l legacy) error {
	info, err := a.couch.Info(ctx, l.db)
	if errors.Is(err, couch.ErrNotFound) {
		return a.unlessNeverSeen(ctx, l.db, err)
	}
	if err != nil {
		return err
	}
	id := identity{db: l.db, incarnation: info.InstanceStartTime}
	s, err := findSource(ctx, a.pool, id)
	if err != nil {
		return err
	}
	older, err := a.older(ctx, s)
	if err != nil {
		return err
	}
	same := s != nil && (l.apart && containsAll(s.tenants, l.tenants()) || slices.Equal(s.tenants, l.tenants()))
	if same && !older && !l.leaving {
		if quiet, err := a.quiet(ctx, r, s, info); quiet || err != nil {
			return err
		}
	}
	if r.DryRun {
		if s != nil && (older || !containsAll(s.tenants, l.tenants())) {
			s = nil // It would be read from the start.
		}
		err := a.dryRun(ctx, r, l.db, s, l.classify)
		a.countStrays(ctx, r, l)
		return err
	}
	if l.apart {
		return a.leases.Hold(ctx, LeaseName(l.db), func(ctx context.Context, lease fence.Lease) error {
			return a.runApart(ctx, r, l, id, info.PurgeSeq, lease)
		})
	}
	return a.leases.Hold(ctx, LeaseName(l.db), func(ctx context.Context, lease fence.Lease) error {
		s, err := a.openSource(ctx, lease, id, info.PurgeSeq, l.tenants())
		if err != nil {
			return err
		}
		older, err := a.older(ctx, s)
		if err != nil {
			return err
		}
		if older {
			a.log.WarnContext(ctx, "the legacy database is older than its archive; it is read from the start", "day_db", l.db, "run_id", r.ID)
			err = a.rewind(ctx, lease, s, s.purges, l.tenants())
		} else {
			err = a.setTenants(ctx, lease, s, l.tenants())
		}
		if err != nil {
			return err
		}
		start, err := a.now(ctx)
		if err != nil {
			return err
		}
		w := a.newWriter(s, lease)
		// The day of a legacy document may change, and with it the key of its row:
		// that it is not there yet is for place to find out.
		w.direct, w.place = false, (&placer{Archiver: a, source: s, zones: l.zones}).place
		before := s.since
		_, err = w.catchUp(ctx, info.InstanceStartTime, l.classify)
		a.count(ctx, r, l.db, w.tally)
		a.countStrays(ctx, r, l)
		if s.since != before {
			a.leaveWitness(ctx, r, s)
		}
		if err != nil {
			return err
		}
		return a.takeOver(ctx, lease, id, l.tenants(), start)
	})
}

// runApart archives what is finished of some tenants, and nothing of the others:
// a canary must not touch them. It reads from the checkpoint, if everything of
// these tenants is archived up to there, else from the start, to the end of the
// feed, and leaves the checkpoint where it is. The next run for all reads the
// same again, and finds these documents where they belong.
func (a *Archiver) runApart(ctx context.Context, r run.Run, l legacy, id identity, purges int64, lease fence.Lease) error {
	s, err := a.openSource(ctx, lease, id, purges, nil)
	if err != nil {
		return err
	}
	older, err := a.older(ctx, s)
	if err != nil {
		return err
	}
	start, err := a.now(ctx)
	if err != nil {
		return err
	}
	w := a.newWriter(s, lease)
	w.direct, w.place = false, (&placer{Archiver: a, source: s, zones: l.zones, tenants: l.tenants()}).place
	w.still = true
	from := s.since
	if older || !containsAll(s.tenants, l.tenants()) {
		from = couch.SeqStart
	}
	err = w.passFrom(ctx, from, l.classify)
	a.count(ctx, r, l.db, w.tally)
	a.countStrays(ctx, r, l)
	if err != nil {
		return err
	}
	return a.takeOver(ctx, lease, id, l.tenants(), start)
}

// reader names the archive's witness.
const reader = "archive"

// older reports whether a legacy database was put back to a state from before
// its checkpoint. Documents that were written since are behind the checkpoint,
// where nobody would look: unlike a day database, it is never compared.
func (a *Archiver) older(ctx context.Context, s *source) (bool, error) {
	if s == nil || s.since == couch.SeqStart {
		return false, nil
	}
	witness, err := a.couch.Witness(ctx, s.db, reader)
	return witness != s.since, err
}

// leaveWitness leaves the checkpoint in the database, also that of a reading
// that was broken off. A crash before it, or a failure, costs the next run a
// reading from the start.
func (a *Archiver) leaveWitness(ctx context.Context, r run.Run, s *source) {
	// The checkpoint is committed, whatever has become of the run.
	err := a.couch.PutWitness(context.WithoutCancel(ctx), s.db, reader, s.since)
	if err != nil {
		a.log.WarnContext(ctx, "the checkpoint was not left in the legacy database; the next run reads it from the start",
			"day_db", s.db, "run_id", r.ID, "error", err)
	}
}

// unlessNeverSeen forgives that a legacy database is absent that was never
// archived: a fleet that began with rolling databases has none.
func (a *Archiver) unlessNeverSeen(ctx context.Context, db string, absent error) error {
	var seen bool
	err := a.pool.QueryRow(ctx, `select exists (select from archive_checkpoints where db_name = $1)`, db).Scan(&seen)
	if err != nil {
		return fmt.Errorf("checkpoint of %s: %w", db, pg.Translate(err))
	}
	if seen {
		return absent
	}
	return nil
}

// setTenants notes whose documents are archived up to the checkpoint. When a
// tenant joins, the documents that it has before the checkpoint were passed over,
// so the feed is read from the start; what is there already does not change.
func (a *Archiver) setTenants(ctx context.Context, lease fence.Lease, s *source, tenants []string) error {
	if slices.Equal(s.tenants, tenants) {
		return nil
	}
	if !containsAll(s.tenants, tenants) {
		return a.rewind(ctx, lease, s, s.purges, tenants)
	}
	err := a.fenced(ctx, lease, func(tx pgx.Tx) error {
		if err := s.advance(ctx, tx, lease, s.since); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update archive_checkpoints set tenants = $2 where id = $1`, s.id, tenants)
		return err
	})
	if err != nil {
		return fmt.Errorf("tenants of %s: %w", s.db, err)
	}
	s.tenants = tenants
	return nil
}

func containsAll(set, all []string) bool {
	for _, s := range all {
		if !slices.Contains(set, s) {
			return false
		}
	}
	return true
}

// classify takes what is finished of the tenants. Nothing blocks a legacy
// database, which is never dropped. A deletion says of nobody whose it is: it
// only marks a row that is there.
func (l legacy) classify(e *entry) bool {
	if e.deleted {
		e.archived = true
		return true
	}
	e.owner = daydb.Restaurant{
		CompanyID:    gjson.GetBytes(e.body, "companyId").String(),
		RestaurantID: gjson.GetBytes(e.body, "restaurantId").String(),
	}
	code := e.readType()
	if !l.known[e.owner] && (code == "" || code == codeNonTerminal) {
		l.strays.add(e)
		return false
	}
	zone, ok := l.zones[e.owner]
	if !ok || code != "" {
		return false
	}
	e.archived = true
	e.day = legacyDay(e.body, zone)
	return true
}

// legacyDay returns the business day that a document names, else the one that
// its time of creation falls on, else the zero Day.
func legacyDay(body []byte, zone *time.Location) daydb.Day {
	if day, err := daydb.ParseDay(gjson.GetBytes(body, "businessDay").String()); err == nil {
		return day
	}
	created, ok := instant(gjson.GetBytes(body, "createdAt"))
	if !ok {
		return daydb.Day{}
	}
	return daydb.DayOf(created, zone)
}

// instant reads RFC 3339 or milliseconds since 1970, within the years that a Day has.
func instant(v gjson.Result) (time.Time, bool) {
	var t time.Time
	switch v.Type {
	case gjson.String:
		var err error
		if t, err = time.Parse(time.RFC3339, v.Str); err != nil {
			return time.Time{}, false
		}
	case gjson.Number:
		const farAway = 1e15 // Beyond the year 9999; the conversion must not overflow.
		if v.Num < -farAway || v.Num > farAway {
			return time.Time{}, false
		}
		t = time.UnixMilli(int64(v.Num))
	default:
		return time.Time{}, false
	}
	// A day less on both sides, for the zone and the hour at which days begin.
	if t.Before(firstInstant) || t.After(lastInstant) {
		return time.Time{}, false
	}
	return t, true
}

var (
	firstInstant = time.Date(1, 1, 3, 0, 0, 0, 0, time.UTC)
	lastInstant  = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC)
)

// placer gives the entries of a legacy database the day under which they are
// archived.
type placer struct {
	*Archiver
	source *source
	zones  map[daydb.Restaurant]*time.Location
	// tenants narrow the rows that are looked at to theirs; nil for all.
	tenants []string
	today   map[string]daydb.Day
}

// place finds the rows that are there. A document whose day is not known stays
// where it was first archived, or begins today; one whose day has changed moves;
// a deletion of what was never archived is none of ours.
func (p *placer) place(ctx context.Context, b *batch) error {
	there, err := p.days(ctx, b)
	if err != nil {
		return err
	}
	for i := range b.entries {
		e := &b.entries[i]
		if !e.archived {
			continue
		}
		was, archived := there[e.hash]
		switch {
		case e.deleted && !archived:
			e.archived = false
		case e.deleted, e.day.IsZero() && archived:
			e.day = was
		case e.day.IsZero():
			if e.day, err = p.dayToday(ctx, p.zones[e.owner].String()); err != nil {
				return err
			}
		case archived && was != e.day:
			e.movedFrom = was
		}
	}
	return nil
}

// days returns the days of the rows that are there.
func (p *placer) days(ctx context.Context, b *batch) (map[[sha256.Size]byte]daydb.Day, error) {
	there := make(map[[sha256.Size]byte]daydb.Day)
	if !p.source.hasRows || len(b.entries) == 0 {
		return there, nil
	}
	hashes := make([][]byte, 0, len(b.entries))
	for i := range b.entries {
		hashes = append(hashes, b.entries[i].hash[:])
	}
	rows, err := p.pool.Query(ctx, `
		select id_hash, business_day
		from archived_docs
		where source_id = $1
		  and id_hash = any($2)
		  and ($3::text[] is null or company_id || '/' || restaurant_id = any($3))`, p.source.id, hashes, p.tenants)
	if err != nil {
		return nil, fmt.Errorf("days of archived documents: %w", pg.Translate(err))
	}
	var (
		hash []byte
		day  daydb.Day
	)
	_, err = pgx.ForEachRow(rows, []any{&hash, &day}, func() error {
		there[[sha256.Size]byte(hash)] = day
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("days of archived documents: %w", pg.Translate(err))
	}
	return there, nil
}

// dayToday returns the business day that it is in a zone, by Postgres' clock.
func (p *placer) dayToday(ctx context.Context, zone string) (daydb.Day, error) {
	if day, ok := p.today[zone]; ok {
		return day, nil
	}
	day, err := daydb.Today(ctx, p.pool, zone)
	if err != nil {
		return daydb.Day{}, err
	}
	if p.today == nil {
		p.today = make(map[string]daydb.Day)
	}
	p.today[zone] = day
	return day, nil
}
