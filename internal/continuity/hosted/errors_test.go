package hosted

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
)

// TestCodes is the table from what the other side says to what it means.
func TestCodes(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"RC002":    continuity.ErrNotOpen,
		"RC003":    continuity.ErrSealed,
		"RC004":    continuity.ErrKeyReused,
		"RC005":    continuity.ErrInvalid,
		"RC006":    continuity.ErrPayloadTooLarge,
		"RC007":    continuity.ErrLostClaim,
		"RC008":    continuity.ErrNotYet,
		"RC009":    continuity.ErrUnknownCommand,
		"RC010":    continuity.ErrDrift,
		"08006":    continuity.ErrOutcomeUnknown,
		"08P01":    continuity.ErrOutcomeUnknown,
		"22P02":    continuity.ErrInvalid,
		"22P05":    continuity.ErrInvalid,
		"23514":    continuity.ErrInvalid,
		"25006":    continuity.ErrUnavailable, // Read-only, as a project that is full.
		"28P01":    ErrDenied,
		"40001":    continuity.ErrUnavailable,
		"40003":    continuity.ErrOutcomeUnknown,
		"40P01":    continuity.ErrUnavailable,
		"42501":    ErrDenied,
		"42883":    continuity.ErrDrift,
		"42P01":    continuity.ErrDrift,
		"53300":    continuity.ErrUnavailable,
		"54001":    continuity.ErrInvalid,
		"55P03":    continuity.ErrUnavailable,
		"57014":    continuity.ErrUnavailable,
		"57P01":    continuity.ErrOutcomeUnknown,
		"57P03":    continuity.ErrUnavailable,
		"PGRST000": continuity.ErrUnavailable,
		"PGRST001": continuity.ErrUnavailable,
		"PGRST002": continuity.ErrUnavailable,
		"PGRST003": continuity.ErrUnavailable,
		"PGRST102": continuity.ErrDrift,
		"PGRST106": continuity.ErrDrift,
		"PGRST202": continuity.ErrDrift,
		"PGRST203": continuity.ErrDrift,
		"PGRST301": ErrDenied,
		"PGRST303": ErrDenied,
		"XX000":    continuity.ErrUnavailable,
	} {
		if err := refusal("f", code, "detail"); !errors.Is(err, want) || countSentinels(err) != 1 {
			t.Errorf("%s is %v, want %v", code, err, want)
		}
	}
	stale := (*continuity.StaleEpochError)(nil)
	if err := refusal("f", "RC001", "17"); !errors.As(err, &stale) || stale.Current != 17 {
		t.Errorf("RC001 is %v", err)
	}
	if err := refusal("f", "RC001", ""); !errors.Is(err, continuity.ErrDrift) {
		t.Errorf("RC001 without an epoch is %v", err)
	}
}

func TestStatusesWithoutACode(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{
		http.StatusFound:                 continuity.ErrUnavailable,
		http.StatusUnauthorized:          ErrDenied,
		http.StatusForbidden:             ErrDenied,
		http.StatusNotFound:              continuity.ErrUnavailable,
		http.StatusRequestTimeout:        continuity.ErrOutcomeUnknown,
		http.StatusRequestEntityTooLarge: continuity.ErrPayloadTooLarge,
		http.StatusTooManyRequests:       continuity.ErrUnavailable,
		http.StatusInternalServerError:   continuity.ErrOutcomeUnknown,
		http.StatusBadGateway:            continuity.ErrOutcomeUnknown,
		http.StatusServiceUnavailable:    continuity.ErrOutcomeUnknown,
		http.StatusGatewayTimeout:        continuity.ErrOutcomeUnknown,
		524:                              continuity.ErrOutcomeUnknown,
	} {
		for _, body := range []string{"", "<html>", `{"message": "no"}`, `{"code": 12}`, `{"code": "unexpected_failure"}`, `null`} {
			if err := answeredError("f", status, []byte(body)); !errors.Is(err, want) || countSentinels(err) != 1 {
				t.Errorf("%d %s is %v, want %v", status, body, err, want)
			}
		}
	}
	// Whatever the status, the code decides.
	for _, status := range []int{400, 401, 404, 500, 503} {
		for code, want := range map[string]error{"57014": continuity.ErrUnavailable, "PGRST202": continuity.ErrDrift} {
			body := fmt.Sprintf(`{"code": %q, "details": {"not": "text"}, "message": "m"}`, code)
			if err := answeredError("f", status, []byte(body)); !errors.Is(err, want) {
				t.Errorf("%d %s is %v, want %v", status, code, err, want)
			}
		}
	}
}

// countSentinels counts what a caller could take an error for; ErrDenied is an ErrUnavailable.
func countSentinels(err error) int {
	n := 0
	for _, sentinel := range []error{
		continuity.ErrUnavailable, continuity.ErrOutcomeUnknown, continuity.ErrDrift, continuity.ErrKeyReused,
		continuity.ErrInvalid, continuity.ErrPayloadTooLarge, continuity.ErrLostClaim, continuity.ErrSealed,
		continuity.ErrNotOpen, continuity.ErrNotYet, continuity.ErrUnknownCommand,
	} {
		if errors.Is(err, sentinel) {
			n++
		}
	}
	return n
}

// TestClientsWaitLongerThanTheServer: one that gives up first does not know the outcome of a call that the server ends.
func TestClientsWaitLongerThanTheServer(t *testing.T) {
	t.Parallel()
	p, err := NewPostgREST("https://x.supabase.co", "sb_secret_a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	transport, ok := p.client.Transport.(*http.Transport)
	if !ok {
		t.Fatal("another kind of transport")
	}
	if callTimeout <= statementTimeout || transport.ResponseHeaderTimeout <= statementTimeout ||
		p.client.Timeout <= connectTimeout+statementTimeout {
		t.Errorf("the server takes %v, the clients wait %v, %v and %v in all",
			statementTimeout, callTimeout, transport.ResponseHeaderTimeout, p.client.Timeout)
	}
}

func TestDetailIsOnlyOurOwn(t *testing.T) {
	t.Parallel()
	for code, kept := range map[string]bool{"RC002": true, "22P02": false, "23505": false, "PGRST202": false} {
		r := (*Refusal)(nil)
		if err := refusal("f", code, "secret"); !errors.As(err, &r) || (r.Detail == "secret") != kept {
			t.Errorf("%s keeps %+v", code, r)
		}
	}
}

func TestKeysAndURLs(t *testing.T) {
	t.Parallel()
	const (
		service = "eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoic2VydmljZV9yb2xlIn0.c2ln"
		anon    = "eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiJ9.c2ln"
	)
	for _, c := range []struct {
		url, key string
		ok       bool
	}{
		{"https://x.supabase.co", "sb_secret_abc", true},
		{"https://x.supabase.co/", service, true},
		{"http://127.0.0.1:54321", service, true},
		{"http://localhost:54321", service, true},
		{"http://x.supabase.co", service, false},
		{"x.supabase.co", service, false},
		{"", service, false},
		{"ftp://x.supabase.co", service, false},
		{"https://user@x.supabase.co", service, false},
		{"https://x.supabase.co?a=b", service, false},
		{"https://x.supabase.co", "sb_publishable_abc", false},
		{"https://x.supabase.co", anon, false},
		{"https://x.supabase.co", "", false},
		{"https://x.supabase.co", "a.b.c", false},
		{"https://x.supabase.co", "eyJhbGciOiJIUzI1NiJ9.bm90IEpTT04.c2ln", false},
	} {
		p, err := NewPostgREST(c.url, c.key)
		if (err == nil) != c.ok || (err != nil && !errors.Is(err, ErrSettings)) {
			t.Errorf("%s %s: %v", c.url, c.key, err)
		}
		if err == nil && p.base != trimmed(c.url)+"/rest/v1/rpc/" {
			t.Errorf("%s leads to %s", c.url, p.base)
		}
	}
}

func trimmed(url string) string {
	if url[len(url)-1] == '/' {
		return url[:len(url)-1]
	}
	return url
}
