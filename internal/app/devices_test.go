package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

// asDevice sends a request of a device, and leaves its answer to be read.
func asDevice(t *testing.T, a *app.App, method, path, token, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestDevicesBesideTheAdministration has a canary switched on, a till that works,
// tokens that open one side only, and a stop while a feed is open.
func TestDevicesBesideTheAdministration(t *testing.T) {
	opts := options(t)
	opts.DeviceJWTSecret, opts.CouchProxySecret = "0123456789abcdef0123456789abcdef", couchtest.ProxySecret
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			a.Stop(context.Background())
		}
	})
	for _, c := range [][3]string{
		{"PUT", "/admin/restaurants/acme/centro", `{}`},
		{"PUT", "/admin/flags/acme", `{"rollingDb":true}`},
		{"POST", "/admin/crons/rolling-db-rotate/run", `{"companyId":"acme","wait":true}`},
	} {
		if status, body := call(t, a, c[0], c[1], c[2]); status != 200 {
			t.Fatalf("%s: %d %s", c[1], status, body)
		}
	}
	status, body := call(t, a, "POST", "/admin/device-tokens", `{"companyId":"acme","restaurantId":"centro","deviceId":"till-1","ttlSeconds":3600}`)
	var issued struct{ Token string }
	if err := json.Unmarshal([]byte(body), &issued); err != nil || status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	till := issued.Token

	// The view learns by itself that the company is routed.
	var manifest struct{ CurrentDayDb string }
	limit := time.After(time.Minute)
	for manifest.CurrentDayDb == "" {
		res := asDevice(t, a, "GET", "/db/core/day_manifest", till, "")
		if res.StatusCode == 200 {
			if err := json.NewDecoder(res.Body).Decode(&manifest); err != nil {
				t.Fatal(err)
			}
			break
		}
		res.Body.Close()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatalf("the manifest: %s", res.Status)
		}
	}
	for _, c := range []struct {
		method, path, token, body string
		status                    int
	}{
		{"PUT", "/db/" + manifest.CurrentDayDb + "/order-1", till, `{"type":"order","status":"closed"}`, 201},
		// A mux would redirect these.
		{"GET", "/db/core/a%2F%2Fb", till, "", 404},
		{"GET", "/db/core/a%2F.%2Fb", till, "", 400},
		{"GET", "/db/core", token, "", 401},
		{"GET", "/admin/restaurants", till, "", 401},
		{"GET", "/%64b/core", till, "", 404},
		{"GET", "/db", "", "", 200},
	} {
		if res := asDevice(t, a, c.method, c.path, c.token, c.body); res.StatusCode != c.status {
			answer, _ := io.ReadAll(res.Body)
			t.Errorf("%s %s: %s %s, want %d", c.method, c.path, res.Status, answer, c.status)
		}
	}
	if status, body := call(t, a, "GET", "/admin/doctor", ""); status != 200 || !strings.Contains(body, "takes the proxy's word") {
		t.Errorf("doctor: %d %s", status, body)
	}

	feed := asDevice(t, a, "GET", "/db/core/_changes?feed=continuous&heartbeat=1000", till, "")
	if feed.StatusCode != 200 {
		t.Fatal(feed.Status)
	}
	// A feed that went on would last as long as its token, an hour.
	stopping, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stopped = true
	if err := a.Stop(stopping); err != nil {
		t.Errorf("stop with an open feed: %v", err)
	}
}

func TestDevicePlaneThatIsOff(t *testing.T) {
	opts := options(t)
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop(context.Background()) })
	if res := asDevice(t, a, "GET", "/db/core", "x", ""); res.StatusCode != 503 {
		t.Errorf("a device: %s", res.Status)
	}
}

func TestDeviceOptions(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		change func(*app.Options)
		option string
	}{
		{func(o *app.Options) { o.DeviceJWTSecret = secret }, "CouchProxySecret"},
		{func(o *app.Options) { o.DeviceJWKSURL = "https://auth.example/keys" }, "CouchProxySecret"},
		{func(o *app.Options) { o.DeviceJWTSecret, o.CouchProxySecret = secret[1:], "hush" }, "DeviceJWTSecret"},
		{func(o *app.Options) { o.DeviceJWKSURL, o.CouchProxySecret = "auth.example", "hush" }, "DeviceJWKSURL"},
		{func(o *app.Options) { o.DeviceRate = -1 }, "DeviceRate"},
		{func(o *app.Options) { o.DeviceOrigins = "https://till.example, till.example" }, "DeviceOrigins"},
		{func(o *app.Options) { o.DeviceOrigins = "https://till.example/" }, "DeviceOrigins"},
		{func(o *app.Options) { o.DeviceOrigins = "https://till.example,capacitor://localhost" }, ""},
		{func(o *app.Options) { o.CouchProxySecret = "hush" }, ""},
		{func(o *app.Options) { o.DeviceJWTSecret, o.CouchProxySecret = secret, "hush" }, ""},
	} {
		opts := app.Options{Env: "prod", DatabaseURL: "postgres://127.0.0.1/x", CouchURL: "http://admin:secret@127.0.0.1:5984", AdminTokens: "dora=destroyer:" + token}
		c.change(&opts)
		_, err := app.New(opts)
		var invalid *daemon.InvalidError
		switch {
		case c.option == "" && err != nil:
			t.Errorf("%v", err)
		case c.option != "" && (!errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Option != c.option):
			t.Errorf("%v, want one problem of %s", err, c.option)
		case err != nil && (strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), secret[1:])):
			t.Errorf("it repeats a secret: %v", err)
		}
	}
}
