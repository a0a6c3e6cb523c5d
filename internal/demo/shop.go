package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
)

// shop is a restaurant as the play runs it.
type shop struct {
	restaurant
	// tills work every day; late is a device that is often away.
	tills []*till
	late  *till
	// agenda says what happens on a day beside the ordinary, before the shifts.
	agenda map[int][]errand
	// fates are the days whose life is not the ordinary one.
	fates map[int]fate
}

// errand is something that happens on one day; today is its database.
type errand func(ctx context.Context, today string) error

// fate is how far a day database gets.
type fate struct {
	// archivedOn is the day whose night finds it finished; the ordinary is the
	// day after its own. It is never finished if it is never.
	archivedOn int
	// held keeps it from being sealed.
	held bool
}

const never = 1 << 30

func (p *play) newShop(r restaurant) *shop {
	s := &shop{restaurant: r, agenda: make(map[int][]errand), fates: make(map[int]fate)}
	device := func(number int) *till {
		// All restaurants share the legacy database, so names of devices are unique.
		name := fmt.Sprintf("%s-%d", r.id, number)
		var h uint64
		for _, c := range name {
			h = h*31 + uint64(c)
		}
		return &till{
			restaurant: r,
			name:       name,
			env:        p.opts.Env,
			couch:      p.couch.as(name, r.role(), p.opts.ProxySecret),
			truth:      p.truth,
			rand:       rand.New(rand.NewPCG(p.opts.Seed, h)),
		}
	}
	s.tills = []*till{device(1), device(2)}
	s.late = device(3)
	return s
}

func (s *shop) on(day int, e errand) { s.agenda[day] = append(s.agenda[day], e) }

// trade is a business day of a shop whose days rotate.
func (p *play) trade(ctx context.Context, s *shop, i int) error {
	day, db, err := s.tills[0].current(ctx)
	if err != nil {
		return err
	}
	if day != p.days[i] || db != s.dayDB(p.opts.Env, day) {
		return fmt.Errorf("%s: the manifest names %s for %s, today is %s", s, db, day, p.days[i])
	}
	for _, e := range s.agenda[i] {
		if err := e(ctx, db); err != nil {
			return err
		}
	}
	for n, t := range s.tills {
		// Now and then a table stays past five in the morning, and pays the next day.
		stays := n == 1 && i%5 == 3
		open, err := (&shift{till: t, day: day, db: db}).work(ctx, stays)
		if err != nil {
			return err
		}
		if open != nil {
			s.on(i+1, func(ctx context.Context, _ string) error { return s.closeLater(ctx, t, open) })
		}
	}
	return nil
}

// closeLater closes an order of an earlier day, whose database the till must
// still have mounted.
func (s *shop) closeLater(ctx context.Context, t *till, order *document) error {
	db, err := t.mounted(ctx, order.BusinessDay)
	if err != nil {
		return err
	}
	order.Status, order.ClosedAt = "closed", order.CreatedAt
	return t.save(ctx, db, order)
}

// state is where a day database must have come to when the night of the last
// day is over: one step a night, sealed when older than the TTL.
func (s *shop) state(day, last, ttl int) string {
	f, special := s.fates[day]
	if !special {
		f.archivedOn = day + 1
	}
	sealedOn := max(f.archivedOn+1, day+ttl+1)
	switch {
	case day > last:
		return "PREWARMED"
	case day == last:
		return "ACTIVE"
	case f.archivedOn > last:
		return "DRAINING"
	case f.held || sealedOn > last:
		return "ARCHIVED"
	case sealedOn+1 > last:
		return "DROPPABLE"
	default:
		return "DROPPED"
	}
}
