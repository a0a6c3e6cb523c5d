package couch

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// index serves _index. An index is a design document of language "query", as
// in CouchDB, and nothing else: _find does without.
func (q *request) index() error {
	switch {
	case len(q.path) == 2 && q.r.Method == http.MethodGet:
		return q.listIndexes()
	case len(q.path) == 2 && q.r.Method == http.MethodPost:
		return q.createIndex()
	case len(q.path) >= 5 && q.r.Method == http.MethodDelete:
		return q.deleteIndex()
	}
	return methodNotAllowed("GET,POST")
}

func (q *request) createIndex() error {
	obj, err := q.readJSONObject()
	if err != nil {
		return err
	}
	definition := jsontext.Get(obj, "index")
	if !jsontext.IsArray(jsontext.Get(definition, "fields")) {
		return &httpError{http.StatusBadRequest, "missing_required_key", "Missing required key: index"}
	}
	sum := sha1.Sum(definition)
	hash := hex.EncodeToString(sum[:])
	name, ddoc := hash, "_design/"+hash
	if v := jsontext.Get(obj, "name"); jsontext.IsString(v) {
		name = jsontext.Unquote(v)
	}
	if v := jsontext.Get(obj, "ddoc"); jsontext.IsString(v) {
		ddoc = "_design/" + trimDesign(jsontext.Unquote(v))
	}
	body := []byte(`"language":"query","views":{`)
	body = append(jsontext.AppendString(body, name), `:{"map":`...)
	body = append(append(body, definition...), `,"reduce":"_count","options":{"def":`...)
	body = append(append(body, definition...), "}}}"...)
	result := "created"
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		_, err := tx.Put(&store.Edit{ID: ddoc, Body: body}, q.check(tx))
		if errors.Is(err, store.ErrConflict) {
			result, err = "exists", nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return q.marshal(http.StatusOK, struct {
		Result string `json:"result"`
		ID     string `json:"id"`
		Name   string `json:"name"`
	}{result, ddoc, name})
}

func (q *request) listIndexes() error {
	type index struct {
		DDoc *string         `json:"ddoc"`
		Name string          `json:"name"`
		Type string          `json:"type"`
		Def  json.RawMessage `json:"def"`
	}
	indexes := []index{{Name: "_all_docs", Type: "special", Def: json.RawMessage(`{"fields":[{"_id":"asc"}]}`)}}
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		docs, err := tx.DesignDocs()
		if err != nil {
			return err
		}
		for _, doc := range docs {
			for m := range jsontext.Members(jsontext.Get(asObject(doc.Body), "views")) {
				if def := jsontext.Get(jsontext.Get(m.Value, "options"), "def"); def != nil {
					indexes = append(indexes, index{&doc.ID, jsontext.Unquote(m.Key), "json", def})
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.marshal(http.StatusOK, map[string]any{"total_rows": len(indexes), "indexes": indexes})
}

func (q *request) deleteIndex() error {
	name := trimDesign(q.path[2])
	if name == "_design" {
		name = q.path[3]
	}
	err := q.dir.Update(q.db, func(tx *store.Tx) error {
		r, err := tx.Record("_design/" + name)
		if err != nil {
			return err
		}
		winner := r.Tree[r.Tree.Winner()]
		if winner.Deleted {
			return errMissing
		}
		e := &store.Edit{ID: r.ID, Deleted: true}
		e.Revs = append(e.Revs, winner.Rev)
		_, err = tx.Put(e, q.check(tx))
		return err
	})
	if err != nil {
		return err
	}
	return q.ok(http.StatusOK)
}

func trimDesign(id string) string {
	if len(id) > len(store.DesignPrefix) && id[:len(store.DesignPrefix)] == store.DesignPrefix {
		return id[len(store.DesignPrefix):]
	}
	return id
}
