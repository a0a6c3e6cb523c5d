package main

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// record is an order or a payment as the primary's books have it.
type record struct {
	Kind       string
	ID         string
	Status     string
	Version    int64
	Restaurant string
	// Day is the name of the database that it is bound to, empty for none.
	Day string
	// DayOf is the restaurant whose day that is.
	DayOf string
}

// docID is that of its document.
func (r record) docID() string { return r.Kind + ":" + r.ID }

// document is what a till sees of a record.
type document struct {
	ID         string `json:"_id"`
	Type       string `json:"type"`
	Restaurant string `json:"restaurantId"`
	Status     string `json:"status"`
	Continuity struct {
		Version int64  `json:"version"`
		Status  string `json:"status"`
	} `json:"continuity"`
}

// tillStatus is what tills call a status of the books.
func tillStatus(status string) string {
	if status == "delivered" {
		return "closed"
	}
	return status
}

// projected waits until the primary says that everything is in its day: tills see
// an order seconds after it was applied. Whether it is there is for the check.
func (s *site) projected(ctx context.Context) error {
	return until(ctx, "orders and payments are documents", func(ctx context.Context) (bool, error) {
		var waiting int
		err := s.own.QueryRow(ctx, `
			select (select count(*) from orders where projected_version < version)
			     + (select count(*) from payments where projected_version < version)`).Scan(&waiting)
		return waiting == 0, err
	})
}

// readRecords reads the books.
func (s *site) readRecords(ctx context.Context, b *books) error {
	return each(ctx, s.own, func(r record) { b.records = append(b.records, r) }, `
		select
		  r.kind,
		  r.id,
		  r.status,
		  r.version,
		  r.restaurant_id,
		  coalesce(d.db_name, ''),
		  coalesce(d.restaurant_id, '')
		from (
		  select 'order' as kind, order_id as id, status, version, restaurant_id, day_database_id from orders
		  union all
		  select 'payment', payment_id, status, version, restaurant_id, day_database_id from payments) r
		left join day_databases d on d.id = r.day_database_id
		order by 1, 2`)
}

// readDocuments reads the orders and payments of all day databases that CouchDB
// has of this world, whether the ledger knows them or not.
func (s *site) readDocuments(ctx context.Context, b *books) error {
	var names []string
	if err := s.inCouch(ctx, http.MethodGet, "/_all_dbs", nil, &names); err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, s.env()+"_") || !strings.Contains(name, "_daily_") {
			continue
		}
		var all struct {
			Rows []struct {
				Doc document `json:"doc"`
			} `json:"rows"`
		}
		if err := s.inCouch(ctx, http.MethodGet, "/"+name+"/_all_docs?include_docs=true", nil, &all); err != nil {
			return err
		}
		b.documents[name] = map[string]document{}
		for _, row := range all.Rows {
			if row.Doc.Type == "order" || row.Doc.Type == "payment" {
				b.documents[name][row.Doc.ID] = row.Doc
			}
		}
	}
	return nil
}

// inCouch asks CouchDB, whose address has the administrator's credentials. In and
// out may be nil.
func (s *site) inCouch(ctx context.Context, method, path string, in, out any) error {
	return ask(ctx, method, s.couch.URL()+path, nil, in, out)
}

// shown: each order and payment of the books is a document in the day that it is
// bound to, as the books have it. There is none beyond them, and none is in two
// days: no day is sealed here, so that all of them are open.
//
// A primary that was restored from a backup is allowed nothing more. Right behind
// the restore its documents are ahead of it, by what was applied since the backup,
// and may be in a day that it does not know; the projection leaves them as they are.
// All of that had come through the queue, which hands it out again in the same
// order, and so the books arrive at the version that the documents have shown all
// the time. A direct write that a restore has lost would leave its document ahead
// until the order has gone on; days that restore the primary have none.
func (s *site) shown(v *verdict, b books) {
	bound := make(map[string]string)
	for _, r := range b.records {
		id := r.docID()
		bound[id] = r.Day
		doc, ok := b.documents[r.Day][id]
		switch {
		case r.Day == "":
			v.wrong("%s is in no day", id)
		case !ok:
			v.wrong("%s is not in %s, which it is bound to", id, r.Day)
		case doc.Continuity.Version != r.Version:
			v.wrong("%s is at version %d, and %s shows %d", id, r.Version, r.Day, doc.Continuity.Version)
		case doc.Continuity.Status != r.Status || doc.Status != tillStatus(r.Status):
			v.wrong("%s is %s, and %s shows %s, which tills see as %s", id, r.Status, r.Day, doc.Continuity.Status, doc.Status)
		case doc.Type != r.Kind || doc.Restaurant != r.Restaurant || r.DayOf != r.Restaurant:
			v.wrong("%s of %s is a %s of %s in a day of %s", id, r.Restaurant, doc.Type, doc.Restaurant, r.DayOf)
		default:
			v.documents++
		}
	}
	for _, day := range slices.Sorted(maps.Keys(b.documents)) {
		for id := range b.documents[day] {
			home, known := bound[id]
			switch {
			case !known:
				v.wrong("%s has %s, which the books do not know", day, id)
			case home != day:
				v.wrong("%s is in two days, %s and %s", id, home, day)
			}
		}
	}
}
