package couch

import (
	"net/http"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// bulkDocs writes many documents in one transaction. A malformed or oversized
// one refuses the whole request; conflicts and validation refuse one by one,
// in the answer. Replicated edits are only mentioned where they failed.
func (q *request) bulkDocs() error {
	obj, err := q.readJSONObject()
	if err != nil {
		return err
	}
	docs := jsontext.Get(obj, "docs")
	switch {
	case docs == nil:
		return badRequest("POST body must include `docs` parameter.")
	case !jsontext.IsArray(docs):
		return badRequest("`docs` parameter must be an array.")
	}
	replicated := string(jsontext.Get(obj, "new_edits")) == "false"
	edits, err := q.parseBulk(docs, replicated)
	if err != nil {
		return err
	}
	out := []byte("[")
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		check := q.check(tx)
		for _, e := range edits {
			result, err := applyEdit(tx, e, replicated, check)
			if err != nil {
				return err
			}
			if result == nil {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, result...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusCreated, append(out, ']'))
}

func (q *request) parseBulk(docs []byte, replicated bool) ([]*store.Edit, error) {
	var edits []*store.Edit
	for doc := range jsontext.Elements(docs) {
		e, follows, err := parseDoc(doc)
		if err != nil {
			return nil, err
		}
		switch {
		case len(follows) > 0:
			return nil, badRequest("attachments cannot follow in _bulk_docs")
		case e.ID == "":
			e.ID = randomHex(16)
		}
		if replicated && len(e.Revs) == 0 && !strings.HasPrefix(e.ID, localPrefix) {
			return nil, badRequest("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
		}
		if err := q.prepare(e); err != nil {
			return nil, err
		}
		edits = append(edits, e)
	}
	return edits, nil
}

// applyEdit stores one edit and returns its line of the answer, nil for a
// replicated edit that succeeded. It fails only where the store does.
func applyEdit(tx *store.Tx, e *store.Edit, replicated bool, check store.Check) ([]byte, error) {
	var rev revtree.Rev
	var err error
	switch {
	case strings.HasPrefix(e.ID, localPrefix):
		rev, err = writeLocal(tx, e)
	case replicated:
		rev, err = e.Revs[0], tx.Replicate(e, check)
	default:
		rev, err = tx.Put(e, check)
	}
	if err == nil {
		if replicated {
			return nil, nil
		}
		return appendWritten(nil, e.ID, rev), nil
	}
	refusal, ok := asHTTPError(err)
	if !ok {
		return nil, err
	}
	out := append([]byte(`{"id":`), jsontext.AppendString(nil, e.ID)...)
	if replicated {
		out = append(out, `,"rev":"`...)
		out = append(appendRev(out, rev), '"')
	}
	out = append(out, `,"error":`...)
	out = jsontext.AppendString(out, refusal.code)
	out = append(out, `,"reason":`...)
	return append(jsontext.AppendString(out, refusal.reason), '}'), nil
}
