package rotation

import (
	"context"
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/couch"
)

// replicate copies documents of the legacy database to another, under their
// revisions and with all leaves, and verifies that they are there. It returns
// how many documents were not there before. A document that the database will
// not take is noted in the copy, and the others are copied; an error is one of
// the connection.
func (p *pass) replicate(ctx context.Context, c *legacyCopy, db string, entries []entry) (int64, error) {
	if len(entries) == 0 {
		return 0, nil
	}
	leaves := make(map[string][]string, len(entries))
	for _, e := range entries {
		leaves[e.id] = e.revs
	}
	missing, err := p.couch.Missing(ctx, db, leaves)
	if p.run.DryRun && errors.Is(err, couch.ErrNotFound) {
		return int64(len(leaves)), nil
	}
	if err != nil || len(missing) == 0 || p.run.DryRun {
		return int64(len(missing)), err
	}
	wanted := make([]couch.Ref, 0, len(missing))
	for id := range missing {
		// All leaves as they are now: the document may have changed since its row.
		wanted = append(wanted, couch.Ref{ID: id})
	}
	revisions, err := p.couch.Revisions(ctx, p.legacyDB, wanted, true)
	if err != nil {
		return 0, err
	}
	reasons := make(map[string]string)
	for id := range missing {
		reasons[id] = "CouchDB has not answered for it"
	}
	for _, r := range revisions {
		delete(reasons, r.ID)
	}
	arrived := make(map[string][]string, len(missing))
	var docs [][]byte
	for _, r := range revisions {
		switch {
		case r.Body != nil:
			docs = append(docs, r.Body)
			arrived[r.ID] = append(arrived[r.ID], r.Rev)
		case !strings.HasPrefix(r.Error, "not_found"):
			reasons[r.ID] = r.Error
		}
	}
	if err := p.insert(ctx, db, docs, reasons); err != nil {
		return 0, err
	}
	if missing, err = p.couch.Missing(ctx, db, arrived); err != nil {
		return 0, err
	}
	for id, revs := range missing {
		if reasons[id] == "" && len(revs) > 0 {
			reasons[id] = "is not there although it was accepted"
		}
	}
	for id, reason := range reasons {
		c.refuse(db, id, reason)
		delete(arrived, id)
	}
	return int64(len(arrived)), nil
}

// insert writes the documents and notes why single ones were refused. A batch
// that is refused as a whole, because of one document that is too large or
// malformed, is halved until that one is found.
func (p *pass) insert(ctx context.Context, db string, docs [][]byte, reasons map[string]string) error {
	if len(docs) == 0 {
		return nil
	}
	refusals, err := p.couch.Insert(ctx, db, docs)
	switch {
	case err == nil:
		for _, r := range refusals {
			reasons[r.ID] = r.Error + " " + r.Reason
		}
		return nil
	case !errors.Is(err, couch.ErrRejected):
		return err
	case len(docs) == 1:
		reasons[gjson.GetBytes(docs[0], "_id").String()] = err.Error()
		return nil
	}
	half := len(docs) / 2
	if err := p.insert(ctx, db, docs[:half], reasons); err != nil {
		return err
	}
	return p.insert(ctx, db, docs[half:], reasons)
}
