package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const token = "destroyer-token-0123456789"

func options(t *testing.T) app.Options {
	return app.Options{
		Env:         couchtest.Env(t),
		DatabaseURL: pgtest.EmptyDSN(t),
		CouchURL:    couchtest.New(t),
		ListenAddr:  "127.0.0.1:0",
		AdminTokens: "dora=destroyer:" + token,
	}
}

// started is a server that is stopped when the test ends.
func started(t *testing.T, opts app.Options) *app.App {
	t.Helper()
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error("stop: ", err)
		}
	})
	return a
}

func call(t *testing.T, a *app.App, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// TestServerFromEmptyStores starts on an empty Postgres and an empty CouchDB, switches a canary on, and runs each cron.
func TestServerFromEmptyStores(t *testing.T) {
	opts := options(t)
	before := goleak.IgnoreCurrent()
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		want               string
	}{
		{"GET", "/readyz", "", `"ready":true`},
		{"PUT", "/admin/restaurants/acme/centro", "", `"timezone":"America/Santiago"`},
		{"PUT", "/admin/flags/acme", `{"rollingDb":true}`, `"rollingDb":true`},
		{"POST", "/admin/crons/rolling-db-rotate/run", `{"companyId":"acme","wait":true}`, `"state":"succeeded"`},
		{"GET", "/admin/day-dbs?state=ACTIVE", "", `"state":"ACTIVE"`},
		{"POST", "/admin/crons/rolling-db-drop-eval/run", `{"companyId":"acme","businessDay":"20991231","dryRun":true,"wait":true}`, `"state":"succeeded"`},
		{"GET", "/admin/doctor", "", `"checks":[`},
	} {
		status, body := call(t, a, c.method, c.path, c.body)
		if status != http.StatusOK || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, status, body)
		}
	}
	for _, c := range []struct{ path, body string }{
		{"/admin/crons/rolling-db-rotate/run", `{"businessDay":"20991231"}`},
		{"/admin/crons/rolling-db-drop-eval/run", `{"businessDay":"20991231"}`},
		{"/admin/crons/archive/run", `{"businessDay":"20261130"}`},
	} {
		status, body := call(t, a, "POST", c.path, c.body)
		if status != http.StatusUnprocessableEntity || !strings.Contains(body, `"field":"businessDay"`) {
			t.Errorf("%s %s: %d %s", c.path, c.body, status, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
	expectNoLeak(t, before)
}

// expectNoLeak waits for what still ends.
func expectNoLeak(t *testing.T, before goleak.Option) {
	t.Helper()
	left := goleak.Find(before)
	for began := time.Now(); left != nil && time.Since(began) < 30*time.Second; {
		left = goleak.Find(before)
	}
	if left != nil {
		t.Error(left)
	}
}

// TestFailedStartLeavesNothing has Postgres, and a port that is taken.
func TestFailedStartLeavesNothing(t *testing.T) {
	opts := options(t)
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", opts.ListenAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := goleak.IgnoreCurrent()
	opts.ListenAddr = taken.Addr().String()
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err == nil {
		t.Error("it listens at an address that is taken")
	}
	expectNoLeak(t, before)
}

// TestStartWithoutCouchDB: the server starts, and says that it is not ready.
func TestStartWithoutCouchDB(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.CouchURL = "http://admin:secret@127.0.0.1:1"
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer a.Stop(context.WithoutCancel(t.Context()))
	status, body := call(t, a, "GET", "/readyz", "")
	var ready struct{ Ready bool }
	if err := json.Unmarshal([]byte(body), &ready); err != nil || status != http.StatusServiceUnavailable || ready.Ready {
		t.Errorf("readyz: %d %s", status, body)
	}
	if strings.Contains(body, "secret") {
		t.Errorf("readyz tells the password: %s", body)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	good := app.Options{
		Env:         "prod",
		DatabaseURL: "postgres://127.0.0.1/rollingd",
		CouchURL:    "http://admin:secret@127.0.0.1:5984",
		AdminTokens: "dora=destroyer:" + token,
	}
	if _, err := app.New(good); err != nil {
		t.Fatalf("the least that is needed: %v", err)
	}
	for _, c := range []struct {
		name  string
		spoil func(*app.Options)
		want  []string
	}{
		{"nothing", func(o *app.Options) { *o = app.Options{} }, []string{"Env", "DatabaseURL", "CouchURL", "AdminTokens"}},
		{"environment", func(o *app.Options) { o.Env = "Prod_1" }, []string{"Env"}},
		{"database", func(o *app.Options) { o.DatabaseURL = "postgres://rollingd:secret@:port" }, []string{"DatabaseURL"}},
		{"couch", func(o *app.Options) { o.CouchURL = "127.0.0.1:5984" }, []string{"CouchURL"}},
		{"couch without a password", func(o *app.Options) { o.CouchURL = "http://127.0.0.1:5984" }, []string{"CouchURL"}},
		{"port beyond all ports", func(o *app.Options) { o.ListenAddr = "127.0.0.1:99999" }, []string{"ListenAddr"}},
		{"address", func(o *app.Options) { o.ListenAddr = "8080" }, []string{"ListenAddr"}},
		{"short token", func(o *app.Options) { o.AdminTokens = "dora=destroyer:short-secret" }, []string{"AdminTokens"}},
		{"no day", func(o *app.Options) { o.TTLDays = -1 }, []string{"TTLDays"}},
		{"settles too early", func(o *app.Options) { o.SealSettle, o.DeviceWriteLimit = time.Minute, 5*time.Minute }, []string{"SealSettle"}},
		{"short lease", func(o *app.Options) { o.LeaseTTL = time.Second }, []string{"LeaseTTL"}},
		{"workers", func(o *app.Options) { o.Workers = 1000 }, []string{"Workers"}},
		{"several", func(o *app.Options) { o.TTLDays, o.Workers = -1, -1 }, []string{"TTLDays", "Workers"}},
	} {
		opts := good
		c.spoil(&opts)
		_, err := app.New(opts)
		var invalid *daemon.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var named []string
		for _, p := range invalid.Problems {
			named = append(named, p.Option)
		}
		if !slices.Equal(named, c.want) {
			t.Errorf("%s: problems of %v, want %v", c.name, named, c.want)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v tells a secret", c.name, err)
		}
	}
}
