package edge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

const (
	callerToken  = "token-of-the-site-123"
	serviceToken = "token-of-the-edge-456"
	mpSecret     = "mercadopago-secret-789"
	c6Token      = "c6-token-0123456789"
	mpAccess     = "APP_USR-access-token"
)

// hosted stands for the hosted database, with the rules of the real one.
type hosted struct {
	mu        sync.Mutex
	fence     continuity.Fence
	commands  map[string]continuity.Command
	receipts  map[string]continuity.Receipt
	snapshots map[string]router.Snapshot
	fail      error
	stats     edge.Stats
	beats     []contracts.ReplicationMode
}

func (h *hosted) Enqueue(_ context.Context, cmd continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return continuity.Receipt{}, h.fail
	}
	if first, ok := h.commands[cmd.IdempotencyKey]; ok {
		if string(first.Payload) != string(cmd.Payload) {
			return continuity.Receipt{}, continuity.ErrKeyReused
		}
		receipt := h.receipts[cmd.IdempotencyKey]
		receipt.Deduplicated = true
		return receipt, nil
	}
	switch {
	case epoch != h.fence.Epoch:
		return continuity.Receipt{}, &continuity.StaleEpochError{Current: h.fence.Epoch}
	case h.fence.Mode == continuity.Direct:
		return continuity.Receipt{}, continuity.ErrNotOpen
	case h.fence.Mode == continuity.Sealed:
		return continuity.Receipt{}, continuity.ErrSealed
	}
	h.commands[cmd.IdempotencyKey] = cmd
	receipt := continuity.Receipt{CommandID: cmd.CommandID, Sequence: continuity.Sequence(len(h.commands)), Status: contracts.CommandPending, Epoch: epoch}
	h.receipts[cmd.IdempotencyKey] = receipt
	return receipt, nil
}

func (h *hosted) ReadSnapshot(_ context.Context, key string) (*router.Snapshot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, ok := h.snapshots[key]; ok && h.fail == nil {
		return &s, nil
	}
	return nil, h.fail
}

func (h *hosted) State(context.Context) (continuity.Fence, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fence, h.fail
}

func (h *hosted) OpenEpoch(_ context.Context, expected continuity.Epoch, _, _ string) (continuity.Fence, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return continuity.Fence{}, h.fail
	}
	if expected == h.fence.Epoch && h.fence.Mode == continuity.Direct {
		h.fence = continuity.Fence{Epoch: expected + 1, Mode: continuity.Queue}
	}
	return h.fence, nil
}

func (h *hosted) Reopen(context.Context, continuity.Epoch, string) (continuity.Fence, error) {
	return continuity.Fence{}, continuity.ErrNotYet
}

func (h *hosted) Stats(context.Context) (edge.Stats, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats, h.fail
}

func (h *hosted) Beat(_ context.Context, mode contracts.ReplicationMode) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats = append(h.beats, mode)
	return h.fail
}

func (h *hosted) becomes(fail error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = fail
}

func (h *hosted) set(fence continuity.Fence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fence = fence
}

func (h *hosted) queued() map[string]continuity.Command {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]continuity.Command)
	for key, cmd := range h.commands {
		all[key] = cmd
	}
	return all
}

// primary speaks the internal API of the primary.
type primary struct {
	*httptest.Server
	mu    sync.Mutex
	down  http.HandlerFunc
	inbox map[string]continuity.Command
	seen  []*http.Request
	reads map[string]string
}

func newPrimary(t testing.TB) *primary {
	p := &primary{inbox: make(map[string]continuity.Command), reads: map[string]string{"order:o-1": `{"status":"paid"}`}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *primary) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r)
	if p.down != nil {
		p.down(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+serviceToken {
		problem(w, http.StatusUnauthorized, "unauthorized", 0)
		return
	}
	switch {
	case r.URL.Path == "/internal/health":
		io.WriteString(w, `{"ok":true,"lease_token":1,"db_lag_ms":2,"epoch":1,"mode":"DIRECT"}`)
	case r.URL.Path == "/internal/commands":
		p.command(w, r)
	default:
		data, ok := p.reads[strings.TrimPrefix(r.URL.Path, "/internal/reads/")]
		if !ok {
			problem(w, http.StatusNotFound, "unknown_key", 0)
			return
		}
		fmt.Fprintf(w, `{"data":%s}`, data)
	}
}

func (p *primary) command(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Continuity-Epoch") != "1" {
		problem(w, http.StatusConflict, "stale_epoch", 1)
		return
	}
	var cmd continuity.Command
	if err := json.NewDecoder(r.Body).Decode(&cmd); err != nil || cmd.CommandID.String() != r.Header.Get("X-Command-Id") {
		problem(w, http.StatusUnprocessableEntity, "invalid_command", 0)
		return
	}
	first, known := p.inbox[cmd.IdempotencyKey]
	switch {
	case known && string(first.Payload) != string(cmd.Payload):
		problem(w, http.StatusUnprocessableEntity, "key_reused", 0)
		return
	case !known:
		first = cmd
		p.inbox[cmd.IdempotencyKey] = cmd
	}
	json.NewEncoder(w).Encode(map[string]any{
		"commandId": first.CommandID, "outcome": "applied", "result": map[string]int{"version": 1}, "epoch": 1, "deduplicated": known,
	})
}

func problem(w http.ResponseWriter, status int, code string, epoch int) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "code": code, "detail": "said the primary", "epoch": epoch})
}

func (p *primary) becomes(down http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *primary) applied() map[string]continuity.Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]continuity.Command)
	for key, cmd := range p.inbox {
		all[key] = cmd
	}
	return all
}

// badGateway is what a tunnel says whose other end is gone.
func badGateway(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	io.WriteString(w, "<html>error 1033 at 10.1.2.3</html>")
}

// world is an edge with all that is around it.
type world struct {
	*edge.Edge
	hosted  *hosted
	primary *primary
	router  *router.Router
	watch   *edge.Watch
	logged  *lockedBuffer
	metrics *prometheus.Registry
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t testing.TB, change ...func(*edge.Options)) *world {
	w := &world{
		hosted: &hosted{
			fence:     continuity.Fence{Epoch: 1, Mode: continuity.Direct},
			commands:  make(map[string]continuity.Command),
			receipts:  make(map[string]continuity.Receipt),
			snapshots: make(map[string]router.Snapshot),
		},
		primary: newPrimary(t),
		logged:  &lockedBuffer{},
		metrics: prometheus.NewRegistry(),
	}
	logger := slog.New(slog.NewTextHandler(w.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client, err := edge.NewPrimary(w.primary.URL, serviceToken)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.router = router.New(router.Options{
		Primary:   client,
		Queue:     w.hosted,
		Snapshots: w.hosted,
		Fence:     w.hosted,
		Instance:  "edge-1",
		// A primary that fails here says so; a machine that is busy is no failure, and
		// a test that takes long is none that finds the circuit tried again.
		ReadTimeout:  wait,
		WriteTimeout: wait,
		Breaker:      breaker.Options{Jitter: -1, OpenWindow: time.Hour},
		Metrics:      w.metrics,
		Logger:       logger,
	})
	t.Cleanup(w.router.Close)
	w.watch = edge.NewWatch(edge.WatchOptions{
		Phase:       edge.Everything,
		Router:      w.router,
		Hosted:      w.hosted,
		Transitions: edge.NewTransitions(),
		Metrics:     w.metrics,
		Logger:      logger,
	})
	tokens, err := edge.ParseTokens("site=" + callerToken)
	if err != nil {
		t.Fatal(err)
	}
	opts := edge.Options{
		Phase:       edge.Everything,
		Router:      w.router,
		Tokens:      tokens,
		MercadoPago: edge.NewMercadoPago(edge.MercadoPagoOptions{Secret: mpSecret}),
		C6:          &edge.C6{Token: c6Token},
		Watch:       w.watch,
		Version:     "test",
		Metrics:     w.metrics,
		Logger:      logger,
	}
	for _, c := range change {
		c(&opts)
	}
	w.Edge = edge.New(opts)
	t.Cleanup(func() {
		for _, secret := range []string{callerToken, serviceToken, mpSecret, c6Token, mpAccess, "payer@example.com"} {
			if strings.Contains(w.logged.String(), secret) {
				t.Errorf("the log holds %q:\n%s", secret, w.logged.String())
			}
		}
	})
	return w
}

// answer is what a request was answered.
type answer struct {
	*httptest.ResponseRecorder
	body map[string]any
}

func (a answer) String() string { return fmt.Sprintf("%d %v", a.Code, a.body) }

// ask sends a request with a caller's token, and headers in pairs; an empty value
// takes one away.
func (w *world) ask(t testing.TB, method, target, body string, headers ...string) answer {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+callerToken)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	a := answer{ResponseRecorder: httptest.NewRecorder()}
	w.ServeHTTP(a.ResponseRecorder, req)
	if strings.Contains(a.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(a.Body.Bytes(), &a.body); err != nil {
			t.Errorf("%s: %v", a.Body, err)
		}
	}
	if id, err := uuid.Parse(a.Header().Get("X-Command-Id")); err != nil || id == uuid.Nil {
		t.Errorf("x-command-id %q", a.Header().Get("X-Command-Id"))
	}
	if a.Code >= http.StatusBadRequest {
		if a.Header().Get("Content-Type") != "application/problem+json" || a.body["status"] != float64(a.Code) ||
			a.body["title"] == "" || a.body["detail"] == "" || a.body["code"] == "" {
			t.Errorf("no problem details: %s", a)
		}
	}
	return a
}

func commandBody(key, commandType string) string {
	return fmt.Sprintf(`{"idempotencyKey":%q,"commandType":%q,"aggregateType":"order","aggregateId":"o-1","payload":{"total":"12.00"}}`, key, commandType)
}

// wait bounds what a test waits for.
const wait = 30 * time.Second

var discard = slog.New(slog.DiscardHandler)
