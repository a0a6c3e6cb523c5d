package couch

import (
	"errors"
	"net/http"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// httpError is an answer of the form {"error":code,"reason":reason}.
type httpError struct {
	status       int
	code, reason string
}

func (e *httpError) Error() string { return e.code + ": " + e.reason }

// errResponded reports that the answer has been sent already.
var errResponded = errors.New("responded")

var (
	errMissing         = &httpError{http.StatusNotFound, "not_found", "missing"}
	errDeleted         = &httpError{http.StatusNotFound, "not_found", "deleted"}
	errNoDatabase      = &httpError{http.StatusNotFound, "not_found", "Database does not exist."}
	errConflict        = &httpError{http.StatusConflict, "conflict", "Document update conflict."}
	errFileExists      = &httpError{http.StatusPreconditionFailed, "file_exists", "The database could not be created, the file already exists."}
	errNoMajority      = &httpError{http.StatusInternalServerError, "error", "no_majority"}
	errBadPassword     = &httpError{http.StatusUnauthorized, "unauthorized", "Name or password is incorrect."}
	errNotServerAdmin  = &httpError{http.StatusUnauthorized, "unauthorized", "You are not a server admin."}
	errInvalidJSON     = badRequest(jsontext.ErrInvalid.Error())
	errMissingAttach   = &httpError{http.StatusNotFound, "not_found", "Document is missing attachment"}
	errBadContentType  = &httpError{http.StatusUnsupportedMediaType, "bad_content_type", "Content-Type must be application/json"}
	errInvalidRevsPath = badRequest("Invalid rev format")
)

func badRequest(reason string) *httpError {
	return &httpError{http.StatusBadRequest, "bad_request", reason}
}

func forbidden(reason string) *httpError {
	return &httpError{http.StatusForbidden, "forbidden", reason}
}

func unauthorized(reason string) *httpError {
	return &httpError{http.StatusUnauthorized, "unauthorized", reason}
}

func queryError(reason string) *httpError {
	return &httpError{http.StatusBadRequest, "query_parse_error", reason}
}

func docValidation(reason string) *httpError {
	return &httpError{http.StatusBadRequest, "doc_validation", reason}
}

func illegalDocID(reason string) *httpError {
	return &httpError{http.StatusBadRequest, "illegal_docid", reason}
}

func methodNotAllowed(allowed string) *httpError {
	return &httpError{http.StatusMethodNotAllowed, "method_not_allowed", "Only " + allowed + " allowed"}
}

// asHTTPError is the one table from errors to answers. It reports false for
// an error that is a fault of the server.
func asHTTPError(err error) (*httpError, bool) {
	var e *httpError
	switch {
	case errors.As(err, &e):
		return e, true
	case errors.Is(err, store.ErrNoDatabase):
		return errNoDatabase, true
	case errors.Is(err, store.ErrDatabaseExists):
		return errFileExists, true
	case errors.Is(err, store.ErrConflict):
		return errConflict, true
	case errors.Is(err, store.ErrMissing):
		return errMissing, true
	case errors.Is(err, store.ErrMissingStub):
		return &httpError{http.StatusPreconditionFailed, "missing_stub", err.Error()}, true
	case errors.Is(err, revtree.ErrBadRev):
		return errInvalidRevsPath, true
	case errors.Is(err, jsontext.ErrInvalid):
		return errInvalidJSON, true
	}
	return &httpError{http.StatusInternalServerError, "unknown_error", "internal error"}, false
}
