package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/rollingd/rollingd/internal/app"
)

// TestReplicasShareANight has two servers on the same stores rotate, archive and
// evaluate a fleet together: each takes a part of every job, and no part is done
// twice.
func TestReplicasShareANight(t *testing.T) {
	t.Parallel()
	const restaurants = 40 // Several times what one replica does before the other looks.
	opts := options(t)
	opts.Workers = 1 // So that one replica has no time for all.
	var replicas []*app.App
	for range 2 {
		a := started(t, opts)
		replicas = append(replicas, a)
	}
	for i := range restaurants {
		if status, body := call(t, replicas[0], "PUT", fmt.Sprintf("/admin/restaurants/acme/r%d", i), `{}`); status != 200 {
			t.Fatalf("register: %d %s", status, body)
		}
	}
	if status, body := call(t, replicas[0], "PUT", "/admin/flags/acme", `{"rollingDb":true}`); status != 200 {
		t.Fatalf("flags: %d %s", status, body)
	}
	for i, cron := range []string{"rolling-db-rotate", "archive"} {
		status, body := call(t, replicas[i], "POST", "/admin/crons/"+cron+"/run", `{"wait":true}`)
		var ended struct {
			State    string
			Counters map[string]int64
			Failures []json.RawMessage
		}
		if err := json.Unmarshal([]byte(body), &ended); err != nil || status != 200 || ended.State != "succeeded" || len(ended.Failures) > 0 {
			t.Fatalf("%s: %d %s", cron, status, body)
		}
		if cron == "rolling-db-rotate" && (ended.Counters["activated"] != restaurants || ended.Counters["manifests"] != restaurants) {
			t.Errorf("%s: %v", cron, ended.Counters)
		}
		done := []int{unitsOf(t, replicas[0], cron), unitsOf(t, replicas[1], cron)}
		if done[0] == 0 || done[1] == 0 || done[0]+done[1] != restaurants {
			t.Errorf("%s: the replicas did %v units of %d", cron, done, restaurants)
		}
	}
}

// unitsOf is how many units of a job a replica has done.
func unitsOf(t *testing.T, a *app.App, job string) int {
	t.Helper()
	res, err := http.Get("http://" + a.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`rollingd_crew_units_total\{job="` + job + `",outcome="done"\} (\d+)`).FindSubmatch(metrics)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
