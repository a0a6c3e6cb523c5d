package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPasswordOfAWrongURL: ROLLINGD_URL that is CouchDB's is a wrong setting, and
// the message about it goes into the logs of whatever ran the command.
func TestPasswordOfAWrongURL(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, target := range []string{other.URL, gone.URL} {
		env := map[string]string{
			urlVariable:   strings.Replace(target, "http://", "http://admin:pencil-sharpener@", 1),
			tokenVariable: "0123456789abcdef",
		}
		code, out, errOut := call(t.Context(), env, "flags", "acme")
		if code != exitFailed || strings.Contains(out+errOut, "pencil") || !strings.Contains(errOut, "@"+strings.TrimPrefix(target, "http://")) {
			t.Errorf("code %d: %s%s", code, out, errOut)
		}
	}
}
