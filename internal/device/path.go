package device

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/rollingd/rollingd/contracts"
)

// Prefix is that of all paths of the device plane.
const Prefix = "/db/"

// route is a request that the grammar lets through:
//
//	GET, HEAD               /db/SUFFIX
//	GET, POST               /db/SUFFIX/_changes, /_all_docs
//	POST                    /db/SUFFIX/_bulk_get, /_bulk_docs, /_revs_diff, /_find
//	GET, PUT                /db/SUFFIX/_local/ID
//	GET, HEAD               /db/SUFFIX/_design/ID
//	GET, HEAD, PUT, DELETE  /db/SUFFIX/ID
//	GET, HEAD, PUT, DELETE  /db/SUFFIX/ID/ATTACHMENT, which may hold slashes
//
// It holds what was read, unescaped once; the path that CouchDB gets is composed
// of it anew, so nothing of a client's spelling reaches CouchDB.
type route struct {
	suffix string
	// endpoint is an underscore name, or "" for the database or a document.
	endpoint string
	// document is the id after _local/ or _design/, or of an ordinary document.
	document   string
	attachment []string
	// writes says that the request changes documents; a checkpoint counts.
	writes bool
	// feed says that the answer may go on for as long as the client likes.
	feed bool
	// delivers says that a push needs it and that it shows no document.
	delivers bool
	// onDatabase says that a 404 means that the database is not there.
	onDatabase bool
}

// endpoints of a database and their methods.
var endpoints = map[string]struct {
	methods string
	writes  bool
	feed    bool
	pushes  bool
}{
	"_changes":   {methods: "GET POST", feed: true},
	"_all_docs":  {methods: "GET POST"},
	"_bulk_get":  {methods: "POST"},
	"_find":      {methods: "POST"},
	"_revs_diff": {methods: "POST", pushes: true},
	"_bulk_docs": {methods: "POST", writes: true, pushes: true},
}

const (
	localEndpoint  = "_local"
	designEndpoint = "_design"
	// manifestID is the document of core that the server alone writes.
	manifestID = "day_manifest"
)

// parseRoute reads a method and a path that is still escaped. It is pure.
func parseRoute(method, escaped string) (route, *refusal) {
	rest, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return route{}, notAllowed("the path does not begin with " + Prefix)
	}
	segments := strings.Split(rest, "/")
	r := route{suffix: segments[0]}
	// The suffix counts as it was sent: none of its characters needs an escape.
	if _, _, err := contracts.ParseSuffix(r.suffix); err != nil {
		return route{}, notAllowed("there is no such database here: core, daily_YYYYMMDD or legacy")
	}
	segments = segments[1:]
	// PouchDB ends the path of the database with a slash.
	if len(segments) == 0 || len(segments) == 1 && segments[0] == "" {
		r.delivers, r.onDatabase = true, true
		return r.allow(method, "GET HEAD")
	}
	names := make([]string, len(segments))
	for i, s := range segments {
		name, err := url.PathUnescape(s)
		if err != nil || name == "" || !utf8.ValidString(name) || hasDotSegment(name) {
			return route{}, malformed
		}
		names[i] = name
	}
	if names[0][0] != '_' {
		return r.toDocument(method, names)
	}
	// An underscore name in another spelling is somebody's try.
	if names[0] != segments[0] {
		return route{}, notAllowed("there is no such endpoint here")
	}
	return r.toEndpoint(method, names)
}

func (r route) toDocument(method string, names []string) (route, *refusal) {
	r.document, r.attachment = names[0], names[1:]
	r.writes = method == http.MethodPut || method == http.MethodDelete
	r.delivers = r.writes
	if r.writes && r.document == manifestID && r.suffix == contracts.CoreSuffix {
		return route{}, notAllowed("the server alone writes " + manifestID)
	}
	return r.allow(method, "GET HEAD PUT DELETE")
}

func (r route) toEndpoint(method string, names []string) (route, *refusal) {
	r.endpoint = names[0]
	switch {
	case r.endpoint == localEndpoint && len(names) == 2:
		r.document, r.writes, r.delivers = names[1], method == http.MethodPut, true
		return r.allow(method, "GET PUT")
	case r.endpoint == designEndpoint && len(names) == 2:
		r.document = names[1]
		return r.allow(method, "GET HEAD")
	}
	e, ok := endpoints[r.endpoint]
	if !ok || len(names) > 1 {
		return route{}, notAllowed("there is no such endpoint here")
	}
	r.writes, r.feed, r.delivers, r.onDatabase = e.writes, e.feed, e.pushes, true
	return r.allow(method, e.methods)
}

func (r route) allow(method, methods string) (route, *refusal) {
	for m := range strings.SplitSeq(methods, " ") {
		if m == method {
			return r, nil
		}
	}
	return route{}, notAllowed("the method is not allowed here; allowed: " + strings.ReplaceAll(methods, " ", ", "))
}

// path composes what CouchDB gets, with the physical name of the database.
func (r route) path(database string) string {
	segments := []string{database}
	for _, s := range []string{r.endpoint, r.document} {
		if s != "" {
			segments = append(segments, s)
		}
	}
	var b strings.Builder
	for _, s := range append(segments, r.attachment...) {
		b.WriteByte('/')
		b.WriteString(escape(s))
	}
	return b.String()
}

// escape leaves nothing of a segment that could end it or mean something else.
func escape(segment string) string {
	// CouchDB reads a plus in a path as a space.
	return strings.ReplaceAll(url.PathEscape(segment), "+", "%2B")
}

// unescapes is how often a name may be escaped at most.
const unescapes = 8

// hasDotSegment reports whether a name, or what further unescaping makes of it,
// has a part that climbs; it says so too of a name that is escaped so often that
// only somebody who tries his luck does it. CouchDB takes such an id for what it
// is, but what stands between might not.
func hasDotSegment(name string) bool {
	for range unescapes {
		for part := range strings.FieldsFuncSeq(name, func(c rune) bool { return c == '/' || c == '\\' }) {
			if part == "." || part == ".." {
				return true
			}
		}
		again, err := url.PathUnescape(name)
		if err != nil || again == name {
			return false
		}
		name = again
	}
	return true
}

// malformed refuses a path whose segments cannot be read.
var malformed = badRequest(refusedRoute, "the path holds an empty segment, a dot segment, or an escape that is no UTF-8")

func notAllowed(reason string) *refusal { return forbidden(refusedRoute, reason) }
