package edge_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity/edge"
)

// TestDenied: whatever is not public needs a token, known route or not.
func TestDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, route := range []struct{ method, path string }{
		{"POST", "/v1/commands"},
		{"GET", "/v1/commands"},
		{"GET", "/v1/reads/order:o-1"},
		{"GET", "/metrics"},
		{"GET", "/nowhere"},
		{"GET", "/"},
		{"DELETE", "/v1/webhooks"},
		{"GET", "/healthz/"},
		{"GET", "/v1/reads/../../healthz"},
	} {
		for name, header := range map[string]string{
			"none":          "",
			"another":       "Bearer token-of-the-site-124",
			"a prefix":      "Bearer " + callerToken[:16],
			"longer":        "Bearer " + callerToken + "x",
			"another kind":  "Basic " + callerToken,
			"the primary's": "Bearer " + serviceToken,
			"empty":         "Bearer ",
		} {
			a := w.ask(t, route.method, route.path, "", "Authorization", header)
			if a.Code != http.StatusUnauthorized || a.body["code"] != "unauthorized" || a.Header().Get("Www-Authenticate") == "" {
				t.Errorf("%s %s with %s: %s", route.method, route.path, name, a)
			}
		}
	}
	if len(w.primary.seen) != 0 {
		t.Errorf("%d requests got through", len(w.primary.seen))
	}
}

func TestAdmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		method, path, token string
		status              int
	}{
		{"GET", "/healthz", "", 200},
		{"HEAD", "/healthz", "", 200},
		{"GET", "/api/_health", "", 200},
		{"GET", "/metrics", callerToken, 200},
		{"GET", "/v1/reads/order:o-1", callerToken, 200},
		{"GET", "/nowhere", callerToken, 404},
		{"PUT", "/v1/commands", callerToken, 405},
		{"GET", "/v1/webhooks/c6", callerToken, 405},
	} {
		header := "bearer " + c.token
		if c.token == "" {
			header = ""
		}
		if a := w.ask(t, c.method, c.path, "", "Authorization", header); a.Code != c.status {
			t.Errorf("%s %s: %s", c.method, c.path, a)
		}
	}
	if !strings.Contains(w.logged.String(), "caller=site") {
		t.Errorf("the log does not name the caller:\n%s", w.logged)
	}
}

func TestParseTokens(t *testing.T) {
	t.Parallel()
	if tokens, err := edge.ParseTokens("site=" + callerToken + ", app=" + serviceToken + ",site=" + c6Token); err != nil || len(tokens) != 3 {
		t.Errorf("%d, %v", len(tokens), err)
	}
	for _, list := range []string{"", "site", "site=short", "=" + callerToken, "a b=" + callerToken, "a=" + callerToken + ",b=" + callerToken, "a=" + callerToken + ","} {
		if _, err := edge.ParseTokens(list); err == nil || strings.Contains(err.Error(), callerToken) {
			t.Errorf("%q: %v", list, err)
		}
	}
}
