package device

import (
	"strings"
	"testing"
)

func TestPagesOfConfiguredOrigins(t *testing.T) {
	t.Parallel()
	const shopPage = "https://till.example"
	s := newShop(t, shopOptions{origins: []string{shopPage}})
	token := s.token(north, "till-1")
	allowed := func(a answer) string { return a.header.Get("Access-Control-Allow-Origin") }

	asked := s.do("OPTIONS", "/db/core/_bulk_docs", "", "", "Origin", shopPage, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
	if asked.status != 204 || allowed(asked) != shopPage || !strings.Contains(asked.header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("the question of a browser: %d %v", asked.status, asked.header)
	}
	for _, path := range []string{"/db/core", "/db/daily_" + gone, "/db/"} {
		if got := s.do("GET", path, token, "", "Origin", shopPage); allowed(got) != shopPage || len(got.header.Values("Access-Control-Allow-Origin")) != 1 || got.header.Get("Access-Control-Allow-Credentials") != "true" {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
	}
	for _, origin := range []string{"https://evil.example", "https://till.example.evil", "null", ""} {
		if got := s.do("GET", "/db/core", token, "", "Origin", origin); allowed(got) != "" {
			t.Errorf("a page of %q: %v", origin, got.header)
		}
		if got := s.do("OPTIONS", "/db/core", token, "", "Origin", origin, "Access-Control-Request-Method", "PUT"); got.status != 403 {
			t.Errorf("the question of a page of %q: %d", origin, got.status)
		}
	}
	if got := s.do("OPTIONS", "/db/core", token, "", "Origin", shopPage); got.status != 403 {
		t.Errorf("OPTIONS that is no browser's question: %d", got.status)
	}
}
