package couch

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// findQuery is the body of _find. Indexes are accepted and never used: every
// query reads the whole database.
type findQuery struct {
	selector selector
	fields   []string
	sort     []sortField
	limit    int
	skip     int
}

type sortField struct {
	path       []string
	descending bool
}

func (q *request) findQuery() (findQuery, error) {
	f := findQuery{limit: 25}
	obj, err := q.readJSONObject()
	if err != nil {
		return f, err
	}
	raw := jsontext.Get(obj, "selector")
	switch {
	case raw == nil:
		return f, &httpError{http.StatusBadRequest, "missing_required_key", "Missing required key: selector"}
	case !jsontext.IsObject(raw):
		return f, &httpError{http.StatusBadRequest, "invalid_selector_json", "Selector must be a JSON object, not: " + string(raw)}
	}
	if f.selector, err = parseSelector(raw); err != nil {
		return f, err
	}
	var body struct {
		Fields   []string          `json:"fields"`
		Sort     []json.RawMessage `json:"sort"`
		Limit    *int              `json:"limit"`
		Skip     int               `json:"skip"`
		Bookmark string            `json:"bookmark"`
	}
	if err := json.Unmarshal(obj, &body); err != nil {
		return f, badRequest(err.Error())
	}
	f.fields, f.skip = body.Fields, body.Skip
	if body.Limit != nil {
		f.limit = *body.Limit
	}
	if body.Bookmark != "" && body.Bookmark != "nil" {
		raw, err := base64.RawURLEncoding.DecodeString(body.Bookmark)
		if err == nil {
			f.skip, err = strconv.Atoi(string(raw))
		}
		if err != nil {
			return f, &httpError{http.StatusBadRequest, "invalid_bookmark", "Invalid bookmark value: \"" + body.Bookmark + "\""}
		}
	}
	for _, raw := range body.Sort {
		field := sortField{}
		var name string
		var directed map[string]string
		switch {
		case json.Unmarshal(raw, &name) == nil:
		case json.Unmarshal(raw, &directed) == nil && len(directed) == 1:
			for field, direction := range directed {
				name = field
				if direction != "asc" && direction != "desc" {
					return f, badRequest("invalid sort direction")
				}
			}
			field.descending = directed[name] == "desc"
		default:
			return f, badRequest("invalid sort field")
		}
		field.path = fieldPath(name)
		f.sort = append(f.sort, field)
	}
	return f, nil
}

func (q *request) find() error {
	f, err := q.findQuery()
	if err != nil {
		return err
	}
	var docs [][]byte
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		return tx.Docs("", false, false, func(r *store.Record) (bool, error) {
			if strings.HasPrefix(r.ID, store.DesignPrefix) {
				return true, nil
			}
			match, err := f.selector.matches(tx, r)
			if err != nil || !match {
				return err == nil, err
			}
			doc, err := appendDoc(nil, tx, r, r.Tree.Winner(), view{})
			docs = append(docs, doc)
			return f.sort != nil || len(docs) < f.skip+f.limit, err
		})
	})
	if err != nil {
		return err
	}
	f.order(docs)
	docs = docs[min(f.skip, len(docs)):]
	docs = docs[:min(f.limit, len(docs))]
	for i := range docs {
		docs[i] = f.project(docs[i])
	}
	out := append([]byte("{\"docs\":[\n"), bytes.Join(docs, []byte(",\n"))...)
	if len(docs) > 0 {
		out = append(out, '\n')
	}
	out = append(out, "],\n\"bookmark\": \""...)
	if len(docs) == 0 {
		out = append(out, "nil"...)
	} else {
		out = base64.RawURLEncoding.AppendEncode(out, strconv.AppendInt(nil, int64(f.skip+len(docs)), 10))
	}
	return q.json(http.StatusOK, append(out, "\",\n\"warning\": \"No matching index found, create an index to optimize query time.\"}"...))
}

// order sorts by CouchDB's collation of JSON values.
func (f findQuery) order(docs [][]byte) {
	if f.sort == nil {
		return
	}
	slices.SortStableFunc(docs, func(a, b []byte) int {
		for _, field := range f.sort {
			order := compareJSON(orNull(lookup(a, field.path)), orNull(lookup(b, field.path)))
			if field.descending {
				order = -order
			}
			if order != 0 {
				return order
			}
		}
		return 0
	})
}

func orNull(value []byte) []byte {
	if value == nil {
		return []byte("null")
	}
	return value
}

// project keeps the fields that were asked for, in the order asked for. A
// nested field keeps its place in objects made for it.
func (f findQuery) project(doc []byte) []byte {
	if f.fields == nil {
		return doc
	}
	var root projection
	for _, field := range f.fields {
		path := fieldPath(field)
		if value := lookup(doc, path); value != nil {
			root.put(path, value)
		}
	}
	return root.append(nil)
}

// projection is an object in the making.
type projection struct {
	keys   []string
	values map[string]*projection
	leaf   []byte
}

func (p *projection) put(path []string, value []byte) {
	if len(path) == 0 {
		p.leaf = value
		return
	}
	child, ok := p.values[path[0]]
	if !ok {
		child = &projection{}
		if p.values == nil {
			p.values = map[string]*projection{}
		}
		p.values[path[0]] = child
		p.keys = append(p.keys, path[0])
	}
	child.put(path[1:], value)
}

func (p *projection) append(dst []byte) []byte {
	if p.leaf != nil {
		return append(dst, p.leaf...)
	}
	dst = append(dst, '{')
	for i, key := range p.keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsontext.AppendString(dst, key), ':')
		dst = p.values[key].append(dst)
	}
	return append(dst, '}')
}
