package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/api"
)

// TestBadInput: every bad request is answered with a problem that names what is wrong, and changes nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.dump()
	day := "/admin/day-dbs/" + s.day
	long := strings.Repeat("a", 65)
	for _, c := range []struct {
		name   string
		method string
		path   string
		body   string
		header []string
		status int
		code   string
		field  string
	}{
		{name: "unknown cron", method: "POST", path: "/admin/crons/daily/run", status: 404, code: "unknown_cron", field: "name"},
		{name: "unknown cron to pause", method: "POST", path: "/admin/crons/daily/pause", body: `{"reason":"x"}`, status: 404, code: "unknown_cron", field: "name"},
		{name: "unknown cron to resume", method: "POST", path: "/admin/crons/daily/resume", status: 404, code: "unknown_cron", field: "name"},
		{name: "unknown company", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":"acmee"}`, status: 422, code: "scope_refused", field: "companyId"},
		{name: "unknown restaurant", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":"acme","restaurantId":"nord"}`, status: 422, code: "scope_refused", field: "restaurantId"},
		{name: "restaurant without company", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"restaurantId":"north"}`, status: 422, code: "scope_refused", field: "companyId"},
		{name: "malformed company", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":"Acme_1"}`, status: 400, code: "invalid_id", field: "companyId"},
		{name: "empty company", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":""}`, status: 400, code: "invalid_id", field: "companyId"},
		{name: "malformed restaurant", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":"acme","restaurantId":"../x"}`, status: 400, code: "invalid_id", field: "restaurantId"},
		{name: "no such day", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"businessDay":"20260230"}`, status: 400, code: "invalid_day", field: "businessDay"},
		{name: "day with dashes", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"businessDay":"2026-11-30"}`, status: 400, code: "invalid_day", field: "businessDay"},
		{name: "empty day", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"businessDay":""}`, status: 400, code: "invalid_day", field: "businessDay"},
		{name: "day as a number", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"businessDay":20261130}`, status: 400, code: "invalid_field", field: "businessDay"},
		{name: "later day in earnest", method: "POST", path: "/admin/crons/rolling-db-drop-eval/run", body: `{"businessDay":"20990101"}`, status: 422, code: "business_day_refused", field: "businessDay"},
		{name: "dryRun as text", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":"true"}`, status: 400, code: "invalid_field", field: "dryRun"},
		{name: "dryRun as null", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":null}`, status: 400, code: "invalid_field", field: "dryRun"},
		{name: "unknown field", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dry_run":true}`, status: 400, code: "unknown_field", field: "dry_run"},
		{name: "field in another case", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryrun":true}`, status: 400, code: "unknown_field", field: "dryrun"},
		{name: "field twice", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":true,"dryRun":false}`, status: 400, code: "duplicate_field", field: "dryRun"},
		{name: "not JSON", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `dryRun=true`, status: 400, code: "invalid_json"},
		{name: "half JSON", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":true`, status: 400, code: "invalid_json"},
		{name: "half a field", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":`, status: 400, code: "invalid_json"},
		{name: "an array", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `[]`, status: 400, code: "invalid_json"},
		{name: "null", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `null`, status: 400, code: "invalid_json"},
		{name: "something behind", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"dryRun":true} {}`, status: 400, code: "invalid_json"},
		{name: "a form", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{}`, header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, code: "unsupported_media_type"},
		{name: "no content type", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{}`, header: []string{"Content-Type", ""}, status: 415, code: "unsupported_media_type"},
		{name: "oversized", method: "POST", path: "/admin/crons/rolling-db-rotate/run", body: `{"companyId":"` + strings.Repeat("a", 70<<10) + `"}`, status: 413, code: "body_too_large"},

		{name: "pause without a reason", method: "POST", path: "/admin/crons/slow/pause", body: `{}`, status: 400, code: "reason_required", field: "reason"},
		{name: "pause without a body", method: "POST", path: "/admin/crons/slow/pause", status: 400, code: "reason_required", field: "reason"},
		{name: "pause for a blank", method: "POST", path: "/admin/crons/slow/pause", body: `{"reason":" \n"}`, status: 400, code: "reason_required", field: "reason"},
		{name: "pause for a novel", method: "POST", path: "/admin/crons/slow/pause", body: `{"reason":"` + strings.Repeat("ñ", 501) + `"}`, status: 400, code: "invalid_reason", field: "reason"},
		{name: "pause for a NUL", method: "POST", path: "/admin/crons/slow/pause", body: `{"reason":"a\u0000b"}`, status: 400, code: "invalid_reason", field: "reason"},

		{name: "unknown run", method: "GET", path: "/admin/runs/999", status: 404, code: "unknown_run", field: "id"},
		{name: "malformed run", method: "GET", path: "/admin/runs/x", status: 400, code: "invalid_id", field: "id"},
		{name: "run beyond all numbers", method: "GET", path: "/admin/runs/99999999999999999999", status: 400, code: "invalid_id", field: "id"},
		{name: "runs of an unknown cron", method: "GET", path: "/admin/runs?cron=daily", status: 400, code: "unknown_cron", field: "cron"},
		{name: "runs, misspelt parameter", method: "GET", path: "/admin/runs?corn=slow", status: 400, code: "unknown_parameter", field: "corn"},
		{name: "runs, no limit", method: "GET", path: "/admin/runs?limit=0", status: 400, code: "invalid_limit", field: "limit"},

		{name: "day databases of a malformed company", method: "GET", path: "/admin/day-dbs?companyId=" + long, status: 400, code: "invalid_id", field: "companyId"},
		{name: "day databases in an unknown state", method: "GET", path: "/admin/day-dbs?state=active", status: 400, code: "invalid_state", field: "state"},
		{name: "day databases of no day", method: "GET", path: "/admin/day-dbs?businessDay=20261301", status: 400, code: "invalid_day", field: "businessDay"},
		{name: "day databases, twice", method: "GET", path: "/admin/day-dbs?state=ACTIVE&state=DROPPED", status: 400, code: "duplicate_parameter", field: "state"},
		{name: "day databases, made-up cursor", method: "GET", path: "/admin/day-dbs?cursor=MTIz", status: 400, code: "invalid_cursor", field: "cursor"},
		{name: "day databases, too many", method: "GET", path: "/admin/day-dbs?limit=100000", status: 400, code: "invalid_limit", field: "limit"},
		{name: "explain no day database", method: "GET", path: "/admin/day-dbs/_users", status: 400, code: "invalid_day_db", field: "dbName"},
		{name: "explain core", method: "GET", path: "/admin/day-dbs/" + s.env + "_acme_north_core", status: 400, code: "invalid_day_db", field: "dbName"},
		{name: "explain another environment's", method: "GET", path: "/admin/day-dbs/prod_acme_north_daily_20261101", status: 400, code: "invalid_day_db", field: "dbName"},
		{name: "explain an unknown one", method: "GET", path: "/admin/day-dbs/" + s.env + "_acme_north_daily_20200101", status: 404, code: "unknown_day_db", field: "dbName"},
		{name: "hold without a reason", method: "PUT", path: day + "/hold", body: `{}`, status: 400, code: "reason_required", field: "reason"},
		{name: "hold an unknown one", method: "PUT", path: "/admin/day-dbs/" + s.env + "_acme_north_daily_20200101/hold", body: `{"reason":"audit"}`, status: 404, code: "unknown_day_db", field: "dbName"},
		{name: "waive without a reason", method: "PUT", path: day + "/devices/till-3/waiver", body: `{}`, status: 400, code: "reason_required", field: "reason"},
		{name: "waive what is no device", method: "PUT", path: day + "/devices/till%203/waiver", body: `{"reason":"audit"}`, status: 400, code: "invalid_id", field: "deviceId"},
		{name: "waive one that has said nothing", method: "PUT", path: day + "/devices/till-3/waiver", body: `{"reason":"audit"}`, status: 404, code: "no_report", field: "deviceId"},
		{name: "release an unknown one", method: "DELETE", path: "/admin/day-dbs/" + s.env + "_acme_north_daily_20200101/hold", status: 404, code: "unknown_day_db", field: "dbName"},
		{name: "restore without a reason", method: "POST", path: day + "/restore", status: 400, code: "reason_required", field: "reason"},
		{name: "restore what is there", method: "POST", path: day + "/restore", body: `{"reason":"audit"}`, status: 409, code: "not_dropped", field: "dbName"},
		{name: "proof of what has none", method: "GET", path: day + "/proof", status: 409, code: "no_proof", field: "dbName"},

		{name: "flags that contradict", method: "PUT", path: "/admin/flags/acme", body: `{"rollingDb":false,"rollingDbDrop":true}`, status: 422, code: "drop_needs_rolling", field: "rollingDbDrop"},
		{name: "drop alone", method: "PUT", path: "/admin/flags/acme", body: `{"rollingDbDrop":true}`, status: 422, code: "drop_needs_rolling", field: "rollingDbDrop"},
		{name: "no flag", method: "PUT", path: "/admin/flags/acme", body: `{}`, status: 400, code: "field_required", field: "rollingDb"},
		{name: "a flag that nobody sets", method: "PUT", path: "/admin/flags/acme", body: `{"rollingDb":true,"deviceRouted":true}`, status: 400, code: "unknown_field", field: "deviceRouted"},
		{name: "flag as a number", method: "PUT", path: "/admin/flags/acme", body: `{"rollingDb":1}`, status: 400, code: "invalid_field", field: "rollingDb"},
		{name: "flags of nobody", method: "PUT", path: "/admin/flags/acmee", body: `{"rollingDb":true}`, status: 404, code: "unknown_company", field: "companyId"},
		{name: "flags of nobody, read", method: "GET", path: "/admin/flags/acmee", status: 404, code: "unknown_company", field: "companyId"},
		{name: "flags of a malformed company", method: "GET", path: "/admin/flags/acme_1", status: 400, code: "invalid_id", field: "companyId"},

		{name: "restaurant with an underscore", method: "PUT", path: "/admin/restaurants/acme/north_2", body: `{}`, status: 400, code: "invalid_id", field: "restaurantId"},
		{name: "company in capitals", method: "PUT", path: "/admin/restaurants/Acme/north", body: `{}`, status: 400, code: "invalid_id", field: "companyId"},
		{name: "restaurant with a slash", method: "PUT", path: "/admin/restaurants/acme/no%2Frth", body: `{}`, status: 400, code: "invalid_id", field: "restaurantId"},
		{name: "unknown zone", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"timezone":"America/Nowhere"}`, status: 400, code: "invalid_timezone", field: "timezone"},
		{name: "zone of the process", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"timezone":"Local"}`, status: 400, code: "invalid_timezone", field: "timezone"},
		{name: "no zone", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"timezone":""}`, status: 400, code: "invalid_timezone", field: "timezone"},
		{name: "zone that is a path", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"timezone":"../etc/passwd"}`, status: 400, code: "invalid_timezone", field: "timezone"},
		{name: "legacy database that CouchDB refuses", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"legacyDb":"Tables"}`, status: 400, code: "invalid_legacy_db", field: "legacyDb"},
		{name: "legacy database that rolls", method: "PUT", path: "/admin/restaurants/acme/south", body: `{"legacyDb":"prod_acme_south_daily_20261101"}`, status: 400, code: "invalid_legacy_db", field: "legacyDb"},
		{name: "restaurants, misspelt parameter", method: "GET", path: "/admin/restaurants?company=acme", status: 400, code: "unknown_parameter", field: "company"},

		{name: "unknown route", method: "GET", path: "/admin/day-db", status: 404, code: "not_found"},
		{name: "unknown method", method: "PATCH", path: "/admin/flags/acme", status: 405, code: "method_not_allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := s.do(c.method, c.path, destroyer, c.body, c.header...)
			var p api.Problem
			dec := json.NewDecoder(strings.NewReader(string(got.body)))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&p); err != nil {
				t.Fatalf("%d %s: %v", got.status, got.body, err)
			}
			if got.status != c.status || p.Status != c.status || p.Code != c.code || p.Field != c.field {
				t.Errorf("answer is %d %s", got.status, got.body)
			}
			if p.Detail == "" || p.Title != http.StatusText(c.status) {
				t.Errorf("answer does not say what is wrong: %s", got.body)
			}
			if got.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("answer is %s", got.header.Get("Content-Type"))
			}
		})
	}
	if after := s.dump(); after != before {
		t.Errorf("bad requests changed\n%s\nto\n%s", before, after)
	}
}

// TestRolesOfRoutes holds every route against every role.
func TestRolesOfRoutes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	close(s.gate)
	day := "/admin/day-dbs/" + s.day
	tokens := []struct{ name, token string }{
		{"nobody", ""},
		{"a stranger", "some-token-of-nobody-at-all"},
		{"viewer", viewer},
		{"operator", operator},
		{"destroyer", destroyer},
	}
	const nobody, lowViewer, lowOperator, lowDestroyer = 0, 2, 3, 4
	for _, c := range []struct {
		method, path, body string
		lowest             int
	}{
		{"GET", "/healthz", "", nobody},
		{"GET", "/readyz", "", nobody},
		{"GET", "/metrics", "", nobody},
		{"GET", "/admin/crons", "", lowViewer},
		{"POST", "/admin/crons/rolling-db-rotate/run", `{"wait":true}`, lowOperator},
		{"POST", "/admin/crons/rolling-db-drop-eval/run", `{"wait":true}`, lowDestroyer},
		{"POST", "/admin/crons/rolling-db-drop-eval/run", `{"wait":true,"dryRun":true}`, lowOperator},
		{"POST", "/admin/crons/slow/pause", `{"reason":"audit"}`, lowOperator},
		{"POST", "/admin/crons/slow/resume", "", lowOperator},
		{"POST", "/admin/crons/rolling-db-drop-eval/pause", `{"reason":"audit"}`, lowOperator},
		{"POST", "/admin/crons/rolling-db-drop-eval/resume", "", lowDestroyer},
		{"GET", "/admin/runs", "", lowViewer},
		{"GET", "/admin/runs/1", "", lowViewer},
		{"GET", "/admin/day-dbs", "", lowViewer},
		{"GET", day, "", lowViewer},
		{"GET", day + "/proof", "", lowViewer},
		{"PUT", day + "/hold", `{"reason":"audit"}`, lowOperator},
		{"DELETE", day + "/hold", "", lowDestroyer},
		{"PUT", day + "/devices/till-3/waiver", `{"reason":"drowned"}`, lowDestroyer},
		{"DELETE", day + "/devices/till-3/waiver", "", lowOperator},
		{"POST", day + "/restore", `{"reason":"audit"}`, lowOperator},
		{"GET", "/admin/flags/acme", "", lowViewer},
		{"PUT", "/admin/flags/acme", `{"rollingDb":true}`, lowOperator},
		{"PUT", "/admin/flags/acme", `{"rollingDb":true,"rollingDbDrop":true}`, lowDestroyer},
		{"PUT", "/admin/flags/acme", `{"rollingDb":true,"rollingDbDrop":false}`, lowOperator},
		{"GET", "/admin/restaurants", "", lowViewer},
		{"PUT", "/admin/restaurants/acme/south", `{}`, lowOperator},
		{"POST", "/admin/device-tokens", `{}`, lowOperator},
		{"DELETE", "/admin/device-tokens/acme/north", "", lowOperator},
		{"DELETE", "/admin/device-tokens/acme/north/till-1", "", lowOperator},
		{"GET", "/admin/doctor", "", lowViewer},
		{"GET", "/admin/continuity", "", lowViewer},
		{"GET", "/admin/continuity/commands", "", lowViewer},
		{"POST", "/admin/continuity/commands/4f6f2b1e-0d3c-4a57-9b1e-8d6a5c4b3a21/redrive", `{"reason":"audit"}`, lowOperator},
		{"POST", "/admin/continuity/commands/4f6f2b1e-0d3c-4a57-9b1e-8d6a5c4b3a21/skip", `{"reason":"audit"}`, lowDestroyer},
		{"POST", "/admin/continuity/force-queue", `{"epoch":1,"reason":"audit"}`, lowDestroyer},
		{"POST", "/admin/continuity/force-direct", `{"epoch":1,"reason":"audit"}`, lowDestroyer},
		{"GET", "/admin/nowhere", "", lowViewer},
	} {
		for rank, who := range tokens {
			got := s.do(c.method, c.path, who.token, c.body)
			want := 0
			switch {
			case c.lowest != nobody && rank < lowViewer:
				want = http.StatusUnauthorized
			case rank < c.lowest:
				want = http.StatusForbidden
			}
			refused := got.status == http.StatusUnauthorized || got.status == http.StatusForbidden
			if want != 0 && got.status != want || want == 0 && refused || got.status >= 500 {
				t.Errorf("%s %s %s by %s: %d %s", c.method, c.path, c.body, who.name, got.status, got.body)
			}
			if want != 0 {
				var p api.Problem
				got.into(t, &p)
				if p.Detail == "" || strings.Contains(p.Detail, "some-token") {
					t.Errorf("%s %s by %s: %s", c.method, c.path, who.name, got.body)
				}
			}
		}
	}
	if strings.Contains(s.log.String(), "token-") {
		t.Error("a token is in the log")
	}
}

func TestParseTokens(t *testing.T) {
	t.Parallel()
	if _, err := api.ParseTokens("ana=viewer:0123456789abcdef, ben=operator:0123456789:=abcdef"); err != nil {
		t.Error(err)
	}
	for name, list := range map[string]string{
		"nothing":         "",
		"no role":         "ana=0123456789abcdef",
		"no actor":        "=viewer:0123456789abcdef",
		"unknown role":    "ana=admin:0123456789abcdef",
		"short":           "ana=viewer:0123456789abcde",
		"same token":      "ana=viewer:0123456789abcdef,ben=operator:0123456789abcdef",
		"same actor":      "ana=viewer:0123456789abcdef,ana=operator:fedcba9876543210",
		"a stray comma":   "ana=viewer:0123456789abcdef,",
		"an actor apart":  "a b=viewer:0123456789abcdef",
		"a forged header": "ana\n=viewer:0123456789abcdef",
	} {
		_, err := api.ParseTokens(list)
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "0123456789") {
			t.Errorf("%s: %v repeats the token", name, err)
		}
	}
}
