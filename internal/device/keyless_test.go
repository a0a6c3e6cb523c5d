package device

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/rollingd/rollingd/internal/daydb"
)

// TestNoKeysYet has keys that could not be fetched, or were published as none: no
// till may take that for the end of its token.
func TestNoKeysYet(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw := sign(t, jwt.SigningMethodES256, key, claimsOf(nil), "kid")
	for name, answer := range map[string]http.HandlerFunc{
		"away":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"no key": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			t.Cleanup(server.Close)
			tokens := newTokens(t, TokenOptions{JWKSURL: server.URL, Secret: testSecret})
			if _, err := tokens.Verify(t.Context(), raw, noon); !errors.Is(err, ErrNoKeys) || errors.Is(err, ErrToken) {
				t.Errorf("verified with %v, want ErrNoKeys", err)
			}
			ours, _, err := tokens.Issue(till1, noon, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tokens.Verify(t.Context(), ours, noon); err != nil {
				t.Errorf("a token of the secret: %v", err)
			}

			view := NewView()
			view.restaurants = map[daydb.Restaurant]*restaurant{}
			p := &Proxy{Options: Options{Tokens: tokens, View: view}}
			r := httptest.NewRequest(http.MethodGet, "/db/core", nil)
			r.Header.Set("Authorization", "Bearer "+raw)
			if _, refused := p.check(r); refused == nil || refused.status != http.StatusServiceUnavailable || refused.Code != refusedNotReady {
				t.Errorf("the till is told %+v", refused)
			}
		})
	}
}
