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

// bulkGet reads many revisions at once.
func (q *request) bulkGet() error {
	obj, err := q.readJSONObject()
	if err != nil {
		return err
	}
	docs := jsontext.Get(obj, "docs")
	if !jsontext.IsArray(docs) {
		return badRequest("Missing JSON list of 'docs'.")
	}
	v, err := q.viewFromQuery()
	if err != nil {
		return err
	}
	out := []byte(`{"results":[`)
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		first := true
		for asked := range jsontext.Elements(docs) {
			if !first {
				out = append(out, ',')
			}
			first = false
			if out, err = q.appendBulkGet(out, tx, asked, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, append(out, "]}"...))
}

// appendBulkGet appends the answer to one {"id","rev","atts_since"}. Without
// a revision it holds every leaf.
func (q *request) appendBulkGet(out []byte, tx *store.Tx, asked []byte, v view) ([]byte, error) {
	id, rev := jsontext.Get(asked, "id"), jsontext.Get(asked, "rev")
	if !jsontext.IsString(id) {
		out = appendBulkGetError(append(out, `{"id":null,"docs":[`...), "null", "null", badRequest("document id missed"))
		return append(out, "]}"...), nil
	}
	out = append(append(out, `{"id":`...), id...)
	out = append(out, `,"docs":[`...)
	refuse := func(e *httpError) []byte {
		shown := "null"
		if jsontext.IsString(rev) {
			shown = string(rev)
		}
		return append(appendBulkGetError(out, string(id), shown, e), "]}"...)
	}
	name := jsontext.Unquote(id)
	if err := checkDocID(name); err != nil {
		refusal, _ := asHTTPError(err)
		return refuse(refusal), nil
	}
	var revs []revtree.Rev
	if jsontext.IsString(rev) {
		r, err := revtree.ParseRev(jsontext.Unquote(rev))
		if err != nil {
			return refuse(errInvalidRevsPath), nil
		}
		revs = []revtree.Rev{r}
	}
	if since := jsontext.Get(asked, "atts_since"); jsontext.IsArray(since) {
		known, err := parseRevArray(string(since))
		if err != nil {
			return refuse(errInvalidRevsPath), nil
		}
		v.attsSince, v.attachments = known, true
	}
	parts, err := readOpenRevs(tx, name, revs, revs == nil, q.flag("latest"), v)
	if err == errMissing { //nolint:errorlint // Produced as this very value.
		// CouchDB shows the absent revision like this.
		return append(appendBulkGetError(out, string(id), `"undefined"`, errMissing), "]}"...), nil
	}
	if err != nil {
		return out, err
	}
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		if p.doc == nil {
			out = appendBulkGetError(out, string(id), `"`+string(appendRev(nil, p.rev))+`"`, errMissing)
			continue
		}
		out = append(append(append(out, `{"ok":`...), p.doc...), '}')
	}
	return append(out, "]}"...), nil
}

// appendBulkGetError takes id and rev as JSON values.
func appendBulkGetError(out []byte, id, rev string, e *httpError) []byte {
	out = append(out, `{"error":{"rev":`+rev+`,"reason":`...)
	out = jsontext.AppendString(out, e.reason)
	out = append(out, `,"id":`+id+`,"error":`...)
	return append(jsontext.AppendString(out, e.code), "}}"...)
}

// revsDiff tells which of the given revisions the database lacks.
func (q *request) revsDiff() error {
	out, err := q.diffRevs(func(out []byte, id []byte, missing, ancestors []revtree.Rev) []byte {
		out = append(append(out, id...), `:{"missing":`...)
		out = appendRevs(out, missing)
		if len(ancestors) > 0 {
			out = append(out, `,"possible_ancestors":`...)
			out = appendRevs(out, ancestors)
		}
		return append(out, '}')
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, out)
}

func (q *request) missingRevs() error {
	out, err := q.diffRevs(func(out []byte, id []byte, missing, _ []revtree.Rev) []byte {
		return appendRevs(append(append(out, id...), ':'), missing)
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, append(append([]byte(`{"missing_revs":`), out...), '}'))
}

// diffRevs makes an object with a member, written by show, for each document
// of which revisions are missing. Possible ancestors are the leaves of a lower
// generation than the highest missing one.
func (q *request) diffRevs(show func(out, id []byte, missing, ancestors []revtree.Rev) []byte) ([]byte, error) {
	asked, err := q.readJSONObject()
	if err != nil {
		return nil, err
	}
	out := []byte("{")
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		for m := range jsontext.Members(asked) {
			if !isStringArray(m.Value) {
				return badRequest("revisions must be a list of strings")
			}
			revs, err := parseRevArray(string(m.Value))
			if err != nil {
				return err
			}
			missing, ancestors, err := missingOf(tx, jsontext.Unquote(m.Key), revs)
			if err != nil {
				return err
			}
			if len(missing) == 0 {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = show(out, m.Key, missing, ancestors)
		}
		return nil
	})
	return append(out, '}'), err
}

func missingOf(tx *store.Tx, id string, revs []revtree.Rev) (missing, ancestors []revtree.Rev, err error) {
	r, err := tx.Record(id)
	if err != nil {
		if refusal, _ := asHTTPError(err); refusal == errMissing {
			return revs, nil, nil
		}
		return nil, nil, err
	}
	highest := 0
	for _, rev := range revs {
		if r.Tree.Find(rev) < 0 {
			missing = append(missing, rev)
			highest = max(highest, rev.Gen)
		}
	}
	for _, i := range r.Tree.Leaves() {
		if r.Tree[i].Rev.Gen < highest {
			ancestors = append(ancestors, r.Tree[i].Rev)
		}
	}
	return missing, ancestors, nil
}

func appendRevs(dst []byte, revs []revtree.Rev) []byte {
	dst = append(dst, '[')
	for i, rev := range revs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(appendRev(dst, rev), '"')
	}
	return append(dst, ']')
}
