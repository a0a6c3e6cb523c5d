package couch_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

// TestNamesOfLegacyDatabases: a legacy database has the name that it was once
// given, and a plus or a slash in it is read as such.
func TestNamesOfLegacyDatabases(t *testing.T) {
	t.Parallel()
	server := couchtest.New(t)
	c, err := couch.New(couch.Options{URL: server})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	send := func(method, name string) {
		req, err := http.NewRequestWithContext(t.Context(), method, server+"/"+strings.ReplaceAll(url.PathEscape(name), "+", "%2B"), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode >= http.StatusBadRequest {
			t.Fatal(method, name, res, err)
		}
		_ = res.Body.Close()
	}
	for _, suffix := range []string{"_a+b", "_a/b", "_$()-"} {
		name := couchtest.Env(t) + suffix
		send(http.MethodPut, name)
		if info, err := c.Info(t.Context(), name); err != nil || info.Name != name || info.InstanceStartTime == "" {
			t.Errorf("info of %s: %+v, %v", name, info, err)
		}
		if n, err := c.Pending(t.Context(), name, couch.SeqStart); err != nil || n != 0 {
			t.Errorf("changes of %s: %d, %v", name, n, err)
		}
		send(http.MethodDelete, name)
		if _, err := c.Info(t.Context(), name); !errors.Is(err, couch.ErrNotFound) {
			t.Errorf("info of %s after its deletion: %v", name, err)
		}
	}
}
