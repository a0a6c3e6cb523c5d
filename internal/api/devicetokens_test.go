package api_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device"
)

const deviceSecret = "0123456789abcdef0123456789abcdef"

// plane is a device plane of which only the tokens are real.
type plane struct {
	*device.Tokens
	probe error
}

func (p plane) Probe(context.Context) error { return p.probe }

// withDevices is a second API on the stores of the site, with another device plane and CouchDB.
func (s *site) withDevices(p api.Devices, couchdb api.CouchDB) {
	opts := s.options
	opts.Devices, opts.Couch, opts.Metrics = p, couchdb, prometheus.NewRegistry()
	server := httptest.NewServer(api.New(opts))
	s.t.Cleanup(server.Close)
	s.url = server.URL
}

func TestDeviceTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if got := s.do("POST", "/admin/device-tokens", operator, `{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":3600}`); got.status != 409 || !strings.Contains(string(got.body), "device_plane_off") {
		t.Errorf("with the plane off: %d %s", got.status, got.body)
	}
	tokens, err := device.NewTokens(t.Context(), device.TokenOptions{Secret: deviceSecret, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.withDevices(plane{Tokens: tokens}, s.couch)
	for _, c := range []struct {
		body, code, field string
		status            int
	}{
		{`{"restaurantId":"north","deviceId":"till-1","ttlSeconds":3600}`, "invalid_id", "companyId", 400},
		{`{"companyId":"acme_north","restaurantId":"north","deviceId":"till-1","ttlSeconds":3600}`, "invalid_id", "companyId", 400},
		{`{"companyId":"acme","restaurantId":"North","deviceId":"till-1","ttlSeconds":3600}`, "invalid_id", "restaurantId", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till,_admin","ttlSeconds":3600}`, "invalid_id", "deviceId", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till-1"}`, "invalid_ttl", "ttlSeconds", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":59}`, "invalid_ttl", "ttlSeconds", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":9223372036854775807}`, "invalid_ttl", "ttlSeconds", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":1.5}`, "invalid_field", "ttlSeconds", 400},
		{`{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":"3600"}`, "invalid_field", "ttlSeconds", 400},
		{`{"companyId":"acme","restaurantId":"nowhere","deviceId":"till-1","ttlSeconds":3600}`, "unknown_restaurant", "restaurantId", 404},
	} {
		got := s.do("POST", "/admin/device-tokens", operator, c.body)
		var p api.Problem
		got.into(t, &p)
		if got.status != c.status || p.Code != c.code || p.Field != c.field || p.Detail == "" {
			t.Errorf("%s: %d %s", c.body, got.status, got.body)
		}
	}
	var issued struct {
		Token     string
		ExpiresAt time.Time
	}
	got := s.do("POST", "/admin/device-tokens", operator, `{"companyId":"acme","restaurantId":"north","deviceId":"till-1","ttlSeconds":3600}`)
	got.into(t, &issued)
	var now time.Time
	if err := s.pool.QueryRow(t.Context(), `select now()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	grant, err := tokens.Verify(t.Context(), issued.Token, now)
	if err != nil || grant.Identity != (device.Identity{Restaurant: daydb.Restaurant{CompanyID: "acme", RestaurantID: "north"}, DeviceID: "till-1"}) || !grant.ExpiresAt.Equal(issued.ExpiresAt) {
		t.Errorf("%d %s: %+v, %v", got.status, got.body, grant, err)
	}
	if left := issued.ExpiresAt.Sub(now); left < 3500*time.Second || left > 3600*time.Second {
		t.Errorf("expires in %s", left)
	}
	// A device's token opens nothing here.
	if got := s.do("GET", "/admin/restaurants", issued.Token, ""); got.status != 401 {
		t.Errorf("an administrator's route with a device's token: %d", got.status)
	}
	if strings.Contains(s.log.String(), issued.Token) {
		t.Error("the log has the token")
	}

	for _, path := range []string{"/admin/device-tokens/acme/north/till-1", "/admin/device-tokens/acme/north"} {
		if got := s.do("DELETE", path, operator, ""); got.status != 200 || !strings.Contains(string(got.body), "revokedAt") {
			t.Errorf("DELETE %s: %d %s", path, got.status, got.body)
		}
	}
	for path, status := range map[string]int{"/admin/device-tokens/acme/nowhere": 404, "/admin/device-tokens/acme/north/a%2Fb": 400, "/admin/device-tokens/ACME/north": 400} {
		if got := s.do("DELETE", path, operator, ""); got.status != status {
			t.Errorf("DELETE %s: %d %s", path, got.status, got.body)
		}
	}
	var revoked int
	err = s.pool.QueryRow(t.Context(), `select count(*) from device_revocations where revoked_by = 'otto' and revoked_at > $1`, grant.IssuedAt).Scan(&revoked)
	if err != nil || revoked != 2 {
		t.Errorf("%d revocations, %v", revoked, err)
	}
}

// settings are those of a CouchDB that is not set up.
type settings struct {
	*couch.Client
	of map[string]string
}

func (s settings) Config(_ context.Context, section, key string) (string, error) {
	return s.of[section+"/"+key], nil
}

// TestDoctorNamesTheMissingSetting of CouchDB, for which the device plane does not work.
func TestDoctorNamesTheMissingSetting(t *testing.T) {
	t.Parallel()
	const (
		handlers = "chttpd/authentication_handlers"
		all      = "{chttpd_auth, cookie_authentication_handler}, {chttpd_auth, proxy_authentication_handler}"
		secret   = "chttpd_auth/secret"
	)
	refused := errors.New("not accepted")
	for _, c := range []struct {
		name   string
		probe  error
		of     map[string]string
		status string
		advice []string
	}{
		{"nothing set", refused, nil, "fail", []string{"[chttpd] authentication_handlers", "{chttpd_auth, proxy_authentication_handler}", "[chttpd_auth] secret"}},
		{"no handler", refused, map[string]string{secret: "hush"}, "fail", []string{"[chttpd] authentication_handlers"}},
		{"no secret", refused, map[string]string{handlers: all}, "fail", []string{"set [chttpd_auth] secret"}},
		{"another secret", refused, map[string]string{handlers: all, secret: "hush"}, "fail", []string{"[chttpd_auth] secret", "ROLLINGD_COUCHDB_PROXY_SECRET"}},
		{"open to all", nil, map[string]string{handlers: all, secret: "hush", "chttpd_auth/proxy_use_secret": "false"}, "warn", []string{"proxy_use_secret = true"}},
		{"well", nil, map[string]string{handlers: all, secret: "hush"}, "ok", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			found := s.proxyCheck(plane{probe: c.probe}, settings{Client: s.couch, of: c.of})
			if found.Status != c.status || strings.Contains(found.Detail+found.Advice, "hush") {
				t.Errorf("%+v", found)
			}
			for _, words := range c.advice {
				if !strings.Contains(found.Advice, words) {
					t.Errorf("the advice does not say %q: %s", words, found.Advice)
				}
			}
			if off := s.proxyCheck(nil, settings{Client: s.couch, of: c.of}); c.status == "fail" && off.Status != "ok" {
				t.Errorf("with the plane off: %+v", off)
			}
		})
	}
}

// TestDoctorNamesLegacyDatabasesThatAreClosed to the role under which the proxy comes.
func TestDoctorNamesLegacyDatabasesThatAreClosed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	legacy := "tables-" + s.env
	if _, err := s.couch.Create(t.Context(), legacy); err != nil {
		t.Fatal(err)
	}
	for role, status := range map[string]string{"pos": "warn", "legacy": "ok", "restaurant:acme/north": "ok", "restaurant:acme/south": "warn"} {
		if err := s.couch.PutSecurity(t.Context(), legacy, couch.OpenTo(role, uuid.New())); err != nil {
			t.Fatal(err)
		}
		found := s.deviceCheck("legacy databases", plane{}, s.couch)
		if found.Status != status || status == "warn" && (!strings.Contains(found.Detail, legacy) || !strings.Contains(found.Advice, "role legacy")) {
			t.Errorf("members with the role %s: %+v", role, found)
		}
	}
}

type finding struct{ Name, Status, Detail, Advice string }

// proxyCheck is what the doctor says of proxy authentication.
func (s *site) proxyCheck(p api.Devices, couchdb api.CouchDB) finding {
	s.t.Helper()
	return s.deviceCheck("couchdb proxy authentication", p, couchdb)
}

// deviceCheck is what the doctor says of something, with a device plane.
func (s *site) deviceCheck(name string, p api.Devices, couchdb api.CouchDB) finding {
	s.t.Helper()
	s.withDevices(p, couchdb)
	var report struct{ Checks []finding }
	s.do("GET", "/admin/doctor", viewer, "").into(s.t, &report)
	for _, c := range report.Checks {
		if c.Name == name {
			return c
		}
	}
	s.t.Fatalf("the doctor does not look at %s", name)
	return finding{}
}
