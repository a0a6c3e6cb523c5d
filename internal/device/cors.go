package device

import (
	"net/http"
	"slices"
	"strings"
)

// AnyOrigin admits pages of every origin: a till's token is not a cookie, so no
// page can use one that it was not given.
const AnyOrigin = "*"

// preflightAge is how many seconds a browser may remember an answer.
const preflightAge = "600"

// answerCORS lets pages of the origins that are configured read the answers, and
// answers the question that a browser asks before a request of such a page. It
// reports whether that is all that is asked.
func (p *Proxy) answerCORS(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.Contains(p.Origins, origin) && !slices.Contains(p.Origins, AnyOrigin) {
		return false
	}
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", origin)
	// PouchDB asks with credentials, which browsers then want to see allowed. There
	// are none: no cookie is set here, and none is read.
	header.Set("Access-Control-Allow-Credentials", "true")
	header.Set("Access-Control-Expose-Headers", "ETag, Retry-After, X-Couch-Request-Id")
	header.Add("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE")
	header.Set("Access-Control-Allow-Headers", "Authorization, "+strings.Join(passedOn, ", "))
	header.Set("Access-Control-Max-Age", preflightAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}
