package demo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// play is a play under way.
type play struct {
	opts  Options
	admin *adminAPI
	couch *couchDB
	pool  *pgxpool.Pool
	truth *truth

	// days are the business days in the zone of all restaurants, as YYYYMMDD; eve
	// is the one before them.
	days []string
	eve  string
	zone string

	bistro, cantina, plaza *shop
	// catalogue and carried are what the cutover takes out of the legacy database.
	catalogue map[restaurant][]string
	carried   map[restaurant][]*document

	// moves counts the moves of day databases by the state that they led to,
	// archived the documents that the archiver has copied, routed the companies
	// whose devices were routed.
	moves            map[string]int
	archived, routed int64
	faults           []string
}

func newPlay(opts Options, couch *couchDB, pool *pgxpool.Pool) *play {
	return &play{
		opts:      opts,
		admin:     newAdminAPI(opts.API, opts.Token),
		couch:     couch,
		pool:      pool,
		truth:     newTruth(),
		catalogue: make(map[restaurant][]string),
		carried:   make(map[restaurant][]*document),
		moves:     make(map[string]int),
	}
}

// run plays the eve and then each day: the shifts, the archiver and the guard at
// 04:00, and at 05:00 the rotation to the next day.
func (p *play) run(ctx context.Context, progress *progress) error {
	p.bistro, p.cantina, p.plaza = p.newShop(bistro), p.newShop(cantina), p.newShop(plaza)
	p.write()
	if err := p.switchOn(ctx); err != nil {
		return err
	}
	for i, day := range p.days {
		if err := p.trades(ctx, i); err != nil {
			return fmt.Errorf("day %s: %w", day, err)
		}
		if err := p.truth.readBack(ctx, p.couch); err != nil {
			return fmt.Errorf("day %s: %w", day, err)
		}
		if err := p.night(ctx, i); err != nil {
			return fmt.Errorf("night of %s: %w", day, err)
		}
		progress.day(p, i)
	}
	return nil
}

// switchOn registers the restaurants beside the legacy database, plays a night
// with everything off, and switches the first company on.
func (p *play) switchOn(ctx context.Context) error {
	if err := p.seedLegacy(ctx, p.bistro, p.cantina, p.plaza); err != nil {
		return fmt.Errorf("legacy database: %w", err)
	}
	for _, r := range []restaurant{bistro, cantina, plaza} {
		if err := p.admin.register(ctx, r, p.zone); err != nil {
			return err
		}
	}
	if err := p.cron(ctx, "archive", ""); err != nil {
		return err
	}
	if err := p.admin.switchOn(ctx, bistro.company); err != nil {
		return err
	}
	if err := p.cron(ctx, "rolling-db-rotate", p.days[0]); err != nil {
		return err
	}
	if p.routed != 1 {
		p.fault("after the first rotation the devices of %s are not routed", bistro.company)
	}
	p.cutOver(p.bistro)
	p.cutOver(p.cantina)
	return nil
}

// trades is a business day of all restaurants at once.
func (p *play) trades(ctx context.Context, i int) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range []*shop{p.bistro, p.cantina} {
		group.Go(func() error { return p.trade(ctx, s, i) })
	}
	if i%5 == 0 {
		group.Go(func() error {
			_, err := (&shift{till: p.plaza.tills[0], day: p.days[i], db: legacyDB(p.opts.Env)}).work(ctx, false)
			return err
		})
	}
	return group.Wait()
}

func (p *play) night(ctx context.Context, i int) error {
	if err := p.cron(ctx, "archive", ""); err != nil {
		return err
	}
	if err := p.cron(ctx, "rolling-db-drop-eval", p.days[i]); err != nil {
		return err
	}
	if i+1 == len(p.days) {
		return nil
	}
	return p.cron(ctx, "rolling-db-rotate", p.days[i+1])
}

// cron runs a cron by hand; day is the business day that it takes for today, or
// empty for the real one.
func (p *play) cron(ctx context.Context, name, day string) error {
	run, err := p.admin.runCron(ctx, name, day)
	if err != nil {
		return err
	}
	p.faults = append(p.faults, run.faults()...)
	for _, change := range run.Changes {
		p.moves[change.To]++
	}
	p.routed += run.Counters["routed"]
	if name == "archive" {
		p.archived += run.Counters["documents"]
	}
	for _, alarm := range []string{"ghosts", "rejected"} {
		if n := run.Counters[alarm]; n > 0 {
			p.fault("run %d of %s: %d %s", run.ID, name, n, alarm)
		}
	}
	return nil
}
