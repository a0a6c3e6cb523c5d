package edge

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

// MinTokenLength is the least length of a token, in characters.
const MinTokenLength = 16

var callerFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

type token struct {
	caller string
	hash   [sha256.Size]byte
}

// Tokens admit callers to the API.
type Tokens []token

// ParseTokens reads "caller=token,…". A caller may have two while they are being
// exchanged. Errors name the entry by its place, and never repeat a token.
func ParseTokens(list string) (Tokens, error) {
	var tokens Tokens
	for i, entry := range strings.Split(list, ",") {
		t, err := parseToken(strings.TrimSpace(entry))
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		for _, other := range tokens {
			if t.hash == other.hash {
				return nil, fmt.Errorf("entry %d: %s and %s have the same token", i+1, other.caller, t.caller)
			}
		}
		tokens = append(tokens, t)
	}
	return tokens, nil
}

func parseToken(entry string) (token, error) {
	caller, secret, ok := strings.Cut(entry, "=")
	switch {
	case !ok:
		return token{}, errors.New("want caller=token")
	case !callerFormat.MatchString(caller):
		return token{}, errors.New("a caller is 1 to 64 letters, digits or ._@-")
	case len(secret) < MinTokenLength:
		return token{}, fmt.Errorf("the token of %s is shorter than %d characters", caller, MinTokenLength)
	}
	return token{caller, sha256.Sum256([]byte(secret))}, nil
}

// find compares digests with every token, so that the time it takes says nothing.
func (ts Tokens) find(secret string) (caller string, ok bool) {
	hash := sha256.Sum256([]byte(secret))
	for _, t := range ts {
		if subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1 {
			caller, ok = t.caller, true
		}
	}
	return caller, ok
}

// sameSecret compares in a time that says nothing, not even of the length.
func sameSecret(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// bearer is the token of a request, "" if it has none.
func bearer(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

const callerKey = "caller"

// public are the routes that need no token: they tell nothing of value, or check
// a signature of their own before anything else. Every other path, known or not,
// needs one.
var public = map[string]bool{
	"/healthz":                 true,
	"/api/_health":             true,
	"/v1/webhooks/mercadopago": true,
	"/v1/webhooks/c6":          true,
	"/v1/webhooks/c6/pix":      true,
}

func (e *Edge) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if public[c.Path()] {
			return next(c)
		}
		caller, ok := e.opts.Tokens.find(bearer(c.Request()))
		if !ok {
			c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="rollingd edge"`)
			return &refused{status: http.StatusUnauthorized, code: codeUnauthorized, detail: "send a caller's token as \"Authorization: Bearer <token>\""}
		}
		c.Set(callerKey, caller)
		return next(c)
	}
}

func callerOf(c echo.Context) string {
	caller, _ := c.Get(callerKey).(string)
	return caller
}
