package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestReplicasShareANight has two servers on the same stores rotate, archive and
// evaluate a fleet together: each takes a part of every job, and no part is done
// twice.
func TestReplicasShareANight(t *testing.T) {
	t.Parallel()
	const restaurants = 40
	opts := options(t)
	opts.Workers = 1
	both := newTogether(t, opts)
	opts.CouchURL = both.url
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
		both.met.Store(false)
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

// together stands before CouchDB, and lets no unit go on before each of two replicas that do one unit at a time has one:
// the first could do all of them before the second has looked.
type together struct {
	url  string
	pool *pgxpool.Pool
	met  atomic.Bool
}

func newTogether(t *testing.T, opts app.Options) *together {
	t.Helper()
	u, err := url.Parse(opts.CouchURL)
	if err != nil {
		t.Fatal(err)
	}
	g := &together{pool: pgtest.Open(t, opts.DatabaseURL)}
	user := u.User
	u.User = nil
	behind := httputil.NewSingleHostReverseProxy(u)
	behind.FlushInterval = -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.wait(r.Context())
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	if u, err = url.Parse(server.URL); err != nil {
		t.Fatal(err)
	}
	u.User = user
	g.url = u.String()
	return g
}

// wait returns at once while no unit is under way, and from when there are two.
func (g *together) wait(ctx context.Context) {
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !g.met.Load() {
		var claimed int
		// Before the servers have made their schema there is no unit.
		err := g.pool.QueryRow(ctx, `select count(*) from public.continuity_commands where status = 'claimed'`).Scan(&claimed)
		if err != nil || claimed == 0 {
			return
		}
		if claimed > 1 {
			g.met.Store(true)
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
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
