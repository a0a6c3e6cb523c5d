package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// Verification is where each acknowledged document was found: a leaf of its
// revision tree, of which a document in conflict has two.
type Verification struct {
	// Acknowledged are all leaves, Attachments those that they have together.
	Acknowledged int64 `json:"acknowledged"`
	Attachments  int64 `json:"attachments"`
	// InCouchDB were found there as they were acknowledged, OnlyInPostgres in
	// Postgres alone, InBoth in both.
	InCouchDB      int64 `json:"inCouchDb"`
	OnlyInPostgres int64 `json:"onlyInPostgres"`
	InBoth         int64 `json:"inBoth"`
	// Lost are in neither.
	Lost []Loss `json:"lost"`
	// Altered are in one as they were acknowledged, and in the other with the
	// same revision and other bytes.
	Altered []Loss `json:"altered"`
}

// Loss is a document that is not as it was acknowledged.
type Loss struct {
	Database string `json:"database"`
	ID       string `json:"id"`
	Rev      string `json:"rev"`
	CouchDB  string `json:"couchDb"`
	Postgres string `json:"postgres"`
}

func (l Loss) String() string {
	return fmt.Sprintf("%s %s %s: CouchDB: %s; Postgres: %s", l.Database, l.ID, l.Rev, l.CouchDB, l.Postgres)
}

// whole is what is said of a copy that is as it was acknowledged, absent of one
// that is not there.
const (
	whole  = "whole"
	absent = "absent"
)

// copyOf is a document as one of the two stores has it.
type copyOf struct {
	deleted bool
	body    [sha256.Size]byte
	// attachments by name; nil for those that are still to be read.
	attachments map[string][sha256.Size]byte
}

// copies are what a store has of one database, by id and revision.
type copies map[string]map[string]copyOf

func (c copies) add(id, rev string, found copyOf) {
	if c[id] == nil {
		c[id] = make(map[string]copyOf)
	}
	c[id][rev] = found
}

// compare says how a copy of a leaf differs from what was acknowledged.
func (l *leaf) compare(c copies, id, rev string) string {
	found, there := c[id][rev]
	switch {
	case !there:
		return absent
	case found.deleted != l.deleted:
		return "deleted there and not here"
	case found.body != l.body:
		return "another body"
	}
	for name, want := range l.attachments {
		got, there := found.attachments[name]
		if !there {
			return "without its attachment " + name
		}
		if got != want {
			return "another content of its attachment " + name
		}
	}
	return whole
}

// verify looks for every leaf in both stores.
func verify(ctx context.Context, t *truth, couch *couchDB, pool *pgxpool.Pool) (Verification, error) {
	var (
		mu sync.Mutex
		v  = Verification{Lost: []Loss{}, Altered: []Loss{}}
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for db, docs := range t.docs {
		group.Go(func() error {
			inCouch, err := readCouchDB(ctx, couch, db, docs)
			if err != nil {
				return fmt.Errorf("verify %s in CouchDB: %w", db, err)
			}
			inPostgres, err := readPostgres(ctx, pool, db)
			if err != nil {
				return fmt.Errorf("verify %s in Postgres: %w", db, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for id, leaves := range docs {
				for rev, l := range leaves {
					v.count(Loss{db, id, rev, l.compare(inCouch, id, rev), l.compare(inPostgres, id, rev)}, l)
				}
			}
			return nil
		})
	}
	err := group.Wait()
	byPlace := func(a, b Loss) int {
		return slices.Compare([]string{a.Database, a.ID, a.Rev}, []string{b.Database, b.ID, b.Rev})
	}
	slices.SortFunc(v.Lost, byPlace)
	slices.SortFunc(v.Altered, byPlace)
	return v, err
}

func (v *Verification) count(found Loss, l *leaf) {
	v.Acknowledged++
	v.Attachments += int64(len(l.attachments))
	inCouch, inPostgres := found.CouchDB == whole, found.Postgres == whole
	switch {
	case inCouch && inPostgres:
		v.InCouchDB++
		v.InBoth++
	case inCouch:
		v.InCouchDB++
	case inPostgres:
		v.OnlyInPostgres++
	default:
		v.Lost = append(v.Lost, found)
		return
	}
	for _, said := range []string{found.CouchDB, found.Postgres} {
		if said != whole && said != absent {
			v.Altered = append(v.Altered, found)
			return
		}
	}
}

// readCouchDB reads every leaf of the documents, and the attachments that they
// should have. A database that is not there has nothing.
func readCouchDB(ctx context.Context, couch *couchDB, db string, docs map[string]map[string]*leaf) (copies, error) {
	there, err := couch.exists(ctx, db)
	if !there || err != nil {
		return nil, err
	}
	var refs []ref
	for id := range docs {
		refs = append(refs, ref{ID: id})
	}
	got, err := couch.revisions(ctx, db, refs)
	if err != nil {
		return nil, err
	}
	all := make(copies)
	for _, r := range got {
		found := copyOf{deleted: r.deleted, body: sha256.Sum256(r.body), attachments: make(map[string][sha256.Size]byte)}
		if l := docs[r.id][r.rev]; l != nil {
			for name := range l.attachments {
				content, err := couch.attachment(ctx, db, r.id, r.rev, name)
				if statusOf(err) != 0 {
					continue
				}
				if err != nil {
					return nil, err
				}
				found.attachments[name] = sha256.Sum256(content)
			}
		}
		all.add(r.id, r.rev, found)
	}
	return all, nil
}
