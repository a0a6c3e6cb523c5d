package rotation

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/run"
)

// plan is what a restaurant's ledger says and what is to become of it.
type plan struct {
	// today and tomorrow are the target day and the one after. In a dry run they
	// have no id when they are not in the ledger.
	today    daydb.DayDB
	tomorrow daydb.DayDB
	// active is the ACTIVE day, nil when there is none.
	active *daydb.DayDB
	// passed are the PREWARMED days before today, oldest first.
	passed []daydb.DayDB
	// draining are the DRAINING days.
	draining []daydb.DayDB
}

// settled reports whether the ledger is where it should be.
func (p plan) settled() bool {
	return p.today.State == daydb.Active && p.tomorrow.InstanceStartTime != nil && len(p.passed) == 0
}

// readPlan decides in the transaction which day is to be ACTIVE.
func (ro *Rotator) readPlan(ctx context.Context, tx pgx.Tx, r run.Run, m *member) (plan, error) {
	f, err := flags.LoadForShare(ctx, tx, m.CompanyID)
	if err != nil {
		return plan{}, err
	}
	if !f.RollingDb {
		return plan{}, errSwitchedOff
	}
	now, err := daydb.Today(ctx, tx, m.Timezone)
	if err != nil {
		return plan{}, err
	}
	days, err := daydb.List(ctx, tx, daydb.Filter{
		CompanyID:    m.CompanyID,
		RestaurantID: m.RestaurantID,
		States:       []daydb.State{daydb.Prewarmed, daydb.Active, daydb.Draining},
	})
	if err != nil {
		return plan{}, err
	}
	var latest daydb.Day
	for _, d := range days {
		if d.State != daydb.Prewarmed && latest.Before(d.BusinessDay) {
			latest = d.BusinessDay
		}
	}
	day, err := target(latest, now, r.Scope.BusinessDay)
	if err != nil {
		return plan{}, err
	}
	return newPlan(ro.env, m.Restaurant, day, days)
}

// newPlan sorts the days of a restaurant, which are in the order of their entry.
func newPlan(env string, r daydb.Restaurant, day daydb.Day, days []daydb.DayDB) (plan, error) {
	var p plan
	for d, row := range map[daydb.Day]*daydb.DayDB{day: &p.today, day.Add(1): &p.tomorrow} {
		name, err := contracts.DailyName(env, r.CompanyID, r.RestaurantID, d.String())
		if err != nil {
			return plan{}, err
		}
		*row = daydb.DayDB{Restaurant: r, BusinessDay: d, Name: name, State: daydb.Prewarmed}
	}
	for _, d := range days {
		switch {
		case d.State == daydb.Draining:
			p.draining = append(p.draining, d)
		case d.State == daydb.Active:
			p.active = &d
		case d.BusinessDay.Before(day):
			p.passed = append(p.passed, d)
		}
		switch d.BusinessDay {
		case day:
			p.today = d
		case day.Add(1):
			p.tomorrow = d
		}
	}
	return p, nil
}

// enter enters those of today and tomorrow that the ledger does not have.
func (p *plan) enter(ctx context.Context, tx pgx.Tx, mark daydb.Mark) error {
	for _, d := range []*daydb.DayDB{&p.today, &p.tomorrow} {
		if d.ID != 0 {
			continue
		}
		row, err := daydb.Insert(ctx, tx, d.Restaurant, d.BusinessDay, d.Name, mark)
		if err != nil {
			return err
		}
		*d = row
	}
	return nil
}

// activate makes today ACTIVE in one transaction: the former ACTIVE day drains,
// and so do the days that passed unused, each having been ACTIVE for no time.
// Secured holds, by name, the creation time of databases that this run has made.
func (ro *Rotator) activate(ctx context.Context, tx pgx.Tx, m *member, mark daydb.Mark, p *plan, passed []daydb.DayDB, secured map[string]string) error {
	f, err := flags.LoadForShare(ctx, tx, m.CompanyID)
	if err != nil {
		return err
	}
	if !f.RollingDb {
		return errSwitchedOff
	}
	drain := func(d daydb.DayDB) error {
		drained, err := daydb.Move(ctx, tx, d, daydb.Drain, mark, map[string]any{"next": p.today.Name})
		if err != nil {
			return err
		}
		p.draining = append(p.draining, drained)
		return nil
	}
	start := func(d daydb.DayDB, unused bool) (daydb.DayDB, error) {
		if at, ok := secured[d.Name]; ok {
			if err := recordCreation(ctx, tx, d, mark.Token, at); err != nil {
				return d, err
			}
		}
		return daydb.Move(ctx, tx, d, daydb.Activate, mark, map[string]any{"timezone": m.Timezone, "passedUnused": unused})
	}
	if p.active != nil {
		if err := drain(*p.active); err != nil {
			return err
		}
	}
	for _, d := range passed {
		begun, err := start(d, true)
		if err != nil {
			return err
		}
		if err := drain(begun); err != nil {
			return err
		}
	}
	today, err := start(p.today, false)
	if err != nil {
		return err
	}
	p.today = today
	return nil
}

// recordCreation notes that the database of a day was created and secured.
func recordCreation(ctx context.Context, tx pgx.Tx, d daydb.DayDB, token int64, at string) error {
	err := daydb.Update(ctx, tx, d, token, `instance_start_time = @created`, pgx.NamedArgs{"created": at})
	if err != nil {
		return fmt.Errorf("record the creation of %s: %w", d.Name, err)
	}
	return nil
}
