package couch

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

const localPrefix = "_local/"

// localDoc serves documents that neither replicate nor conflict.
func (q *request) localDoc(id string) error {
	key := strings.TrimPrefix(id, localPrefix)
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		var out []byte
		err := q.dir.View(q.db, func(tx *store.Tx) error {
			body, rev, err := tx.Local(key)
			out = appendLocal(nil, id, rev, body)
			return err
		})
		if err != nil {
			return err
		}
		return q.json(http.StatusOK, out)
	case http.MethodPut:
		obj, err := q.readJSON()
		if err != nil {
			return err
		}
		e, _, err := parseDoc(obj)
		if err != nil {
			return err
		}
		e.ID = id
		rev, err := q.putLocal(e)
		if err != nil {
			return err
		}
		return q.written(e, rev)
	case http.MethodDelete:
		e := &store.Edit{ID: id, Deleted: true}
		rev, err := q.putLocal(e)
		if err != nil {
			return err
		}
		return q.written(e, rev)
	}
	return methodNotAllowed("DELETE,GET,HEAD,PUT")
}

func (q *request) putLocal(e *store.Edit) (rev revtree.Rev, err error) {
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		rev, err = writeLocal(tx, e)
		return err
	})
	return rev, err
}

// writeLocal stores or deletes a local document. The revision that a client
// gives is only counted on, never compared.
func writeLocal(tx *store.Tx, e *store.Edit) (revtree.Rev, error) {
	key := strings.TrimPrefix(e.ID, localPrefix)
	if e.Deleted {
		return revtree.Rev{Gen: 0, ID: "0"}, tx.DeleteLocal(key)
	}
	given := ""
	if len(e.Revs) > 0 {
		given = e.Revs[0].ID
	}
	n, err := tx.PutLocal(key, e.Body, given)
	return revtree.Rev{Gen: 0, ID: strconv.Itoa(n)}, err
}

func appendLocal(dst []byte, id string, rev int, body []byte) []byte {
	dst = append(dst, `{"_id":`...)
	dst = jsontext.AppendString(dst, id)
	dst = append(dst, `,"_rev":"0-`...)
	dst = append(strconv.AppendInt(dst, int64(rev), 10), '"')
	if len(body) > 0 {
		dst = append(dst, ',')
		dst = append(dst, body...)
	}
	return append(dst, '}')
}

// localDocs lists the local documents of the database.
func (q *request) localDocs() error {
	type row struct {
		ID    string          `json:"id"`
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
		Doc   json.RawMessage `json:"doc,omitempty"`
	}
	rows := []row{}
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		return tx.Locals(func(id string, rev int, body []byte) bool {
			r := row{ID: localPrefix + id, Key: localPrefix + id, Value: json.RawMessage(`{"rev":"0-` + strconv.Itoa(rev) + `"}`)}
			if q.flag("include_docs") {
				r.Doc = appendLocal(nil, r.ID, rev, body)
			}
			rows = append(rows, r)
			return true
		})
	})
	if err != nil {
		return err
	}
	return q.marshal(http.StatusOK, map[string]any{"total_rows": nil, "offset": nil, "rows": rows})
}
