package rotation

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// cutOver routes the devices of each company of the run whose restaurants are
// all ready: a warm core, an ACTIVE day that is not over, a manifest, and no
// failure in this run.
//
//  1. What is open in the legacy database is carried into the ACTIVE day of each
//     restaurant. What is finished stays: the archive takes it from there, and
//     looks after the restaurant until it has. A crash within leaves copies that
//     no device sees; the next run finds them in their day, brings them up to
//     date, and goes on.
//  2. One transaction checks all conditions again and sets DeviceRouted. A crash
//     before it leaves the company on its legacy database with everything in
//     place; the next run carries what has changed and routes.
//  3. What tills wrote to the legacy database between 1 and their switch is
//     carried, finished or not. A crash before leaves it to the next run, like everything that
//     arrives late.
func (ro *Rotator) cutOver(ctx context.Context, r run.Run, fleet []*member) {
	candidates := make(map[string][]*member)
	unfit := make(map[string]bool)
	broken := failed(r.Report)
	for _, m := range fleet {
		if broken[m.Restaurant] {
			unfit[m.CompanyID] = true
		}
		if !m.routed {
			candidates[m.CompanyID] = append(candidates[m.CompanyID], m)
		}
	}
	var carried []*legacyCopy
	for company, members := range candidates {
		if unfit[company] || ctx.Err() != nil {
			continue
		}
		all, err := ro.ready(ctx, r, company)
		if err != nil {
			members[0].fail(stepCutover, "", err)
			continue
		}
		if len(all) == 0 && !r.DryRun {
			r.Report.Add(countWaiting, 1)
		}
		for _, m := range all {
			carried = append(carried, &legacyCopy{m: m, kind: copyDaily})
		}
	}
	if len(carried) == 0 {
		return
	}
	ro.copyFromLegacy(ctx, r, carried)

	failed := make(map[string]bool)
	routed := make(map[string][]*member)
	for _, c := range carried {
		failed[c.m.CompanyID] = failed[c.m.CompanyID] || !c.whole()
		routed[c.m.CompanyID] = append(routed[c.m.CompanyID], c.m)
	}
	var late []*member
	for company, members := range routed {
		if failed[company] || ctx.Err() != nil {
			continue
		}
		if r.DryRun {
			r.Report.Add(countRouted, 1)
			continue
		}
		switch ok, err := ro.route(ctx, r, company); {
		case err != nil:
			members[0].fail(stepCutover, "", err)
		case ok:
			r.Report.Add(countRouted, 1)
			ro.log.Info("devices routed", "company", company, "restaurants", len(members), "run_id", r.ID)
			for _, m := range members {
				m.routed = true
			}
			late = append(late, members...)
		default:
			r.Report.Add(countWaiting, 1)
		}
	}
	if len(late) > 0 {
		ro.copyFromLegacy(ctx, r, warmAndLate(late))
	}
}

// ready returns the active restaurants of a company if all of them are ready for
// the carrying, else none. Those of another zone or outside of the run's scope
// are among them: devices are routed by company.
func (ro *Rotator) ready(ctx context.Context, r run.Run, company string) ([]*member, error) {
	n, err := unready(ctx, ro.pool, r, company, false)
	if err != nil || n > 0 {
		return nil, pg.Translate(err)
	}
	registrations, err := daydb.Restaurants(ctx, ro.pool)
	if err != nil {
		return nil, pg.Translate(err)
	}
	var members []*member
	for _, reg := range registrations {
		if reg.CompanyID == company && reg.Active {
			members = append(members, &member{Registration: reg, hasCore: true, report: r.Report})
		}
	}
	return members, nil
}

// route sets DeviceRouted if every condition still holds.
func (ro *Rotator) route(ctx context.Context, r run.Run, company string) (ok bool, err error) {
	err = pg.WithTx(ctx, ro.pool, func(tx pgx.Tx) error {
		n, err := unready(ctx, tx, r, company, true)
		if err != nil || n > 0 {
			return err
		}
		ok, err = flags.Route(ctx, tx, company, r.Actor)
		return err
	})
	if errors.Is(err, pg.ErrOutcomeUnknown) {
		f, readErr := flags.Load(ctx, ro.pool, company)
		return f.DeviceRouted, readErr
	}
	if err != nil {
		return false, fmt.Errorf("route %s: %w", company, err)
	}
	return ok, nil
}

// unready counts the active restaurants of a company that keep it from being
// routed. A company without active restaurants counts as one. An ACTIVE day that
// is over keeps it, too: it was left by a company that was switched off, and its
// restaurant, which this run may not be about, was not rotated since.
func unready(ctx context.Context, db daydb.Querier, r run.Run, company string, carried bool) (n int, err error) {
	err = db.QueryRow(ctx, `
		select count(*) filter (where not ready) + case when count(*) = 0 then 1 else 0 end
		from (
		  select
		    r.core_warmed_at is not null
		    and r.manifest_generation is not null
		    and exists (
		      select from day_databases d
		      where d.company_id = r.company_id and d.restaurant_id = r.restaurant_id and d.state = 'ACTIVE'
		        and d.business_day >= coalesce(@day::date, ((now() at time zone r.timezone) - make_interval(hours => @rollover))::date))
		    and (
		      select count(*) filter (where kind = 'core') = 1 and (not @carried or count(*) filter (where kind = 'daily') = 1)
		      from legacy_copies l
		      where l.company_id = r.company_id and l.restaurant_id = r.restaurant_id
		        and l.legacy_db = r.legacy_db and l.completed_at is not null) as ready
		  from restaurants r
		  where r.company_id = @company and r.active
		) as restaurants_of_company`,
		pgx.NamedArgs{
			"company":  company,
			"carried":  carried,
			"day":      r.Scope.BusinessDay,
			"rollover": daydb.RolloverHour,
		}).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("readiness of %s: %w", company, err)
	}
	return n, nil
}
