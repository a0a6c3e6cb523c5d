package scripts_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestUndelete brings a deleted database back under a name of its own, with its
// documents and its _security, from one shard and from several.
func TestUndelete(t *testing.T) {
	server := os.Getenv("ROLLINGD_TEST_COUCHDB_URL")
	if server == "" {
		t.Skip("ROLLINGD_TEST_COUCHDB_URL is not set; make test-couchdb sets it")
	}
	request := func(method, path, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode >= http.StatusBadRequest && res.StatusCode != http.StatusNotFound {
			t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, answer)
		}
		return string(answer)
	}
	setting := func(key string) (value string) {
		t.Helper()
		answer := request(http.MethodGet, "/_node/_local/_config/couchdb/"+key, "")
		if err := json.Unmarshal([]byte(answer), &value); err != nil {
			return "" // Not set.
		}
		return value
	}
	folder := setting("database_dir")
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("the server's data folder is not on this machine: %v", err)
	}
	if setting("enable_database_recovery") != "true" {
		t.Skip("the server runs without enable_database_recovery")
	}

	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("q=%d", shards), func(t *testing.T) {
			name := fmt.Sprintf("undelete_q%d_%d", shards, os.Getpid())
			recovered := name + "_recovered"
			t.Cleanup(func() { request(http.MethodDelete, "/"+recovered, "") })
			security := `{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":["rollingd_sealed"]},"rollingd":{"generation":"g"}}`

			request(http.MethodPut, fmt.Sprintf("/%s?q=%d", name, shards), "")
			for i := range 20 {
				request(http.MethodPut, fmt.Sprintf("/%s/d%d", name, i), `{"type":"order"}`)
			}
			request(http.MethodPut, "/"+name+"/_security", security)
			before := request(http.MethodGet, "/"+name+"/_all_docs?include_docs=true", "")
			request(http.MethodDelete, "/"+name, "")

			undelete := func() ([]byte, error) {
				cmd := exec.CommandContext(t.Context(), "bash", "couchdb-undelete.sh", folder, name)
				cmd.Env = append(os.Environ(), "COUCHDB_URL="+server)
				return cmd.CombinedOutput()
			}
			if output, err := undelete(); err != nil {
				t.Fatalf("undelete: %v\n%s", err, output)
			}
			if after := request(http.MethodGet, "/"+recovered+"/_all_docs?include_docs=true", ""); after != before {
				t.Errorf("documents differ:\n%s\n%s", before, after)
			}
			if got := strings.TrimSpace(request(http.MethodGet, "/"+recovered+"/_security", "")); got != security {
				t.Errorf("_security is %s, not %s", got, security)
			}
			if output, err := undelete(); err == nil {
				t.Errorf("undelete replaced a database that exists:\n%s", output)
			}
		})
	}
}
