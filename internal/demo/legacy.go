package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// seedLegacy makes the database that all restaurants shared until now: their
// catalogues, finished orders, and two orders each that are open on the eve.
func (p *play) seedLegacy(ctx context.Context, shops ...*shop) error {
	if err := p.createLegacy(ctx, shops...); err != nil {
		return err
	}
	db := legacyDB(p.opts.Env)
	for _, s := range shops {
		if err := p.seedCatalogue(ctx, s, db); err != nil {
			return err
		}
		eve := &shift{till: s.tills[0], day: p.eve, db: db}
		if _, err := eve.work(ctx, false); err != nil {
			return err
		}
		open := []*document{eve.order(), eve.order()}
		if err := eve.save(ctx, db, open...); err != nil {
			return err
		}
		s.on(0, func(ctx context.Context, today string) error {
			for _, order := range open {
				order.Status = "closed"
			}
			return s.tills[0].save(ctx, today, open...)
		})
		p.carried[s.restaurant] = open
	}
	return p.truth.readBack(ctx, p.couch)
}

// createLegacy makes the legacy database, open to the devices of the shops.
func (p *play) createLegacy(ctx context.Context, shops ...*shop) error {
	db := legacyDB(p.opts.Env)
	if err := p.couch.json(ctx, http.MethodPut, dbPath(db), nil, nil); err != nil {
		return err
	}
	roles := []string{}
	for _, s := range shops {
		roles = append(roles, s.role())
	}
	return p.couch.json(ctx, http.MethodPut, dbPath(db)+"/_security", map[string]any{
		"admins":  map[string]any{"names": []string{}, "roles": []string{"_admin"}},
		"members": map[string]any{"names": []string{}, "roles": roles},
	}, nil)
}

// seedCatalogue writes a restaurant's catalogue, in which one thing has a
// picture, one is in conflict, and one was taken off the menu.
func (p *play) seedCatalogue(ctx context.Context, s *shop, db string) error {
	t := s.tills[0]
	var things []*document
	for i, thing := range menu {
		things = append(things, &document{
			ID:           fmt.Sprintf("product:%s:%s:%d", s.company, s.id, i),
			Type:         "product",
			CompanyID:    s.company,
			RestaurantID: s.id,
			Name:         thing.name,
			Price:        json.Number(strconv.Itoa(thing.price) + ".0"),
		})
	}
	picture := append([]byte("\x89PNG\r\n\x1a\n"), t.noise(3000)...)
	things[0].Attachments = map[string]*attachment{
		"picture.png": {ContentType: "image/png", Data: picture},
		"recipe.txt":  {ContentType: "text/plain", Data: []byte("Lomo, huevos, papas, cebolla frita.\n")},
	}
	if err := t.save(ctx, db, things...); err != nil {
		return err
	}
	other := *things[1]
	other.Rev, other.Price = "", "10500.0"
	if err := other.edit(); err != nil {
		return err
	}
	if err := t.push(ctx, db, nil, &other); err != nil {
		return err
	}
	gone := things[len(things)-1]
	*gone = document{ID: gone.ID, Rev: gone.Rev, Deleted: true, Type: "product", CompanyID: s.company, RestaurantID: s.id}
	if err := t.save(ctx, db, gone); err != nil {
		return err
	}
	for _, thing := range things {
		if !thing.Deleted { // A core that is new need not be told of what never was in it.
			p.catalogue[s.restaurant] = append(p.catalogue[s.restaurant], thing.ID)
		}
	}
	return nil
}

// cutOver is what the first rotation must have done: the catalogue is in core,
// and the open orders are in the first day.
func (p *play) cutOver(s *shop) {
	legacy := legacyDB(p.opts.Env)
	for _, id := range p.catalogue[s.restaurant] {
		p.truth.copied(id, legacy, s.coreDB(p.opts.Env))
	}
	for _, order := range p.carried[s.restaurant] {
		p.truth.copied(order.ID, legacy, s.dayDB(p.opts.Env, p.days[0]))
	}
}
