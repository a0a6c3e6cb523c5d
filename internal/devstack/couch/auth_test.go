package couch_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

const proxySecret = "conformance-secret"

func proxyToken(algorithm func() hash.Hash, secret, user string) string {
	mac := hmac.New(algorithm, []byte(secret))
	mac.Write([]byte(user))
	return hex.EncodeToString(mac.Sum(nil))
}

func TestProxyAuthentication(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		s := startEmbedded(t, couch.Options{ProxySecret: proxySecret})
		testProxy(t, newTarget(t, s.URL(), false), proxySecret)
	})
	forEachTarget(t, func(t *testing.T, c target) {
		if c.isReal && !strings.Contains(c.get("/_session").body, `"proxy"`) {
			return // This CouchDB has no proxy authentication to test.
		}
		secret := proxySecret
		if c.isReal {
			if a := c.get("/_node/_local/_config/chttpd_auth/secret"); a.status == 200 {
				if err := json.Unmarshal([]byte(a.body), &secret); err != nil {
					t.Fatal(err)
				}
			}
			testProxy(t, c, secret)
			return
		}
		// Switched on while the server runs.
		expect(t, "secret", c.put("/_node/_local/_config/chttpd_auth/secret", `"`+secret+`"`), 200)
		expect(t, "use it", c.put("/_node/_local/_config/chttpd_auth/proxy_use_secret", `"true"`), 200)
		expect(t, "handlers", c.put("/_node/_local/_config/chttpd/authentication_handlers",
			`"{chttpd_auth, proxy_authentication_handler}, {chttpd_auth, default_authentication_handler}"`), 200)
		testProxy(t, c, secret)
	})
}

func testProxy(t *testing.T, c target, secret string) {
	db := c.newDB(t, "proxied")
	other := c.newDB(t, "other")
	expect(t, "security", c.put(db+"/_security", strings.ReplaceAll(openToPos, "pos", "rest1")), 200)
	expect(t, "security", c.put(other+"/_security", strings.ReplaceAll(openToPos, "pos", "rest2")), 200)
	nobody := c.as("", "")
	as := func(path, roles, token string) answer {
		return nobody.do("PUT", path, "{}", "X-Auth-CouchDB-UserName: device7", "X-Auth-CouchDB-Roles: "+roles, "X-Auth-CouchDB-Token: "+token)
	}
	for name, algorithm := range map[string]func() hash.Hash{"sha256": sha256.New, "sha1": sha1.New} {
		token := proxyToken(algorithm, secret, "device7")
		expect(t, name, as(db+"/"+name, "rest1", token), 201)
		expect(t, name+" among other roles", as(db+"/"+name+"2", "x,rest1", token), 201)
		expect(t, name+" in another database", as(other+"/d", "rest1", token), 403, "You are not allowed to access this db.")
		expect(t, name+" does not prove the roles", as(other+"/"+name, "rest2", token), 201)
	}
	expect(t, "wrong token", as(db+"/w", "rest1", proxyToken(sha256.New, "wrong", "device7")), 401, "You are not authorized to access this db.")
	expect(t, "token of another name", as(db+"/w", "rest1", proxyToken(sha256.New, secret, "device8")), 401)
	session := nobody.do("GET", "/_session", "", "X-Auth-CouchDB-UserName: device7", "X-Auth-CouchDB-Roles: a,b", "X-Auth-CouchDB-Token: "+proxyToken(sha256.New, secret, "device7"))
	expect(t, "session", session, 200, `"name":"device7"`, `"roles":["a","b"]`, `"authenticated":"proxy"`, `"proxy"`)
}

func TestProxyIsOffWithoutSecret(t *testing.T) {
	s := startEmbedded(t, couch.Options{})
	c := newTarget(t, s.URL(), false)
	if session := c.get("/_session"); strings.Contains(session.body, "proxy") {
		t.Errorf("session %s", session)
	}
	admin := c.as("", "").do("GET", "/_all_dbs", "", "X-Auth-CouchDB-UserName: x", "X-Auth-CouchDB-Roles: _admin")
	expect(t, "headers mean nothing", admin, http.StatusUnauthorized)
}

func TestUsersAndCookies(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		pos := c.pos(t)
		doc := c.get("/_users/org.couchdb.user:" + posUser)
		expect(t, "the password is hashed", doc, 200, `"derived_key":"`)
		if strings.Contains(doc.body, posPassword) {
			t.Errorf("the user document shows the password: %s", doc)
		}
		expect(t, "who", pos.get("/_session"), 200, `"name":"`+posUser+`"`, `"roles":["pos"]`, `"authenticated":"default"`)
		expect(t, "wrong password", c.as(posUser, "wrong").get("/"), 401)
		login := c.as("", "").post("/_session", `{"name":"`+posUser+`","password":"`+posPassword+`"}`)
		expect(t, "login", login, 200, `"ok":true`)
		cookie, _, _ := strings.Cut(login.header.Get("Set-Cookie"), ";")
		expect(t, "cookie", c.as("", "").do("GET", "/_session", "", "Cookie: "+cookie), 200, `"name":"`+posUser+`"`, `"authenticated":"cookie"`)
		expect(t, "bad login", c.as("", "").post("/_session", `{"name":"`+posUser+`","password":"wrong"}`), 401)
	})
}
