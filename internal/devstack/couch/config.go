package couch

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
)

// config is the part of CouchDB's configuration that this store obeys or that
// clients look at. It can be changed while the server runs and is forgotten
// when it stops.
type config struct {
	mu     sync.RWMutex
	values map[string]map[string]string
}

const (
	cookieHandler = "{chttpd_auth, cookie_authentication_handler}"
	proxyHandler  = "{chttpd_auth, proxy_authentication_handler}"
	basicHandler  = "{chttpd_auth, default_authentication_handler}"
)

func newConfig(opts Options) *config {
	handlers := cookieHandler + ", " + basicHandler
	auth := map[string]string{"proxy_use_secret": "false"}
	if opts.ProxySecret != "" {
		handlers = cookieHandler + ", " + proxyHandler + ", " + basicHandler
		auth = map[string]string{"proxy_use_secret": "true", "secret": opts.ProxySecret}
	}
	return &config{values: map[string]map[string]string{
		"couchdb": {
			"enable_database_recovery": "false",
			"max_document_size":        "8000000",
		},
		"chttpd":      {"authentication_handlers": handlers, "max_db_number_for_dbs_info_req": "100"},
		"chttpd_auth": auth,
	}}
}

func (c *config) get(section, key string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.values[section][key]
}

// number reads an integer; a value that is none counts as absent.
func (c *config) number(section, key string, absent int) int {
	if n, err := strconv.Atoi(c.get(section, key)); err == nil {
		return n
	}
	return absent
}

func (c *config) proxyAuthentication() bool {
	return strings.Contains(c.get("chttpd", "authentication_handlers"), "proxy_authentication_handler")
}

// set stores a value, or removes it if it is nil, and returns the former one.
func (c *config) set(section, key string, value *string) (former string, existed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	former, existed = c.values[section][key]
	switch {
	case value == nil:
		delete(c.values[section], key)
	case c.values[section] == nil:
		c.values[section] = map[string]string{key: *value}
	default:
		c.values[section][key] = *value
	}
	return former, existed
}

var errUnknownConfig = &httpError{http.StatusNotFound, "not_found", "unknown_config_value"}

// node serves /_node/{name}/_config and below.
func (q *request) node() error {
	if !q.user.isServerAdmin() {
		return errNotServerAdmin
	}
	if len(q.path) < 3 || q.path[1] != "_local" && q.path[1] != nodeName {
		return errMissing
	}
	if q.path[2] != "_config" {
		return errMissing
	}
	switch path := q.path[3:]; len(path) {
	case 0, 1:
		return q.only("GET", func() error { return q.showConfig(path) })
	case 2:
		return q.configValue(path[0], path[1])
	}
	return errMissing
}

func (q *request) showConfig(section []string) error {
	q.config.mu.RLock()
	defer q.config.mu.RUnlock()
	if len(section) == 0 {
		return q.marshal(http.StatusOK, q.config.values)
	}
	values := q.config.values[section[0]]
	if values == nil {
		values = map[string]string{}
	}
	return q.marshal(http.StatusOK, values)
}

func (q *request) configValue(section, key string) error {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		q.config.mu.RLock()
		value, ok := q.config.values[section][key]
		q.config.mu.RUnlock()
		if !ok {
			return errUnknownConfig
		}
		return q.marshal(http.StatusOK, value)
	case http.MethodPut:
		body, err := q.readJSON()
		if err != nil {
			return err
		}
		if !jsontext.IsString(body) {
			return badRequest("a JSON string expected")
		}
		value := jsontext.Unquote(body)
		former, _ := q.config.set(section, key, &value)
		return q.marshal(http.StatusOK, former)
	case http.MethodDelete:
		former, existed := q.config.set(section, key, nil)
		if !existed {
			return errUnknownConfig
		}
		return q.marshal(http.StatusOK, former)
	}
	return methodNotAllowed("GET,PUT,DELETE")
}

// marshal answers with a Go value, for answers that hold no document.
func (q *request) marshal(status int, value any) error {
	out, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return q.json(status, out)
}
