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

// TestUndelete brings a deleted database back, with its documents, its _security
// and its creation time, from one shard and from several; under another name and
// under its own.
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

	born := func(name string) string {
		t.Helper()
		var info struct {
			InstanceStartTime string `json:"instance_start_time"`
		}
		if err := json.Unmarshal([]byte(request(http.MethodGet, "/"+name, "")), &info); err != nil || info.InstanceStartTime == "" {
			t.Fatalf("creation time of %s: %q, %v", name, info.InstanceStartTime, err)
		}
		return info.InstanceStartTime
	}

	for _, c := range []struct {
		shards int
		suffix string
		itself bool
	}{
		{shards: 1, suffix: "_recovered"},
		{shards: 4, suffix: "_recovered"},
		{shards: 2, itself: true},
	} {
		t.Run(fmt.Sprintf("q=%d%s", c.shards, c.suffix), func(t *testing.T) {
			name := fmt.Sprintf("undelete_q%d_%d", c.shards, os.Getpid())
			recovered := name + c.suffix
			t.Cleanup(func() { request(http.MethodDelete, "/"+recovered, "") })
			security := `{"admins":{"names":[],"roles":["_admin"]},"members":{"names":[],"roles":["rollingd_sealed"]},"rollingd":{"generation":"g"}}`

			request(http.MethodPut, fmt.Sprintf("/%s?q=%d", name, c.shards), "")
			for i := range 20 {
				request(http.MethodPut, fmt.Sprintf("/%s/d%d", name, i), `{"type":"order"}`)
			}
			request(http.MethodPut, "/"+name+"/_security", security)
			created := born(name)
			before := request(http.MethodGet, "/"+name+"/_all_docs?include_docs=true", "")
			request(http.MethodDelete, "/"+name, "")

			undelete := func() ([]byte, error) {
				args := []string{"couchdb-undelete.sh", folder, name}
				if c.itself {
					args = append(args, name)
				}
				cmd := exec.CommandContext(t.Context(), "bash", args...)
				cmd.Env = append(os.Environ(), "COUCHDB_URL="+server)
				return cmd.CombinedOutput()
			}
			if output, err := undelete(); err != nil {
				t.Fatalf("undelete: %v\n%s", err, output)
			}
			if got := born(recovered); got != created {
				t.Errorf("created at %s, not %s: it counts as another database", got, created)
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
