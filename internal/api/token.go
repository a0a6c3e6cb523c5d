package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"
)

// Role is what a token permits; a higher one includes the lower.
type Role int

// The roles, from the lowest.
const (
	// Viewer reads.
	Viewer Role = iota + 1
	// Operator changes things, none of which can lead to a drop.
	Operator
	// Destroyer may also do what can lead to the drop of a database.
	Destroyer
)

var roleNames = map[Role]string{Viewer: "viewer", Operator: "operator", Destroyer: "destroyer"}

func (r Role) String() string { return roleNames[r] }

func parseRole(name string) (Role, bool) {
	for role, known := range roleNames {
		if name == known {
			return role, true
		}
	}
	return 0, false
}

// MinTokenLength is the least length of a token.
const MinTokenLength = 16

var actorFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// caller is who made a request.
type caller struct {
	actor string
	role  Role
}

type token struct {
	caller
	hash [sha256.Size]byte
}

// Tokens admit to the API.
type Tokens []token

// ParseTokens reads "actor=role:token,…". Its errors name the entry by its
// place and actor, and never repeat a token.
func ParseTokens(list string) (Tokens, error) {
	var tokens Tokens
	actors := make(map[string]bool)
	for i, entry := range strings.Split(list, ",") {
		t, err := parseToken(strings.TrimSpace(entry))
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		if actors[t.actor] {
			return nil, fmt.Errorf("entry %d: actor %s has two tokens", i+1, t.actor)
		}
		for _, other := range tokens {
			if t.hash == other.hash {
				return nil, fmt.Errorf("entry %d: %s and %s have the same token", i+1, other.actor, t.actor)
			}
		}
		actors[t.actor] = true
		tokens = append(tokens, t)
	}
	return tokens, nil
}

func parseToken(entry string) (token, error) {
	actor, rest, ok := strings.Cut(entry, "=")
	roleName, secret, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return token{}, errors.New("want actor=role:token")
	}
	if !actorFormat.MatchString(actor) {
		return token{}, errors.New("an actor is 1 to 64 letters, digits or ._@-")
	}
	role, ok := parseRole(roleName)
	if !ok {
		return token{}, fmt.Errorf("the role of %s is none of viewer, operator, destroyer", actor)
	}
	if len(secret) < MinTokenLength {
		return token{}, fmt.Errorf("the token of %s is shorter than %d characters", actor, MinTokenLength)
	}
	return token{caller: caller{actor: actor, role: role}, hash: sha256.Sum256([]byte(secret))}, nil
}

// find compares with every token, so that the time it takes says nothing.
func (ts Tokens) find(secret string) (caller, bool) {
	hash := sha256.Sum256([]byte(secret))
	var found caller
	for _, t := range ts {
		if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			found = t.caller
		}
	}
	return found, found.role != 0
}

const callerKey = "caller"

// authenticate admits requests under /admin only with a known token. A route
// that it should miss is still refused by require, for want of a caller.
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, adminPrefix) {
			return next(c)
		}
		scheme, secret, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
		if !strings.EqualFold(scheme, "Bearer") || secret == "" {
			return unauthorized(c, "send a token as \"Authorization: Bearer <token>\"; tokens are set in ROLLINGD_ADMIN_TOKENS")
		}
		who, ok := a.Tokens.find(strings.TrimSpace(secret))
		if !ok {
			return unauthorized(c, "the token is none of ROLLINGD_ADMIN_TOKENS")
		}
		c.Set(callerKey, who)
		return next(c)
	}
}

func unauthorized(c echo.Context, detail string) error {
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="rollingd"`)
	return &refusal{status: http.StatusUnauthorized, code: "unauthorized", detail: detail}
}

// callerOf returns who made an authenticated request.
func callerOf(c echo.Context) caller {
	who, _ := c.Get(callerKey).(caller)
	return who
}

// require refuses a caller whose role is lower.
func require(role Role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := needs(c, role, "this"); err != nil {
				return err
			}
			return next(c)
		}
	}
}

// needs refuses a caller whose role is lower; what names the thing refused.
func needs(c echo.Context, role Role, what string) error {
	who := callerOf(c)
	if who.role >= role {
		return nil
	}
	return &refusal{
		status: http.StatusForbidden,
		code:   "forbidden",
		detail: fmt.Sprintf("%s needs the role %s; the token of %s has %s", what, role, who.actor, who.role),
	}
}
