package couch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
)

// request is one request on its way through the handlers. A handler either
// answers and returns nil, or returns an error that is answered for it.
type request struct {
	*Server
	w     http.ResponseWriter
	r     *http.Request
	user  user
	query url.Values
	path  []string // unescaped
	db    string   // path[0], where it names a database
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "CouchDB/"+couchVersion+" (rollingd embedded)")
	q := &request{Server: s, w: w, r: r}
	err := q.route()
	if err == nil || errors.Is(err, errResponded) {
		return
	}
	e, known := asHTTPError(err)
	if !known {
		s.log.Error("request failed", "method", r.Method, "error", err)
	}
	if e.status == http.StatusUnauthorized && r.Header.Get("Authorization") == "" {
		w.Header().Set("WWW-Authenticate", `Basic realm="server"`)
	}
	q.writeError(e)
}

func (q *request) writeError(e *httpError) {
	out := append([]byte(`{"error":`), jsontext.AppendString(nil, e.code)...)
	out = append(out, `,"reason":`...)
	out = append(jsontext.AppendString(out, e.reason), '}')
	_ = q.json(e.status, out)
}

func (q *request) route() error {
	for _, part := range strings.Split(strings.Trim(q.r.URL.EscapedPath(), "/"), "/") {
		// CouchDB reads a plus in a path as a space.
		name, err := url.QueryUnescape(part)
		if err != nil {
			return badRequest("invalid path")
		}
		q.path = append(q.path, name)
	}
	q.query = q.r.URL.Query()
	var err error
	if q.user, err = q.authenticate(); err != nil {
		return err
	}
	switch first := q.path[0]; {
	case first == "":
		return q.welcome()
	case first[0] == '_' && !isSystemDB(first):
		return q.routeServer(first)
	default:
		q.db = first
		return q.routeDatabase()
	}
}

func (q *request) routeServer(name string) error {
	switch name {
	case "_up":
		return q.json(http.StatusOK, []byte(`{"status":"ok","seeds":{}}`))
	case "_all_dbs":
		return q.only("GET", q.allDBs)
	case "_dbs_info":
		return q.only("GET,POST", q.dbsInfo)
	case "_session":
		return q.session()
	case "_uuids":
		return q.only("GET", q.uuids)
	case "_membership":
		return q.only("GET", q.membership)
	case "_node":
		return q.node()
	case "_db_updates":
		// The feed is backed by a database that a fresh CouchDB lacks.
		return q.asServerAdmin(func() error { return errNoDatabase })
	}
	return errNoDatabase
}

var databaseName = regexp.MustCompile(`^[a-z][a-z0-9_$()+/-]*$`)

func isSystemDB(name string) bool {
	return name == usersDB || name == "_replicator" || name == "_global_changes"
}

func (q *request) routeDatabase() error {
	if len(q.path) == 1 {
		switch q.r.Method {
		case http.MethodPut:
			return q.asServerAdmin(q.createDB)
		case http.MethodDelete:
			if q.query.Has("rev") {
				return badRequest("You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?")
			}
			return q.asServerAdmin(q.deleteDB)
		}
	}
	// Who may use the database is settled here, before any body is read. A
	// request that has begun is not asked again: a security object that is
	// put meanwhile does not stop it.
	if err := q.authorise(); err != nil {
		return err
	}
	if len(q.path) == 1 {
		switch q.r.Method {
		case http.MethodGet, http.MethodHead:
			return q.dbInfo()
		case http.MethodPost:
			return q.postDoc()
		}
		return methodNotAllowed("DELETE,GET,HEAD,POST")
	}
	if h, ok := q.databaseEndpoint(q.path[1]); ok {
		return h()
	}
	return q.routeDocument()
}

func (q *request) databaseEndpoint(name string) (func() error, bool) {
	only := func(methods string, h func() error) (func() error, bool) {
		return func() error { return q.only(methods, h) }, true
	}
	switch name {
	case "_all_docs":
		return only("GET,POST", q.allDocs)
	case "_design_docs":
		return only("GET,POST", q.designDocs)
	case "_local_docs":
		return only("GET", q.localDocs)
	case "_changes":
		return only("GET,POST", q.changes)
	case "_bulk_docs":
		return only("POST", q.bulkDocs)
	case "_bulk_get":
		return only("POST", q.bulkGet)
	case "_revs_diff":
		return only("POST", q.revsDiff)
	case "_missing_revs":
		return only("POST", q.missingRevs)
	case "_security":
		return only("GET,PUT", q.security)
	case "_revs_limit":
		return only("GET,PUT", q.revsLimit)
	case "_purge":
		return only("POST", q.purge)
	case "_ensure_full_commit":
		return only("POST", q.ensureFullCommit)
	case "_compact":
		return only("POST", q.compact)
	case "_view_cleanup":
		return only("POST", q.viewCleanup)
	case "_find":
		return only("POST", q.find)
	case "_index":
		return q.index, true
	}
	return nil, false
}

func (q *request) routeDocument() error {
	id, rest := q.path[1], q.path[2:]
	switch id {
	case "_design":
		if len(rest) > 0 {
			id, rest = "_design/"+rest[0], rest[1:]
		}
	case "_local":
		if len(rest) == 0 || rest[0] == "" {
			return badRequest("Invalid _local document id.")
		}
		if len(rest) > 1 {
			return badRequest("_local documents do not accept attachments.")
		}
		id, rest = "_local/"+rest[0], rest[1:]
	}
	if len(rest) > 0 {
		return q.attachment(id, strings.Join(rest, "/"))
	}
	if err := checkDocID(id); err != nil {
		if q.r.Method != http.MethodPut {
			return errMissing
		}
		return err
	}
	if strings.HasPrefix(id, localPrefix) {
		return q.localDoc(id)
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.getDoc(id)
	case http.MethodPut:
		return q.putDoc(id)
	case http.MethodDelete:
		return q.deleteDoc(id)
	}
	return methodNotAllowed("DELETE,GET,HEAD,POST,PUT,COPY")
}

// only runs h if the method is one of methods; HEAD goes with GET.
func (q *request) only(methods string, h func() error) error {
	for method := range strings.SplitSeq(methods, ",") {
		if q.r.Method == method || q.r.Method == http.MethodHead && method == http.MethodGet {
			return h()
		}
	}
	return methodNotAllowed(methods)
}

// json answers with a JSON value and the line feed that CouchDB ends it with.
func (q *request) json(status int, body []byte) error {
	q.w.Header().Set("Content-Type", "application/json")
	q.w.Header().Set("Cache-Control", "must-revalidate")
	q.w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	q.w.WriteHeader(status)
	_, _ = q.w.Write(append(body, '\n')) // A client that is gone needs no answer.
	return nil
}

func (q *request) ok(status int) error { return q.json(status, []byte(`{"ok":true}`)) }

// body returns the request's body, decompressed.
func (q *request) body() (io.Reader, error) {
	if q.r.Header.Get("Content-Encoding") != "gzip" {
		return q.r.Body, nil
	}
	z, err := gzip.NewReader(q.r.Body)
	if err != nil {
		return nil, badRequest("Request body is not properly gzipped.")
	}
	return z, nil
}

// readJSON reads the body as one JSON value in normal form.
func (q *request) readJSON() ([]byte, error) {
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	if n := q.r.ContentLength; n > 0 && n < 64<<20 {
		raw.Grow(int(n) + bytes.MinRead)
	}
	if _, err := raw.ReadFrom(body); err != nil {
		return nil, badRequest("Request body is not properly gzipped.")
	}
	return jsontext.Canonical(make([]byte, 0, raw.Len()), raw.Bytes())
}

// readJSONObject is readJSON for endpoints that insist on the content type
// and on an object.
func (q *request) readJSONObject() ([]byte, error) {
	contentType, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	if contentType != "application/json" {
		return nil, errBadContentType
	}
	obj, err := q.readJSON()
	if err != nil {
		return nil, err
	}
	if !jsontext.IsObject(obj) {
		return nil, badRequest("Request body must be a JSON object")
	}
	return obj, nil
}

// flag reads a boolean query parameter.
func (q *request) flag(name string) bool { return q.query.Get(name) == "true" }
