package couch

import (
	"net/http"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

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
