package couch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
)

const (
	sessionCookie   = "AuthSession"
	sessionLifetime = 10 * time.Minute
)

// session tells who the user is and which ways to authenticate are active, or
// exchanges a password for a cookie.
func (q *request) session() error {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.showSession()
	case http.MethodPost:
		return q.login()
	case http.MethodDelete:
		http.SetCookie(q.w, &http.Cookie{Name: sessionCookie, Path: "/", HttpOnly: true, MaxAge: -1})
		return q.ok(http.StatusOK)
	}
	return methodNotAllowed("GET,HEAD,POST,DELETE")
}

func (q *request) showSession() error {
	handlers := []string{"cookie"}
	if q.config.proxyAuthentication() {
		handlers = append(handlers, "proxy")
	}
	handlers = append(handlers, "default")
	info := map[string]any{"authentication_handlers": handlers}
	if q.user.handler != "" {
		info["authenticated"] = q.user.handler
	}
	return q.marshal(http.StatusOK, map[string]any{"ok": true, "userCtx": q.userContext(), "info": info})
}

// userContext is the user as clients see him.
func (q *request) userContext() map[string]any {
	ctx := map[string]any{"name": nil, "roles": []string{}}
	if q.user.name != "" {
		ctx["name"] = q.user.name
	}
	if q.user.roles != nil {
		ctx["roles"] = q.user.roles
	}
	return ctx
}

// userContextFor is what a validation function of a database sees.
func (q *request) userContextFor(db string) []byte {
	out := append([]byte(`{"db":`), jsontext.AppendString(nil, db)...)
	out = append(out, `,"name":`...)
	if q.user.name == "" {
		out = append(out, "null"...)
	} else {
		out = jsontext.AppendString(out, q.user.name)
	}
	out = append(out, `,"roles":[`...)
	for i, role := range q.user.roles {
		if i > 0 {
			out = append(out, ',')
		}
		out = jsontext.AppendString(out, role)
	}
	return append(out, "]}"...)
}

func (q *request) login() error {
	var form struct{ Name, Password string }
	if strings.HasPrefix(q.r.Header.Get("Content-Type"), "application/json") {
		obj, err := q.readJSONObject()
		if err != nil {
			return err
		}
		if err := json.Unmarshal(obj, &form); err != nil {
			return badRequest("invalid credentials")
		}
	} else {
		form.Name, form.Password = q.r.FormValue("name"), q.r.FormValue("password")
	}
	u, ok := q.checkPassword(form.Name, form.Password)
	if !ok {
		return errBadPassword
	}
	q.user = u
	http.SetCookie(q.w, &http.Cookie{Name: sessionCookie, Value: q.sessionToken(u.name, time.Now()), Path: "/", HttpOnly: true})
	roles := u.roles
	if roles == nil {
		roles = []string{}
	}
	return q.marshal(http.StatusOK, map[string]any{"ok": true, "name": u.name, "roles": roles})
}

// sessionToken signs a name and the time it was issued.
func (q *request) sessionToken(name string, issued time.Time) string {
	text := name + ":" + strconv.FormatInt(issued.Unix(), 16) + ":"
	mac := hmac.New(sha256.New, q.cookieKey)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(append([]byte(text), mac.Sum(nil)...))
}

func (q *request) cookieUser() (user, bool) {
	cookie, err := q.r.Cookie(sessionCookie)
	if err != nil {
		return user{}, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || len(raw) <= sha256.Size {
		return user{}, false
	}
	fields := strings.Split(strings.TrimSuffix(string(raw[:len(raw)-sha256.Size]), ":"), ":")
	if len(fields) < 2 {
		return user{}, false
	}
	seconds, err := strconv.ParseInt(fields[len(fields)-1], 16, 64)
	name := strings.Join(fields[:len(fields)-1], ":")
	issued := time.Unix(seconds, 0)
	if err != nil || time.Since(issued) > sessionLifetime || !hmac.Equal([]byte(q.sessionToken(name, issued)), []byte(cookie.Value)) {
		return user{}, false
	}
	u := user{name: name, handler: "cookie"}
	if name == q.opts.AdminUser {
		u.roles = []string{"_admin"}
		return u, true
	}
	doc, err := q.loadUser(name)
	u.roles = doc.Roles
	return u, err == nil
}
