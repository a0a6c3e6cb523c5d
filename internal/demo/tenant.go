package demo

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
)

// centro is the restaurant of a server for development.
var centro = restaurant{company: "demo", id: "centro"}

// Tenant makes sure that a server has one restaurant whose days rotate, with an
// ACTIVE day and a few documents in it, and returns the name of that day's
// database. A new one is a day behind, so that its first night can be watched.
// Of opts it needs no Days. What is there already stays as it is; if the rotation
// finds that it is not as it should be, faults says what, and no documents are
// made.
func Tenant(ctx context.Context, opts Options) (dayDB string, faults []string, err error) {
	pool, err := pgxpool.New(ctx, opts.Database)
	if err != nil {
		return "", nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer pool.Close()
	couch, err := newCouchDB(opts.CouchDB)
	if err != nil {
		return "", nil, err
	}
	p := newPlay(opts, couch, pool)
	s := p.newShop(centro)
	if there, err := couch.exists(ctx, legacyDB(opts.Env)); err != nil {
		return "", nil, err
	} else if !there {
		if err := p.createLegacy(ctx, s); err != nil {
			return "", nil, err
		}
		if err := p.seedCatalogue(ctx, s, legacyDB(opts.Env)); err != nil {
			return "", nil, err
		}
	}
	if err := p.admin.register(ctx, centro, zones[0]); err != nil {
		return "", nil, err
	}
	if err := p.admin.switchOn(ctx, centro.company); err != nil {
		return "", nil, err
	}
	day, err := p.devDay(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := p.cron(ctx, "rolling-db-rotate", day); err != nil {
		return "", nil, err
	}
	if len(p.faults) > 0 {
		return "", p.faults, nil
	}
	dayDB, err = p.firstShift(ctx, s)
	return dayDB, nil, err
}

// devDay is the ACTIVE day, which stays until its night, or yesterday for a
// tenant that has none yet.
func (p *play) devDay(ctx context.Context) (string, error) {
	var active struct {
		DayDBs []struct {
			BusinessDay string `json:"businessDay"`
		} `json:"dayDbs"`
	}
	err := p.admin.call(ctx, http.MethodGet, "/admin/day-dbs?state=ACTIVE&companyId="+centro.company, nil, &active)
	if err != nil {
		return "", err
	}
	if len(active.DayDBs) > 0 {
		return active.DayDBs[0].BusinessDay, nil
	}
	_, today, err := p.today(ctx, zones[0])
	return daysBefore(today, 1), err
}

// firstShift has a till work on the current day if nobody has yet.
func (p *play) firstShift(ctx context.Context, s *shop) (dayDB string, err error) {
	day, db, err := s.tills[0].current(ctx)
	if err != nil {
		return "", err
	}
	var info struct {
		Documents int64 `json:"doc_count"`
	}
	if err := p.couch.json(ctx, http.MethodGet, dbPath(db), nil, &info); err != nil || info.Documents > 0 {
		return db, err
	}
	_, err = (&shift{till: s.tills[0], day: day, db: db}).work(ctx, true)
	return db, err
}

// Clean deletes the databases of an environment from a CouchDB that goes on.
func Clean(ctx context.Context, address, env string) error {
	couch, err := newCouchDB(address)
	if err != nil {
		return err
	}
	names, err := couch.names(ctx, env+"_")
	if err != nil {
		return err
	}
	for _, name := range append(names, legacyDB(env)) {
		if err := couch.json(ctx, http.MethodDelete, dbPath(name), nil, nil); err != nil && statusOf(err) != http.StatusNotFound {
			return err
		}
	}
	return nil
}
