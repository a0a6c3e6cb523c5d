// Package couchtest gives tests a CouchDB: the real one that ROLLINGD_TEST_COUCHDB_URL names, with an administrator's
// credentials in it, or the embedded store in the test process.
package couchtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

// urlVariable names the environment variable with the URL of a real CouchDB.
const urlVariable = "ROLLINGD_TEST_COUCHDB_URL"

// ProxySecret is the secret for proxy authentication that the embedded store runs with. A real CouchDB for the tests is
// configured with the same one.
const ProxySecret = "proxysecret"

// timeout bounds one request of the clean-up.
const timeout = 30 * time.Second

// New returns the URL of a CouchDB, with an administrator's credentials and without a slash at its end. An embedded
// store is empty and ends with the test. A real one is shared: a test keeps to the databases of its Env.
func New(t testing.TB) string {
	t.Helper()
	if Real() {
		return realURL()
	}
	server, err := couch.Start(couch.Options{
		Dir:           t.TempDir(),
		AdminUser:     "admin",
		AdminPassword: "secret",
		ProxySecret:   ProxySecret,
		NoSync:        true,
	})
	if err != nil {
		t.Fatalf("couchtest: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("couchtest: %v", err)
		}
	})
	return server.URL()
}

// Real tells whether New gives a real CouchDB, for the few tests that need what only one of the two has.
func Real() bool {
	return os.Getenv(urlVariable) != ""
}

func realURL() string {
	return strings.TrimSuffix(os.Getenv(urlVariable), "/")
}

// Env returns the name of an environment that no other test has. When the test ends, the environment's databases in a
// real CouchDB are deleted: those whose names begin with it and an underscore, and its legacy database "tables-<env>".
func Env(t testing.TB) string {
	t.Helper()
	var b [4]byte
	rand.Read(b[:])
	env := "t" + hex.EncodeToString(b[:])
	if !Real() {
		return env // The embedded store ends with its test.
	}
	t.Cleanup(func() {
		if err := deleteDatabases(context.WithoutCancel(t.Context()), realURL(), env); err != nil {
			t.Errorf("couchtest: clean up %s: %v", env, err)
		}
	})
	return env
}

func deleteDatabases(ctx context.Context, couchURL, env string) error {
	// The character after the underscore ends the range of names that begin with the prefix.
	between := url.Values{
		"start_key":     {quote(env + "_")},
		"end_key":       {quote(env + "`")},
		"inclusive_end": {"false"},
	}
	body, err := request(ctx, http.MethodGet, couchURL+"/_all_dbs?"+between.Encode())
	if err != nil {
		return err
	}
	var names []string
	if err := json.Unmarshal(body, &names); err != nil {
		return err
	}
	for _, name := range append(names, "tables-"+env) {
		// A range that was not understood would be every database there is.
		if !strings.HasPrefix(name, env+"_") && name != "tables-"+env {
			return fmt.Errorf("_all_dbs lists %s in the range of %s", name, env)
		}
		if _, err := request(ctx, http.MethodDelete, couchURL+"/"+url.PathEscape(name)); err != nil {
			return err
		}
	}
	return nil
}

func quote(s string) string {
	return `"` + s + `"`
}

// request returns the body of the answer; a database that is gone is no error.
func request(ctx context.Context, method, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 && res.StatusCode != http.StatusNotFound {
		return nil, fmt.Errorf("%s %s: %s", method, req.URL.Path, res.Status)
	}
	return body, nil
}
