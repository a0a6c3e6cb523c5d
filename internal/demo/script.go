package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// restoredDay is rebuilt from the archive at the end: it was reopened once.
const restoredDay = 2

// write is the script of the play: what happens beside the ordinary, on which
// day, counted from 0.
func (p *play) write() {
	p.lateFinished(p.bistro, 1)
	p.stragglerAtLegacy(p.bistro, 1)
	p.lateOpen(p.bistro, restoredDay)
	p.legalHold(p.bistro, 3)
	p.conflictResolved(p.bistro, 4)
	p.lostDevice(p.bistro)

	p.openForEver(p.cantina, 1)
	p.conflictForEver(p.cantina, 2)
}

// lateFinished: a device sells on a day without a network, and comes back two
// days later. The day may be ARCHIVED by then: its documents are, too.
func (p *play) lateFinished(s *shop, day int) {
	var docs []*document
	s.on(day, func(context.Context, string) error {
		sh := &shift{till: s.late, day: p.days[day]}
		for range 3 {
			order := sh.order()
			order.Status = "closed"
			payment := sh.payment(order)
			payment.Status = "approved"
			docs = append(docs, order, payment)
		}
		return editAll(docs)
	})
	s.on(day+2, func(ctx context.Context, _ string) error {
		return s.late.push(ctx, s.dayDB(p.opts.Env, p.days[day]), nil, docs...)
	})
}

// lateOpen: a device comes back two days later with an order that is not
// closed. Its day, ARCHIVED meanwhile, is reopened, mounted again by all tills,
// and archived once more after the order was closed.
func (p *play) lateOpen(s *shop, day int) {
	var order *document
	s.on(day, func(context.Context, string) error {
		order = (&shift{till: s.late, day: p.days[day]}).order()
		return order.edit()
	})
	s.on(day+2, func(ctx context.Context, _ string) error {
		return s.late.push(ctx, s.dayDB(p.opts.Env, p.days[day]), nil, order)
	})
	s.on(day+3, func(ctx context.Context, _ string) error { return s.closeLater(ctx, s.tills[0], order) })
	s.fates[day] = fate{archivedOn: day + 3}
}

// stragglerAtLegacy: a device that was offline at the cutover still writes to
// the legacy database. The next rotation carries its open order into the day.
func (p *play) stragglerAtLegacy(s *shop, day int) {
	var order *document
	legacy := legacyDB(p.opts.Env)
	s.on(day, func(ctx context.Context, _ string) error {
		order = (&shift{till: s.late, day: p.days[day]}).order()
		return s.late.save(ctx, legacy, order)
	})
	s.on(day+1, func(ctx context.Context, today string) error {
		p.truth.copied(order.ID, legacy, today)
		order.Status = "closed"
		return s.tills[0].save(ctx, today, order)
	})
}

// legalHold: somebody needs a day kept, however old it becomes.
func (p *play) legalHold(s *shop, day int) {
	s.on(day+2, func(ctx context.Context, _ string) error {
		return p.admin.hold(ctx, s.dayDB(p.opts.Env, p.days[day]), "tax inspection, file 2211")
	})
	s.fates[day] = fate{archivedOn: day + 1, held: true}
}

// openForEver: nobody ever closes an order, and its day stays.
func (p *play) openForEver(s *shop, day int) {
	s.on(day, func(ctx context.Context, today string) error {
		return s.late.save(ctx, today, (&shift{till: s.late, day: p.days[day]}).order())
	})
	s.fates[day] = fate{archivedOn: never}
}

// conflictForEver: two devices close an order differently, and nobody decides.
func (p *play) conflictForEver(s *shop, day int) {
	s.on(day, func(ctx context.Context, today string) error {
		_, err := s.conflict(ctx, p.days[day], today)
		return err
	})
	s.fates[day] = fate{archivedOn: never}
}

// conflictResolved: the next day somebody deletes the revision that lost.
func (p *play) conflictResolved(s *shop, day int) {
	var id string
	s.on(day, func(ctx context.Context, today string) (err error) {
		id, err = s.conflict(ctx, p.days[day], today)
		return err
	})
	s.on(day+1, func(ctx context.Context, _ string) error {
		db, err := s.tills[0].mounted(ctx, p.days[day])
		if err != nil {
			return err
		}
		return s.resolve(ctx, db, id)
	})
}

// resolve deletes the one revision that lost.
func (s *shop) resolve(ctx context.Context, db, id string) error {
	var winner struct {
		Conflicts []string `json:"_conflicts"`
	}
	err := s.tills[0].couch.json(ctx, http.MethodGet, docPath(db, id)+"?conflicts=true", nil, &winner)
	if err != nil || len(winner.Conflicts) != 1 {
		return fmt.Errorf("%s: conflicts of %s: %v, %w", db, id, winner.Conflicts, err)
	}
	return s.tills[0].save(ctx, db, &document{ID: id, Rev: winner.Conflicts[0], Deleted: true})
}

// conflict makes an order that two devices have closed without knowing of each
// other.
func (s *shop) conflict(ctx context.Context, day, db string) (id string, err error) {
	order := (&shift{till: s.tills[0], day: day}).order()
	if err := s.tills[0].save(ctx, db, order); err != nil {
		return "", err
	}
	other := *order
	other.Status, other.Till, other.Note = "refunded", s.late.name, "closed on both tills"
	parent := other.Rev
	if err := other.edit(); err != nil {
		return "", err
	}
	order.Status = "closed"
	if err := s.tills[0].save(ctx, db, order); err != nil {
		return "", err
	}
	return order.ID, s.late.push(ctx, db, map[string]string{other.ID: parent}, &other)
}

// lostDevice: on the last day a device turns up with an order of the first one,
// whose database was dropped. It is refused, keeps what it has, and writes it
// into today's database, with the day that it is of.
func (p *play) lostDevice(s *shop) {
	var order *document
	s.on(0, func(context.Context, string) error {
		order = (&shift{till: s.late, day: p.days[0]}).order()
		order.Status = "closed"
		return order.edit()
	})
	s.on(len(p.days)-1, func(ctx context.Context, today string) error {
		dropped := s.dayDB(p.opts.Env, p.days[0])
		_, err := s.late.couch.bulk(ctx, dropped, []*document{order}, false)
		if status := statusOf(err); status != http.StatusNotFound && status != http.StatusForbidden && status != http.StatusUnauthorized {
			return errors.Join(fmt.Errorf("%s was dropped, and answers a device with %d", dropped, status), err)
		}
		order.OriginDay, order.BusinessDay = order.BusinessDay, p.days[len(p.days)-1]
		return s.late.push(ctx, today, nil, order)
	})
}

func editAll(docs []*document) error {
	for _, d := range docs {
		if err := d.edit(); err != nil {
			return err
		}
	}
	return nil
}
