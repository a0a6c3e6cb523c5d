package rotation

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/run"
)

// preview reports what rotate would do to a restaurant. It reads, and takes no
// lease, since that would be a write too.
func (ro *Rotator) preview(ctx context.Context, r run.Run, m *member) {
	var p plan
	err := pg.WithTx(ctx, ro.pool, func(tx pgx.Tx) (err error) {
		p, err = ro.readPlan(ctx, tx, r, m)
		return err
	})
	if errors.Is(err, errSwitchedOff) {
		return
	}
	if err != nil {
		m.fail(stepPlan, "", err)
		return
	}
	core, err := contracts.CoreName(ro.env, m.CompanyID, m.RestaurantID)
	if err != nil {
		m.fail(stepCore, "", err)
		return
	}
	switch _, err := ro.couch.Info(ctx, core); {
	case errors.Is(err, couch.ErrNotFound) && m.routed:
		m.fail(stepCore, core, ErrDeleted)
	case errors.Is(err, couch.ErrNotFound):
		r.Report.Add(countCreated, 1)
	case err != nil:
		m.fail(stepCore, core, err)
	}
	m.hasCore = true
	after := p.draining
	if p.today.State == daydb.Active {
		after = append(after, p.today)
	} else {
		after = append(after, ro.previewActivation(r, p)...)
	}
	if p.tomorrow.InstanceStartTime == nil {
		r.Report.Add(countCreated, 1)
		r.Report.Add(countPrewarmed, 1)
	}
	switch differs, err := ro.manifests.Differs(ctx, m.Restaurant, after); {
	case err != nil:
		m.fail(stepManifest, core, err)
	case differs:
		r.Report.Add(countManifests, 1)
	}
}

// previewActivation reports the moves that make today ACTIVE, and returns the
// days as they would be afterwards.
func (ro *Rotator) previewActivation(r run.Run, p plan) []daydb.DayDB {
	var after []daydb.DayDB
	unknown := "" // The creation time of a database that does not exist yet.
	begin := func(d daydb.DayDB, state daydb.State) {
		if d.InstanceStartTime == nil {
			r.Report.Add(countCreated, 1)
			d.InstanceStartTime = &unknown
		}
		moved(r.Report, d, daydb.Active, daydb.Activate)
		if state == daydb.Draining {
			d.State = daydb.Active
			moved(r.Report, d, daydb.Draining, daydb.Drain)
		}
		d.State = state
		after = append(after, d)
	}
	if p.active != nil {
		d := *p.active
		moved(r.Report, d, daydb.Draining, daydb.Drain)
		d.State = daydb.Draining
		after = append(after, d)
	}
	for _, d := range p.passed {
		begin(d, daydb.Draining)
	}
	begin(p.today, daydb.Active)
	return after
}

// moved notes a move of d in the report.
func moved(report *run.Report, d daydb.DayDB, to daydb.State, event daydb.Event) {
	report.Moved(run.Change{DBName: d.Name, From: d.State, To: to, Event: event})
	if event == daydb.Activate {
		report.Add(countActivated, 1)
	} else {
		report.Add(countDrained, 1)
	}
}
