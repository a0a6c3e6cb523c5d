package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
)

// till is a device of a restaurant. It is used by one goroutine at a time.
type till struct {
	restaurant
	name  string
	env   string
	couch *couchDB
	truth *truth
	rand  *rand.Rand
	// sold counts what it has entered, for ids.
	sold int
}

// newDocument begins a document of a business day.
func (t *till) newDocument(kind, day string) *document {
	t.sold++
	return &document{
		ID:           fmt.Sprintf("%s:%s:%s:%04d", kind, day, t.name, t.sold),
		Type:         kind,
		CompanyID:    t.company,
		RestaurantID: t.id,
		BusinessDay:  day,
		Till:         t.name,
		CreatedAt:    clock(day, t.sold),
	}
}

// clock is a time of day for the n-th document of a till; nothing depends on it.
func clock(day string, n int) string {
	minute := 12*60 + n%600
	return fmt.Sprintf("%s-%s-%sT%02d:%02d:%02d-03:00", day[:4], day[4:6], day[6:], minute/60, minute%60, n%60)
}

// save writes documents, which get their new revisions.
func (t *till) save(ctx context.Context, db string, docs ...*document) error {
	results, err := t.couch.bulk(ctx, db, docs, true)
	if err != nil {
		return fmt.Errorf("%s %s: %w", t, t.name, err)
	}
	for i, d := range docs {
		if results[i].ID != d.ID {
			return fmt.Errorf("%s answers %s for %s", db, results[i].ID, d.ID)
		}
		t.truth.acknowledged(db, d.ID, d.Rev, results[i].Rev, d.Deleted, d.contents(), false)
		d.Rev = results[i].Rev
	}
	return nil
}

// push brings documents that were written offline, under their own revisions;
// parents are the revisions, by id, that they follow on in this database.
func (t *till) push(ctx context.Context, db string, parents map[string]string, docs ...*document) error {
	if _, err := t.couch.bulk(ctx, db, docs, false); err != nil {
		return fmt.Errorf("%s %s: %w", t, t.name, err)
	}
	for _, d := range docs {
		t.truth.acknowledged(db, d.ID, parents[d.ID], d.Rev, d.Deleted, d.contents(), false)
		d.Revisions = nil
	}
	return nil
}

// attach uploads an attachment by itself, beside those that the document has.
func (t *till) attach(ctx context.Context, db string, d *document, name, contentType string, content []byte) error {
	path := docPath(db, d.ID) + "/" + url.PathEscape(name) + "?rev=" + url.QueryEscape(d.Rev)
	raw, err := t.couch.request(ctx, http.MethodPut, path, contentType, content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", t, t.name, err)
	}
	var result written
	if err := json.Unmarshal(raw, &result); err != nil {
		return err
	}
	t.truth.acknowledged(db, d.ID, d.Rev, result.Rev, false, map[string][]byte{name: content}, true)
	d.Rev = result.Rev
	return nil
}

// dayManifest is the document that tells devices where to write.
type dayManifest struct {
	CurrentBusinessDay string `json:"currentBusinessDay"`
	CurrentDayDB       string `json:"currentDayDb"`
	Overlays           []struct {
		BusinessDay string `json:"businessDay"`
		DBName      string `json:"dbName"`
	} `json:"overlays"`
}

// current returns the database of the business day that the manifest calls the
// current one.
func (t *till) current(ctx context.Context) (day, db string, err error) {
	m, err := t.manifest(ctx)
	return m.CurrentBusinessDay, t.prefix(t.env) + m.CurrentDayDB, err
}

// mounted returns the database of an earlier day that the manifest still names.
func (t *till) mounted(ctx context.Context, day string) (db string, err error) {
	m, err := t.manifest(ctx)
	if err != nil {
		return "", err
	}
	for _, o := range m.Overlays {
		if o.BusinessDay == day {
			return t.prefix(t.env) + o.DBName, nil
		}
	}
	return "", fmt.Errorf("%s: the manifest does not name %s, which has an open order", t, day)
}

func (t *till) manifest(ctx context.Context) (dayManifest, error) {
	var m dayManifest
	err := t.couch.json(ctx, http.MethodGet, docPath(t.coreDB(t.env), "day_manifest"), nil, &m)
	return m, err
}
