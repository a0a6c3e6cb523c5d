package edgeapp_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	callerToken  = "token-of-the-site-123"
	serviceToken = "token-of-the-edge-456"
	mpSecret     = "mercadopago-secret-789"
	c6Token      = "c6-token-0123456789"
	botToken     = "123:bot-secret-token"

	// patience bounds what a test waits for.
	patience = 30 * time.Second
)

// shop is a primary, a hosted database and a chat, all real but the chat.
type shop struct {
	*testing.T
	pool    *pgxpool.Pool
	primary *primary.Primary
	drainer *drain.Drainer
	fence   *hosted.Fence
	queue   *hosted.Queue
	// hostedDSN leads to the hosted database.
	hostedDSN string
	api       *httptest.Server
	// down cuts connections to the primary, and slow holds commands back.
	down atomic.Bool
	slow atomic.Pointer[gate]
	chat *httptest.Server
	mu   sync.Mutex
	told []string
}

// gate holds back what arrives until it is open.
type gate struct {
	once          sync.Once
	arrived, open chan struct{}
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{T: t, pool: pgtest.New(t), hostedDSN: pgtest.HostedDSN(t)}
	transport := hosted.NewPostgres(pgtest.Open(t, s.hostedDSN))
	s.fence, s.queue = hosted.NewFence(transport), hosted.NewQueue(transport)
	var err error
	if s.primary, err = primary.New(primary.Options{Pool: s.pool, Lease: time.Hour}); err != nil {
		t.Fatal(err)
	}
	handler, err := primary.NewHandler(primary.HandlerOptions{Primary: s.primary, Tokens: []string{serviceToken}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.api = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			panic(http.ErrAbortHandler) // The connection is cut.
		}
		if slow := s.slow.Load(); slow != nil && r.Method == http.MethodPost {
			slow.once.Do(func() { close(slow.arrived) })
			<-slow.open
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.api.Close)
	s.chat = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, strings.ReplaceAll(m.Text, "\n", " "))
		io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(s.chat.Close)
	if s.drainer, err = drain.New(drain.Options{
		Queue: s.queue, Fence: s.fence, Primary: s.primary,
		Leases:  fence.New(s.pool, "test", time.Minute),
		Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		Ready: func() bool { return handler.Heard(patience) },
	}); err != nil {
		t.Fatal(err)
	}
	s.drain() // Which reads the fence: the primary is closed until then.
	return s
}

func (s *shop) drain() drain.Result {
	s.Helper()
	r, err := s.drainer.RunOnce(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return r
}

func (s *shop) count(sql string) (n int) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), sql).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

// edge is one that runs, and what it logs.
type runningEdge struct {
	*shop
	app *edgeapp.App
	log *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (s *shop) edge(phase edge.Phase, change ...func(*edgeapp.Options)) *runningEdge {
	s.Helper()
	e := &runningEdge{shop: s, log: &logBuffer{}}
	opts := edgeapp.Options{
		Phase:             phase,
		ListenAddr:        "127.0.0.1:0",
		Tokens:            "site=" + callerToken,
		PrimaryURL:        s.api.URL,
		PrimaryToken:      serviceToken,
		DatabaseURL:       s.hostedDSN,
		Instance:          "edge-1",
		MercadoPagoSecret: mpSecret,
		C6Token:           c6Token,
		Receivers:         alert.Receivers{TelegramToken: botToken, TelegramChat: "1", TelegramAPI: s.chat.URL},
		OpenWindow:        100 * time.Millisecond,
		// An outage here cuts connections; a machine that is busy is none.
		ReadTimeout:   patience,
		WriteTimeout:  patience,
		WatchInterval: 20 * time.Millisecond,
		Version:       "test",
		Logger:        slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&opts)
	}
	app, err := edgeapp.New(opts)
	if err != nil {
		s.Fatal(err)
	}
	if err := app.Start(s.Context()); err != nil {
		s.Fatal(err)
	}
	e.app = app
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
		defer cancel()
		if err := app.Stop(ctx); err != nil {
			s.Errorf("stop: %v", err)
		}
		for _, secret := range []string{callerToken, serviceToken, mpSecret, c6Token, botToken, "no onions", "12990.00"} {
			if strings.Contains(e.log.String(), secret) {
				s.Errorf("the log holds %q:\n%s", secret, e.log)
			}
		}
	})
	return e
}

// ask sends a request, with headers in pairs, and returns status and body.
func (e *runningEdge) ask(method, path, body string, headers ...string) (int, map[string]any) {
	e.Helper()
	return e.askAt("http://"+e.app.Addr(), method, path, body, headers...)
}

// askAt asks another than the edge.
func (e *runningEdge) askAt(base, method, path, body string, headers ...string) (int, map[string]any) {
	e.Helper()
	req, err := http.NewRequestWithContext(e.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+callerToken)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	answer := make(map[string]any)
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		e.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, answer
}

func (e *runningEdge) command(key, kind, order, payload string) (int, map[string]any) {
	e.Helper()
	return e.ask("POST", "/v1/commands", fmt.Sprintf(
		`{"idempotencyKey":%q,"commandType":%q,"aggregateType":"order","aggregateId":%q,"payload":%s}`, key, kind, order, payload))
}

// until asks for the health until it is as wanted.
func (e *runningEdge) until(what string, wanted func(health map[string]any) bool) {
	e.Helper()
	ctx, cancel := context.WithTimeoutCause(e.Context(), patience, errors.New(what))
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		_, health := e.ask("GET", "/api/_health", "")
		if wanted(health) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			log := e.log.String()
			e.Fatalf("not in time: %s; health %v\n%s", what, health, log[max(0, len(log)-4000):])
		}
	}
}

func (e *runningEdge) untilState(state string) {
	e.Helper()
	e.until("state "+state, func(health map[string]any) bool { return health["circuit_state"] == state })
}

const ofNorth = `{"companyId":"acme","restaurantId":"north","total":12990,"note":"no onions"}`

// paid is a webhook of Mercado Pago, with its signature.
func paid(id, order string) (path, body string, headers []string) {
	mac := hmac.New(sha256.New, []byte(mpSecret))
	fmt.Fprintf(mac, "id:%s;request-id:r-1;ts:1742505638683;", id)
	return "/v1/webhooks/mercadopago?data.id=" + id,
		fmt.Sprintf(`{"type":"payment","data":{"id":%q,"status":"approved","external_reference":%q,"total_paid_amount":"12990.00"}}`, id, order),
		[]string{"X-Request-Id", "r-1", "X-Signature", "ts=1742505638683,v1=" + hex.EncodeToString(mac.Sum(nil))}
}

// TestOutage goes through a whole one: orders and payments before, while and
// after the primary is away, each with one effect, and people who hear of it.
func TestOutage(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	e := s.edge(edge.Everything)
	taken := func(want string, status int, answer map[string]any) {
		t.Helper()
		if answer["applied"] != want {
			t.Fatalf("%d %v, want %s", status, answer, want)
		}
	}
	status, answer := e.command("k-1", "order.create", "o-1", ofNorth)
	taken("primary", status, answer)
	if status, answer := e.ask("GET", "/v1/reads/order:o-1", ""); status != 200 || answer["stale"] != false {
		t.Errorf("%d %v", status, answer)
	}

	s.down.Store(true)
	status, answer = e.command("k-2", "order.create", "o-2", ofNorth)
	taken("queued", status, answer)
	again, deduplicated := e.command("k-2", "order.create", "o-2", ofNorth)
	taken("queued", again, deduplicated)
	if deduplicated["deduplicated"] != true || deduplicated["commandId"] != answer["commandId"] {
		t.Errorf("again: %v", deduplicated)
	}
	path, body, headers := paid("123", "o-1")
	status, answer = e.ask("POST", path, body, headers...)
	taken("queued", status, answer)
	e.untilState("DEGRADED")
	if status, answer := e.command("k-3", "menu.rename", "m-1", `{}`); status != 503 || answer["code"] != "non_essential_rejected" {
		t.Errorf("not essential: %d %v", status, answer)
	}
	if status, answer := e.ask("GET", "/v1/reads/order:o-1", ""); status != 503 || answer["code"] != "snapshot_miss" {
		t.Errorf("read: %d %v", status, answer)
	}
	e.until("2 wait", func(health map[string]any) bool {
		return health["pending_count"] == float64(2) && health["fence_mode"] == "QUEUE"
	})
	e.untilTold("edge-1: primary_degraded") // Nobody hears the end of what he was not told.

	s.down.Store(false)
	e.untilState("RECOVERING")
	// The primary answers, and nothing is drained: commands still queue.
	status, answer = e.command("k-4", "order.create", "o-4", ofNorth)
	taken("queued", status, answer)
	// The edge has to reach the primary once more, since that has heard of the queue.
	var r drain.Result
	e.until("a cutover", func(map[string]any) bool {
		r = s.drain()
		return r.Cutover != nil
	})
	if r.Cutover.Accepted != 3 || r.Cutover.Applied != 3 {
		t.Fatalf("%+v", r)
	}
	e.untilState("PRIMARY")
	status, answer = e.command("k-5", "order.create", "o-5", ofNorth)
	taken("primary", status, answer)
	// Whatever is sent again has had its effect.
	for _, c := range []struct{ key, order string }{{"k-1", "o-1"}, {"k-2", "o-2"}, {"k-4", "o-4"}, {"k-5", "o-5"}} {
		if status, answer := e.command(c.key, "order.create", c.order, ofNorth); status >= 300 || answer["deduplicated"] != true {
			t.Errorf("%s again: %d %v", c.key, status, answer)
		}
	}
	if status, answer = e.ask("POST", path, body, headers...); status >= 300 || answer["deduplicated"] != true {
		t.Errorf("the payment again: %d %v", status, answer)
	}
	if n := s.count(`select count(*) from continuity_inbox`); n != 5 {
		t.Errorf("%d effects", n)
	}
	if n := s.count(`select count(*) from orders where order_id = 'o-1' and status = 'paid'`); n != 1 {
		t.Error("the order is not paid")
	}
	e.untilTold("edge-1: primary_degraded", "edge-1: over: primary_degraded")
}

// untilTold waits for messages that begin so, in this order, and no others.
func (e *runningEdge) untilTold(want ...string) {
	e.Helper()
	e.until(fmt.Sprint("told ", want), func(map[string]any) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.told) != len(want) {
			return false
		}
		for i, prefix := range want {
			if !strings.HasPrefix(e.told[i], prefix) {
				return false
			}
		}
		return true
	})
}

// TestPhases: what each does about a primary that does not answer.
func TestPhases(t *testing.T) {
	t.Parallel()
	for phase := edge.Off; phase <= edge.Everything; phase++ {
		t.Run(fmt.Sprint(int(phase)), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			e := s.edge(phase, func(o *edgeapp.Options) {
				o.OpenWindow = time.Hour
				if !phase.Hosted() {
					o.DatabaseURL = ""
				}
			})
			if status, answer := e.command("k-1", "order.create", "o-1", ofNorth); status != 200 {
				t.Errorf("well: %d %v", status, answer)
			}
			s.down.Store(true)
			if phase.Hosted() {
				e.untilState("DEGRADED")
			}
			status, answer := e.command("k-2", "order.create", "o-2", ofNorth)
			if queued := status == 202; queued != phase.Routes() || !queued && answer["code"] != "primary_failure" {
				t.Errorf("away: %d %v", status, answer)
			}
			if phase.Logs() {
				e.until("a transition is logged", func(map[string]any) bool { return strings.Contains(e.log.String(), "circuit changed") })
			}
			if phase.Alerts() {
				e.untilTold("edge-1: primary_degraded")
			}
			s.down.Store(false)
			// One that looks on asks the primary, whatever it thinks of it.
			if status, answer := e.command("k-3", "order.create", "o-3", ofNorth); !phase.Routes() && status != 200 {
				t.Errorf("well again: %d %v", status, answer)
			}
			if !phase.Logs() && strings.Contains(e.log.String(), "circuit changed") {
				t.Error("it logs transitions")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if !phase.Alerts() && len(s.told) > 0 {
				t.Errorf("told %q", s.told)
			}
			state, err := s.fence.State(t.Context())
			if err != nil || (state.Mode == continuity.Queue) != phase.Routes() {
				t.Errorf("the fence is %s, %v", state.Mode, err)
			}
		})
	}
}
