package edge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// TestCommandToPrimary carries id, epoch and token, and everything of the command.
func TestCommandToPrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := uuid.NewString()
	body := `{"idempotencyKey":"k-1","commandType":"order.create","aggregateType":"order","aggregateId":"o-1",
		"payload":{"total":1.50,"n":12345678901234567890},"occurredAt":"2026-11-30T12:00:00.123456789-03:00","expectedVersion":0}`
	a := w.ask(t, "POST", "/v1/commands", body, "X-Command-Id", id)
	if a.Code != http.StatusOK || a.body["applied"] != "primary" || a.body["pendingSync"] != false || a.body["deduplicated"] != false ||
		a.body["commandId"] != id || fmt.Sprint(a.body["result"]) != "map[version:1]" || a.Header().Get("X-Command-Id") != id {
		t.Fatalf("%s", a)
	}
	got := w.primary.applied()["k-1"]
	at := time.Date(2026, 11, 30, 15, 0, 0, 123456789, time.UTC)
	if string(got.Payload) != `{"total":1.50,"n":12345678901234567890}` || got.OccurredAt == nil || !got.OccurredAt.Equal(at) ||
		got.ExpectedVersion == nil || *got.ExpectedVersion != 0 || got.CommandID.String() != id {
		t.Errorf("%+v", got)
	}
	last := w.primary.seen[len(w.primary.seen)-1]
	if last.Header.Get("X-Continuity-Epoch") != "1" || last.Header.Get("X-Command-Id") != id {
		t.Errorf("%v", last.Header)
	}
	if !strings.Contains(w.logged.String(), "command_id="+id) {
		t.Errorf("the log does not name the command:\n%s", w.logged)
	}

	again := w.ask(t, "POST", "/v1/commands", body)
	if again.Code != http.StatusOK || again.body["deduplicated"] != true || again.body["commandId"] != id || again.Header().Get("X-Command-Id") != id {
		t.Errorf("again: %s", again)
	}
}

func TestCommandToQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.primary.becomes(badGateway)
	id := uuid.NewString()
	a := w.ask(t, "POST", "/v1/commands", commandBody("k-1", "order.create"), "X-Command-Id", id)
	if a.Code != http.StatusAccepted || a.body["applied"] != "queued" || a.body["pendingSync"] != true ||
		a.body["deduplicated"] != false || a.body["commandId"] != id || a.body["status"] != "pending" {
		t.Fatalf("%s", a)
	}
	again := w.ask(t, "POST", "/v1/commands", commandBody("k-1", "order.create"))
	if again.Code != http.StatusAccepted || again.body["deduplicated"] != true || again.body["commandId"] != id || len(w.hosted.queued()) != 1 {
		t.Errorf("again: %s", again)
	}
	for status, pending := range map[contracts.CommandStatus]bool{
		contracts.CommandPending: true, contracts.CommandClaimed: true, contracts.CommandAcked: false, contracts.CommandDead: false,
	} {
		w.hosted.mu.Lock()
		receipt := w.hosted.receipts["k-1"]
		receipt.Status = status
		w.hosted.receipts["k-1"] = receipt
		w.hosted.mu.Unlock()
		if a := w.ask(t, "POST", "/v1/commands", commandBody("k-1", "order.create")); a.body["pendingSync"] != pending || a.body["status"] != string(status) {
			t.Errorf("%s: %s", status, a)
		}
	}
}

// TestGoodCommands at the limits.
func TestGoodCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, body := range map[string]string{
		"a long key":                   strings.Replace(commandBody("k-1", "order.create"), "k-1", strings.Repeat("k", 256), 1),
		"the largest payload":          strings.Replace(commandBody("k-2", "order.create"), `{"total":"12.00"}`, `"`+strings.Repeat("x", contracts.MaxCommandPayloadBytes-2)+`"`, 1),
		"a payload as deep as may be":  strings.Replace(commandBody("k-3", "order.create"), `{"total":"12.00"}`, strings.Repeat("[", 64)+strings.Repeat("]", 64), 1),
		"null is a payload":            strings.Replace(commandBody("k-4", "order.create"), `{"total":"12.00"}`, "null", 1),
		"braces and escapes in texts":  strings.Replace(commandBody("k-5", "order.create"), `12.00`, strings.Repeat(`[{\"`, 100)+`\\u0000 1e999`, 1),
		"exponents that programs read": strings.Replace(commandBody("k-6", "order.create"), `"12.00"`, "[1e308,1E-308,true,false]", 1),
		"a clock ten minutes ahead":    strings.Replace(commandBody("k-7", "order.create"), `{"idem`, `{"occurredAt":"`+time.Now().Add(10*time.Minute).Format(time.RFC3339)+`","idem`, 1),
		"a clock ten years behind":     strings.Replace(commandBody("k-8", "order.create"), `{"idem`, `{"occurredAt":"2016-01-01T00:00:00Z","idem`, 1),
		"any script":                   strings.Replace(commandBody("k-9", "order.create"), "o-1", "mesa São João 🍷", 1),
	} {
		if a := w.ask(t, "POST", "/v1/commands", body, "Content-Type", "application/json; charset=utf-8"); a.Code != http.StatusOK {
			t.Errorf("%s: %s", name, a)
		}
	}
	if n := len(w.primary.applied()); n != 9 {
		t.Errorf("%d applied", n)
	}
}

// TestSameKeyOtherPayload is refused by the primary and by the queue alike.
func TestSameKeyOtherPayload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := strings.Replace(commandBody("k-1", "order.create"), "12.00", "99.00", 1)
	for _, outage := range []http.HandlerFunc{nil, badGateway} {
		w.primary.becomes(outage)
		if a := w.ask(t, "POST", "/v1/commands", commandBody("k-1", "order.create")); a.Code >= 300 {
			t.Fatalf("%s", a)
		}
		if a := w.ask(t, "POST", "/v1/commands", other); a.Code != 422 || a.body["code"] != "invalid_command" || a.body["field"] != "idempotencyKey" {
			t.Errorf("%s", a)
		}
	}
}

// TestRefusals of what cannot be served, with a code, a hint when to come back,
// and nothing of the inside.
func TestRefusals(t *testing.T) {
	t.Parallel()
	outage := func(w *world) { w.primary.becomes(badGateway) }
	for name, c := range map[string]struct {
		given       func(*world)
		commandType string
		status      int
		code        string
		retry       bool
	}{
		"not essential": {func(w *world) {
			outage(w)
			for range 3 {
				w.router.Observe(context.Background())
			}
		}, "menu.rename", 503, "non_essential_rejected", true},
		"not essential, and the primary failed": {outage, "menu.rename", 503, "primary_failure", true},
		"the queue is gone": {func(w *world) {
			outage(w)
			w.hosted.becomes(fmt.Errorf("dial db.internal: %w", continuity.ErrUnavailable))
		}, "order.create", 503, "queue_failure", true},
		"an older or newer hosted schema": {func(w *world) {
			outage(w)
			w.hosted.becomes(continuity.ErrDrift)
		}, "order.create", 503, "queue_failure", true},
		"sealed": {func(w *world) {
			outage(w)
			w.hosted.set(continuity.Fence{Epoch: 2, Mode: continuity.Sealed})
		}, "order.create", 503, "queue_failure", true},
		"a wrong service token": {func(w *world) {
			w.primary.becomes(func(rw http.ResponseWriter, _ *http.Request) { problem(rw, 401, "unauthorized", 0) })
		}, "order.create", 503, "primary_failure", true},
		"the domain refuses": {func(w *world) {
			w.primary.becomes(func(rw http.ResponseWriter, _ *http.Request) { problem(rw, 409, "version_conflict", 0) })
		}, "order.create", 409, "version_conflict", false},
		"the primary finds it invalid": {func(w *world) {
			w.primary.becomes(func(rw http.ResponseWriter, _ *http.Request) { problem(rw, 422, "invalid_command", 0) })
		}, "order.create", 422, "invalid_command", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.given(w)
			a := w.ask(t, "POST", "/v1/commands", commandBody("k-1", c.commandType))
			if a.Code != c.status || a.body["code"] != c.code || (a.Header().Get("Retry-After") != "") != c.retry {
				t.Errorf("%s, retry after %q", a, a.Header().Get("Retry-After"))
			}
			if text := a.Body.String(); strings.Contains(text, "10.1.2.3") || strings.Contains(text, "db.internal") {
				t.Errorf("it tells of the inside: %s", text)
			}
		})
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.primary.mu.Lock()
	w.primary.reads["orders:acme/centro norte"] = `[]`
	w.primary.mu.Unlock()
	w.hosted.snapshots["order:o-1"] = router.Snapshot{
		Payload:     json.RawMessage(`{"status":"pending"}`),
		PublishedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.FixedZone("", -3*3600)),
		Age:         90 * time.Second,
	}
	if a := w.ask(t, "GET", "/v1/reads/order:o-1", ""); a.Code != 200 ||
		fmt.Sprint(a.body) != "map[ageSeconds:<nil> data:map[status:paid] mode:primary snapshotAt:<nil> stale:false]" {
		t.Errorf("fresh: %s", a)
	}
	for _, key := range []string{"orders:acme/centro%20norte", "orders:acme%2Fcentro%20norte", "orders%3aacme%2fcentro%20norte"} {
		if a := w.ask(t, "GET", "/v1/reads/"+key, ""); a.Code != 200 {
			t.Errorf("%s: %s", key, a)
		}
	}
	if a := w.ask(t, "GET", "/v1/reads/order:o-404", ""); a.Code != 404 || a.body["code"] != "not_found" {
		t.Errorf("nothing: %s", a)
	}
	for _, key := range []string{"", "a//b", "a/../b", ".", "a/", "%00", strings.Repeat("x", 257), "%ff"} {
		if a := w.ask(t, "GET", "/v1/reads/"+key, ""); a.Code != 400 || a.body["code"] != "invalid_command" {
			t.Errorf("key %q: %s", key, a)
		}
	}
	w.primary.becomes(badGateway)
	if a := w.ask(t, "GET", "/v1/reads/order:o-1", ""); a.Code != 200 ||
		fmt.Sprint(a.body) != "map[ageSeconds:90 data:map[status:pending] mode:degraded snapshotAt:2026-11-30T15:00:00Z stale:true]" {
		t.Errorf("stale: %s", a)
	}
	if a := w.ask(t, "GET", "/v1/reads/order:o-404", ""); a.Code != 503 || a.body["code"] != "snapshot_miss" {
		t.Errorf("no snapshot: %s", a)
	}
	w.hosted.becomes(continuity.ErrUnavailable)
	if a := w.ask(t, "GET", "/v1/reads/order:o-1", ""); a.Code != 503 || a.body["code"] != "snapshot_failure" {
		t.Errorf("no snapshots: %s", a)
	}
}

// TestHungUpClient is logged as one, and not answered.
func TestHungUpClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	arrived := make(chan struct{})
	w.primary.becomes(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	go func() {
		<-arrived
		cancel(errors.New("hung up"))
	}()
	req := httptest.NewRequestWithContext(ctx, "GET", "/v1/reads/order:o-1", nil)
	req.Header.Set("Authorization", "Bearer "+callerToken)
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, req)
	if rec.Body.Len() != 0 || !strings.Contains(w.logged.String(), "status=499") {
		t.Errorf("%q\n%s", rec.Body, w.logged)
	}
}
