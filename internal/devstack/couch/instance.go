package couch

import (
	"net/http"
	"slices"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
)

const (
	couchVersion = "3.5.0"
	nodeName     = "nonode@nohost"
)

func (q *request) welcome() error {
	return q.json(http.StatusOK, []byte(`{"couchdb":"Welcome","version":"`+couchVersion+`","git_sha":"0000000","uuid":"`+q.uuid+
		`","features":["access-ready","partitioned","pluggable-storage-engines","reshard","scheduler"],"vendor":{"name":"rollingd embedded store"}}`))
}

func (q *request) membership() error {
	return q.asServerAdmin(func() error {
		return q.json(http.StatusOK, []byte(`{"all_nodes":["`+nodeName+`"],"cluster_nodes":["`+nodeName+`"]}`))
	})
}

func (q *request) uuids() error {
	n, err := q.intParameter("count", 1)
	if err != nil {
		return err
	}
	if n > 1000 {
		return badRequest("count parameter too large")
	}
	uuids := make([]string, 0, max(n, 0))
	for range n {
		uuids = append(uuids, randomHex(16))
	}
	q.w.Header().Set("Cache-Control", "no-cache")
	return q.marshal(http.StatusOK, map[string]any{"uuids": uuids})
}

func (q *request) allDBs() error {
	return q.asServerAdmin(func() error {
		names, err := q.rangeOfNames()
		if err != nil {
			return err
		}
		return q.marshal(http.StatusOK, names)
	})
}

// rangeOfNames applies startkey, endkey, skip, limit and descending to the
// names of all databases.
func (q *request) rangeOfNames() ([]string, error) {
	bounds, err := q.keyRange()
	if err != nil {
		return nil, err
	}
	names := q.dir.Names()
	if bounds.descending {
		slices.Reverse(names)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !bounds.contains(name) })
	names = names[min(bounds.skip, len(names)):]
	return names[:min(bounds.limit, len(names))], nil
}

// keyRange is a range of strings in byte order, as query parameters give it.
type keyRange struct {
	start, end   *string // nil: open
	nothing      bool    // the range lies before all strings
	exclusiveEnd bool
	descending   bool
	skip, limit  int
}

func (q *request) keyRange() (keyRange, error) {
	const unlimited = 1<<31 - 1
	r := keyRange{descending: q.flag("descending"), exclusiveEnd: q.query.Get("inclusive_end") == "false"}
	var err error
	if r.limit, err = q.intParameter("limit", unlimited); err != nil {
		return r, err
	}
	if r.skip, err = q.intParameter("skip", 0); err != nil {
		return r, err
	}
	if r.limit < 0 || r.skip < 0 {
		return r, queryError("Invalid value for positive integer")
	}
	if err := q.readBound(&r, true, "startkey", "start_key", "key"); err != nil {
		return r, err
	}
	return r, q.readBound(&r, false, "endkey", "end_key", "key")
}

// readBound reads one end of the range. Ids are compared as raw terms, where
// every other JSON value comes before the strings, {} too.
func (q *request) readBound(r *keyRange, isStart bool, names ...string) error {
	for _, name := range names {
		if !q.query.Has(name) {
			continue
		}
		value, err := jsontext.Canonical(nil, []byte(q.query.Get(name)))
		if err != nil {
			return badRequest("invalid UTF-8 JSON")
		}
		if jsontext.IsString(value) {
			s := jsontext.Unquote(value)
			if isStart {
				r.start = &s
			} else {
				r.end = &s
			}
			return nil
		}
		r.nothing = r.nothing || isStart == r.descending
		return nil
	}
	return nil
}

func (r keyRange) contains(s string) bool {
	low, high := r.start, r.end
	if r.descending {
		low, high = high, low
	}
	if r.nothing || low != nil && s < *low || high != nil && s > *high {
		return false
	}
	return !r.exclusiveEnd || r.end == nil || s != *r.end
}
