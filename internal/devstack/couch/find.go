package couch

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/go-kivik/kivik/v4/x/collate"
	"github.com/go-kivik/kivik/v4/x/mango"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// selector matches documents.
type selector struct{ node mango.Node }

func parseSelector(raw []byte) (selector, error) {
	if !jsontext.IsObject(raw) {
		return selector{}, badRequest("Selector must be a JSON object")
	}
	node, err := mango.Parse(raw)
	if err != nil {
		return selector{}, &httpError{http.StatusBadRequest, "invalid_operator", err.Error()}
	}
	return selector{node}, nil
}

func (s selector) matches(tx *store.Tx, r *store.Record) (bool, error) {
	doc, err := appendDoc(nil, tx, r, r.Tree.Winner(), view{})
	if err != nil {
		return false, err
	}
	var value any
	if err := json.Unmarshal(doc, &value); err != nil {
		// Only deeper nesting than encoding/json takes can fail here, and no
		// selector reaches down there.
		return false, nil
	}
	return s.node.Match(value), nil
}

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
	if f.selector, err = parseSelector(jsontext.Get(obj, "selector")); err != nil {
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
		if err != nil || json.Unmarshal(raw, &f.skip) != nil {
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
		field.path = mango.SplitKeys(name)
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
	bookmark, err := json.Marshal(f.skip + len(docs))
	if err != nil {
		return err
	}
	out := append([]byte(`{"docs":[`), bytes.Join(docs, []byte(",\r\n"))...)
	out = append(out, `],"bookmark":"`...)
	out = append(base64.RawURLEncoding.AppendEncode(out, bookmark), `"}`...)
	return q.json(http.StatusOK, out)
}

// order sorts by CouchDB's collation of JSON values.
func (f findQuery) order(docs [][]byte) {
	if f.sort == nil {
		return
	}
	slices.SortStableFunc(docs, func(a, b []byte) int {
		for _, field := range f.sort {
			order := collate.CompareJSON(lookup(a, field.path), lookup(b, field.path))
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

func lookup(doc []byte, path []string) json.RawMessage {
	for _, key := range path {
		if doc = jsontext.Get(doc, key); doc == nil {
			return json.RawMessage("null")
		}
	}
	return doc
}

// project keeps the fields that were asked for, in the order asked for. A
// nested field keeps its place in objects made for it.
func (f findQuery) project(doc []byte) []byte {
	if f.fields == nil {
		return doc
	}
	var root projection
	for _, field := range f.fields {
		path := mango.SplitKeys(field)
		value := doc
		for _, key := range path {
			value = jsontext.Get(value, key)
		}
		if value != nil {
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
