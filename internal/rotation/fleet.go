package rotation

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// ErrBusinessDay is returned for a business day that a run may not ask for: one
// before the ACTIVE day of a restaurant, or one that has not begun.
var ErrBusinessDay = errors.New("the business day may only move forward, up to today")

// errSwitchedOff ends the work on a restaurant whose company was switched off
// meanwhile. It is no failure.
var errSwitchedOff = errors.New("rollingDb was switched off")

// member is a restaurant of a run.
type member struct {
	daydb.Registration
	routed bool
	// hasCore is set once core was seen to be ours in this run. Until then
	// nothing is copied into it: documents in a database that was created and not
	// yet secured would make it look like somebody else's.
	hasCore bool
	report  *run.Report
}

// fail notes a failure of the restaurant.
func (m *member) fail(step, db string, err error) {
	m.report.Fail(run.Failure{
		CompanyID:    m.CompanyID,
		RestaurantID: m.RestaurantID,
		DBName:       db,
		Step:         step,
		Error:        err.Error(),
	})
}

// failed returns the restaurants for which anything went wrong in a run.
func failed(report *run.Report) map[daydb.Restaurant]bool {
	restaurants := make(map[daydb.Restaurant]bool)
	for _, f := range report.Failures() {
		restaurants[daydb.Restaurant{CompanyID: f.CompanyID, RestaurantID: f.RestaurantID}] = true
	}
	return restaurants
}

// fleet returns the restaurants that a run is about.
func (ro *Rotator) fleet(ctx context.Context, r run.Run) ([]*member, error) {
	companies, err := flags.All(ctx, ro.pool)
	if err != nil {
		return nil, pg.Translate(err)
	}
	registrations, err := daydb.Restaurants(ctx, ro.pool)
	if err != nil {
		return nil, pg.Translate(err)
	}
	var fleet []*member
	for _, reg := range registrations {
		f := companies[reg.CompanyID]
		if !reg.Active || !f.RollingDb || !r.Scope.Covers(reg.Restaurant) || r.Zone != "" && r.Zone != reg.Timezone {
			continue
		}
		fleet = append(fleet, &member{
			Registration: reg,
			routed:       f.DeviceRouted,
			report:       r.Report,
		})
	}
	return fleet, nil
}

// CheckScope returns ErrBusinessDay if a run with this scope would be refused.
func (ro *Rotator) CheckScope(ctx context.Context, scope run.Scope) error {
	fleet, err := ro.fleet(ctx, run.Run{Scope: scope})
	if err != nil {
		return err
	}
	return ro.checkBusinessDay(ctx, fleet, scope.BusinessDay)
}

// checkBusinessDay refuses a business day that one of the restaurants may not
// move to, before any of them has moved.
func (ro *Rotator) checkBusinessDay(ctx context.Context, fleet []*member, wanted daydb.Day) error {
	if wanted.IsZero() || len(fleet) == 0 {
		return nil
	}
	begun, err := daydb.List(ctx, ro.pool, daydb.Filter{States: []daydb.State{daydb.Active, daydb.Draining}})
	if err != nil {
		return pg.Translate(err)
	}
	latest := make(map[daydb.Restaurant]daydb.Day)
	for _, d := range begun {
		if latest[d.Restaurant].Before(d.BusinessDay) {
			latest[d.Restaurant] = d.BusinessDay
		}
	}
	today := make(map[string]daydb.Day)
	for _, m := range fleet {
		if today[m.Timezone].IsZero() {
			today[m.Timezone], err = daydb.Today(ctx, ro.pool, m.Timezone)
			if errors.Is(err, daydb.ErrUnknownZone) {
				continue // Its plan fails, and stops no other.
			}
			if err != nil {
				return pg.Translate(err)
			}
		}
		if _, err := target(latest[m.Restaurant], today[m.Timezone], wanted); err != nil {
			return fmt.Errorf("%s: %w", m.Restaurant, err)
		}
	}
	return nil
}

// target returns the day that is to be ACTIVE, given the latest day that has
// begun, the day that it is, and the day that the run asks for; the first and
// the last may be zero.
func target(latest, today, wanted daydb.Day) (daydb.Day, error) {
	day := today
	if !wanted.IsZero() {
		day = wanted
		if today.Before(day) {
			return daydb.Day{}, fmt.Errorf("%w: %s is later than today, %s", ErrBusinessDay, day, today)
		}
		if day.Before(latest) {
			return daydb.Day{}, fmt.Errorf("%w: %s is earlier than the current %s", ErrBusinessDay, day, latest)
		}
	}
	if day.Before(latest) {
		return daydb.Day{}, fmt.Errorf("the ledger is at %s although today is %s; it never goes back", latest, today)
	}
	return day, nil
}
