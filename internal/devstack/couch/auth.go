package couch

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"hash"
	"slices"
	"strings"
)

// user is who a request comes from; the zero value is anonymous.
type user struct {
	name    string
	roles   []string
	handler string // "default", "cookie" or "proxy"
}

func (u user) isServerAdmin() bool { return slices.Contains(u.roles, "_admin") }

// authenticate finds the user of a request. A wrong password is refused at
// once; a wrong proxy token is as good as none.
func (q *request) authenticate() (user, error) {
	if u, ok := q.cookieUser(); ok {
		return u, nil
	}
	if u, ok := q.proxyUser(); ok {
		return u, nil
	}
	name, password, ok := q.r.BasicAuth()
	if !ok {
		return user{}, nil
	}
	u, ok := q.checkPassword(name, password)
	if !ok {
		return user{}, errBadPassword
	}
	u.handler = "default"
	return u, nil
}

func (q *request) checkPassword(name, password string) (user, bool) {
	if name == q.opts.AdminUser {
		ok := subtle.ConstantTimeCompare([]byte(password), []byte(q.opts.AdminPassword)) == 1
		return user{name: name, roles: []string{"_admin"}}, ok
	}
	return q.storedUser(name, password)
}

// proxyUser reads the headers of a trusted proxy. The token proves the name
// and nothing else: whoever forwards requests has to strip these headers.
func (q *request) proxyUser() (user, bool) {
	if !q.config.proxyAuthentication() {
		return user{}, false
	}
	name := q.r.Header.Get("X-Auth-CouchDB-UserName")
	if name == "" {
		return user{}, false
	}
	if q.config.get("chttpd_auth", "proxy_use_secret") == "true" {
		secret := q.config.get("chttpd_auth", "secret")
		if secret == "" || !tokenMatches(q.r.Header.Get("X-Auth-CouchDB-Token"), secret, name) {
			return user{}, false
		}
	}
	u := user{name: name, handler: "proxy"}
	for role := range strings.SplitSeq(q.r.Header.Get("X-Auth-CouchDB-Roles"), ",") {
		if role = strings.TrimSpace(role); role != "" {
			u.roles = append(u.roles, role)
		}
	}
	return u, true
}

func tokenMatches(token, secret, name string) bool {
	for _, algorithm := range []func() hash.Hash{sha256.New, sha1.New} {
		mac := hmac.New(algorithm, []byte(secret))
		mac.Write([]byte(name))
		if hmac.Equal([]byte(token), []byte(hex.EncodeToString(mac.Sum(nil)))) {
			return true
		}
	}
	return false
}

func (q *request) asServerAdmin(h func() error) error {
	if !q.user.isServerAdmin() {
		return errNotServerAdmin
	}
	return h()
}
