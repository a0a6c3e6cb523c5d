package device

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/rollingd/rollingd/internal/daydb"
)

const testSecret = "0123456789abcdef0123456789abcdef"

var (
	noon  = time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
	till1 = Identity{Restaurant: daydb.Restaurant{CompanyID: "acme", RestaurantID: "north"}, DeviceID: "till-1"}
)

func newTokens(t *testing.T, opts TokenOptions) *Tokens {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	tokens, err := NewTokens(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func sign(t *testing.T, method jwt.SigningMethod, key any, c jwt.MapClaims, kid string) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	raw, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func claimsOf(change jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{"companyId": "acme", "restaurantId": "north", "deviceId": "till-1", "exp": noon.Add(time.Hour).Unix()}
	for k, v := range change {
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	return c
}

func TestIssuedTokenVerifiesUntilItExpires(t *testing.T) {
	t.Parallel()
	tokens := newTokens(t, TokenOptions{Secret: testSecret})
	raw, expires, err := tokens.Issue(till1, noon, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g, err := tokens.Verify(t.Context(), raw, noon)
	if err != nil || g.Identity != till1 || !g.ExpiresAt.Equal(expires) || !g.IssuedAt.Equal(noon) {
		t.Errorf("%+v, %v; want %+v issued %s", g, err, till1, noon)
	}
	if _, err := tokens.Verify(t.Context(), raw, expires.Add(-time.Microsecond)); err != nil {
		t.Errorf("a moment before its end: %v", err)
	}
	if _, err := tokens.Verify(t.Context(), raw, expires); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("at its end: %v, want ErrTokenExpired", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	tokens := newTokens(t, TokenOptions{Secret: testSecret})
	secret := []byte(testSecret)
	hs := func(change jwt.MapClaims) string {
		return sign(t, jwt.SigningMethodHS256, secret, claimsOf(change), "")
	}
	good := hs(nil)
	rsaLike, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }
	parts := strings.Split(good, ".")
	for name, raw := range map[string]string{
		"empty":                  "",
		"no JWT":                 "abc",
		"alg none":               sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claimsOf(nil), ""),
		"alg None":               encode(`{"alg":"None"}`) + "." + parts[1] + ".",
		"alg none, signed":       encode(`{"alg":"none"}`) + "." + parts[1] + "." + parts[2],
		"HS512":                  sign(t, jwt.SigningMethodHS512, secret, claimsOf(nil), ""),
		"HS384":                  sign(t, jwt.SigningMethodHS384, secret, claimsOf(nil), ""),
		"ES256 without JWKS":     sign(t, jwt.SigningMethodES256, rsaLike, claimsOf(nil), ""),
		"another secret":         sign(t, jwt.SigningMethodHS256, []byte(testSecret[1:]+"x"), claimsOf(nil), ""),
		"other claims":           parts[0] + "." + strings.Split(hs(jwt.MapClaims{"companyId": "beta"}), ".")[1] + "." + parts[2],
		"no signature":           parts[0] + "." + parts[1] + ".",
		"too long":               good + strings.Repeat("A", maxTokenLength),
		"no exp":                 hs(jwt.MapClaims{"exp": nil}),
		"exp as text":            hs(jwt.MapClaims{"exp": "soon"}),
		"not yet":                hs(jwt.MapClaims{"nbf": noon.Add(time.Minute).Unix()}),
		"no company":             hs(jwt.MapClaims{"companyId": nil}),
		"company as number":      hs(jwt.MapClaims{"companyId": 7}),
		"company as list":        hs(jwt.MapClaims{"companyId": []string{"acme"}}),
		"underscore":             hs(jwt.MapClaims{"companyId": "acme_north", "restaurantId": "daily"}),
		"upper case":             hs(jwt.MapClaims{"companyId": "Acme"}),
		"slash":                  hs(jwt.MapClaims{"restaurantId": "north/south"}),
		"dots":                   hs(jwt.MapClaims{"restaurantId": ".."}),
		"empty restaurant":       hs(jwt.MapClaims{"restaurantId": ""}),
		"full-width digits":      hs(jwt.MapClaims{"restaurantId": "１２"}),
		"too long an id":         hs(jwt.MapClaims{"companyId": strings.Repeat("a", 65)}),
		"comma in the device":    hs(jwt.MapClaims{"deviceId": "till,_admin"}),
		"new line in the device": hs(jwt.MapClaims{"deviceId": "till\r\nX-Auth-CouchDB-Roles: _admin"}),
		"new line at the end":    hs(jwt.MapClaims{"deviceId": "till\n"}),
		"no device":              hs(jwt.MapClaims{"deviceId": nil}),
		"two identities":         hs(jwt.MapClaims{"app_metadata": jwt.MapClaims{"companyId": "beta", "restaurantId": "north", "deviceId": "till-1"}}),
		"bad app_metadata":       hs(jwt.MapClaims{"companyId": nil, "restaurantId": nil, "deviceId": nil, "app_metadata": jwt.MapClaims{"companyId": "beta"}}),
		"user_metadata":          hs(jwt.MapClaims{"companyId": nil, "user_metadata": jwt.MapClaims{"companyId": "acme"}}),
	} {
		if g, err := tokens.Verify(t.Context(), raw, noon); !errors.Is(err, ErrToken) {
			t.Errorf("%s: %+v, %v; want ErrToken", name, g, err)
		} else if raw != "" && strings.Contains(err.Error(), raw) {
			t.Errorf("%s: the error repeats the token", name)
		}
	}
	fromMetadata := hs(jwt.MapClaims{"companyId": nil, "restaurantId": nil, "deviceId": nil,
		"app_metadata": jwt.MapClaims{"companyId": "acme", "restaurantId": "north", "deviceId": "till-1", "provider": "email"}})
	for _, raw := range []string{good, fromMetadata} {
		if g, err := tokens.Verify(t.Context(), raw, noon); err != nil || g.Identity != till1 || !g.IssuedAt.IsZero() {
			t.Errorf("%+v, %v; want %+v", g, err, till1)
		}
	}
}

// TestKeysRotate has a token of a key that was published after the start, and
// a public key used as an HMAC secret.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	keys := make(map[string]*ecdsa.PrivateKey)
	for _, kid := range []string{"old", "new"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[kid] = key
	}
	var published atomic.Pointer[[]byte]
	publish := func(kids ...string) {
		set := map[string]any{}
		var all []any
		for _, kid := range kids {
			raw, err := keys[kid].PublicKey.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			b64 := base64.RawURLEncoding.EncodeToString
			all = append(all, map[string]string{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": kid, "x": b64(raw[1:33]), "y": b64(raw[33:])})
		}
		set["keys"] = all
		body, err := json.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		published.Store(&body)
	}
	publish("old")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(*published.Load()) }))
	t.Cleanup(server.Close)
	tokens := newTokens(t, TokenOptions{JWKSURL: server.URL})
	es := func(kid string) string { return sign(t, jwt.SigningMethodES256, keys[kid], claimsOf(nil), kid) }

	if g, err := tokens.Verify(t.Context(), es("old"), noon); err != nil || g.Identity != till1 {
		t.Errorf("the first key: %+v, %v", g, err)
	}
	publish("old", "new")
	if _, err := tokens.Verify(t.Context(), es("new"), noon); err != nil {
		t.Errorf("a key that was published later: %v", err)
	}
	if _, err := tokens.Verify(t.Context(), es("old"), noon); err != nil {
		t.Errorf("the first key, still published: %v", err)
	}
	public, err := keys["old"].PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, public, claimsOf(nil), "old"), noon); !errors.Is(err, ErrToken) {
		t.Errorf("a public key as a secret: %v, want ErrToken", err)
	}
	if _, _, err := tokens.Issue(till1, noon, time.Hour); !errors.Is(err, ErrNoIssuer) {
		t.Errorf("issue with published keys alone: %v, want ErrNoIssuer", err)
	}
}

func TestSecretsAreLongEnough(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", testSecret[1:]} {
		if _, err := NewTokens(t.Context(), TokenOptions{Secret: secret}); err == nil || secret != "" && strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("a secret of %d bytes: %v", len(secret), err)
		}
	}
}
