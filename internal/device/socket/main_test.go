package socket_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device/socket"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// restaurantID is the one restaurant of each company of the tests.
const restaurantID = "centro"

// gate gives out tokens and judges them.
type gate struct {
	mu      sync.Mutex
	tokens  map[string]socket.Pass
	revoked map[string]bool
	// expired are tokens whose time has come before their end.
	expired map[socket.Pass]bool
}

func newGate() *gate {
	return &gate{tokens: make(map[string]socket.Pass), revoked: make(map[string]bool), expired: make(map[socket.Pass]bool)}
}

func (g *gate) issue(company, device string, ttl time.Duration) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	token := fmt.Sprintf("token-%d", len(g.tokens))
	g.tokens[token] = socket.Pass{
		Restaurant: daydb.Restaurant{CompanyID: company, RestaurantID: restaurantID},
		DeviceID:   device,
		ExpiresAt:  time.Now().Add(ttl),
	}
	return token
}

func (g *gate) revoke(company, device string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.revoked[company+"/"+device] = true
}

func (g *gate) expire(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expired[g.tokens[token]] = true
}

func (g *gate) Admit(_ context.Context, token string) (socket.Pass, error) {
	g.mu.Lock()
	p, ok := g.tokens[token]
	g.mu.Unlock()
	if !ok {
		return socket.Pass{}, socket.ErrRefused
	}
	_, err := g.Left(p)
	return p, err
}

func (g *gate) Left(p socket.Pass) (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := time.Until(p.ExpiresAt)
	switch {
	case g.revoked[p.CompanyID+"/"+p.DeviceID]:
		return 0, socket.ErrRefused
	case left <= 0, g.expired[p]:
		return 0, socket.ErrExpired
	}
	return left, nil
}

// replica is a server with a listener of its own.
type replica struct {
	*socket.Server
	url string
}

// start begins a replica that ends with the test.
func start(t testing.TB, pool *pgxpool.Pool, tokens socket.Tokens, grace time.Duration) *replica {
	t.Helper()
	server, url := serve(t, tokens, socket.NewLedger(pool), grace)
	ctx, cancel := context.WithCancel(t.Context())
	listening := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() { listen(ctx, t, pool, server, listening) })
	<-listening
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	return &replica{Server: server, url: url}
}

// serve begins a server that nobody tells of changes.
func serve(t testing.TB, tokens socket.Tokens, source socket.Source, grace time.Duration) (server *socket.Server, url string) {
	t.Helper()
	server = socket.New(socket.Options{
		Tokens:  tokens,
		Source:  source,
		Metrics: prometheus.NewRegistry(),
		Logger:  slog.New(slog.DiscardHandler),
		Origins: []string{"https://till.example"},
		Grace:   grace,
	})
	mux := http.NewServeMux()
	mux.Handle("/socket.io/", server)
	web := httptest.NewServer(mux)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Error("close: ", err)
		}
		web.Close()
	})
	return server, web.URL
}

// listen tells the server what the database notifies.
func listen(ctx context.Context, t testing.TB, pool *pgxpool.Pool, server *socket.Server, listening chan<- struct{}) {
	defer close(listening)
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	conn := pooled.Hijack()
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, `listen rollingd_device_plane`); err != nil {
		t.Error(err)
		return
	}
	listening <- struct{}{}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return
		}
		company, restaurant, _ := strings.Cut(n.Payload, "/")
		server.Revoked(company, restaurant)
		server.Changed(company, restaurant)
	}
}

// hand changes what devices are told.
type hand struct {
	pool *pgxpool.Pool
	gate *gate
}

// register enters the restaurant of a company.
func (h hand) register(ctx context.Context, company string) error {
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		return daydb.Register(ctx, tx, daydb.Registration{
			Restaurant: daydb.Restaurant{CompanyID: company, RestaurantID: restaurantID},
			Timezone:   daydb.DefaultTimezone,
			LegacyDB:   "tables",
			Active:     true,
		})
	})
}

func (h hand) setFlags(ctx context.Context, company string, rollingDb bool) error {
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		_, err := flags.Set(ctx, tx, company, rollingDb, false, "test")
		return err
	})
}

// begin makes a day ACTIVE, drains the one before, and records a manifest, in two
// transactions like a rotation.
func (h hand) begin(ctx context.Context, company, text string) error {
	day, err := daydb.ParseDay(text)
	if err != nil {
		return err
	}
	r := daydb.Restaurant{CompanyID: company, RestaurantID: restaurantID}
	var token int64
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select nextval('fencing_tokens_seq')`).Scan(&token); err != nil {
			return err
		}
		mark := daydb.Mark{Actor: "test", Token: token}
		active, err := daydb.List(ctx, tx, daydb.Filter{CompanyID: company, States: []daydb.State{daydb.Active}})
		if err != nil {
			return err
		}
		for _, d := range active {
			if _, err := daydb.Move(ctx, tx, d, daydb.Drain, mark, nil); err != nil {
				return err
			}
		}
		name, err := daydb.ComposeName("test", r, day)
		if err != nil {
			return err
		}
		d, err := daydb.Insert(ctx, tx, r, day, name, mark)
		if err != nil {
			return err
		}
		if err := daydb.Update(ctx, tx, d, token, `instance_start_time = '1'`, nil); err != nil {
			return err
		}
		_, err = daydb.Move(ctx, tx, d, daydb.Activate, mark, nil)
		return err
	})
	if err != nil {
		return err
	}
	_, err = h.pool.Exec(ctx, `update restaurants set manifest_generation = $1 where company_id = $2`, token, company)
	return err
}

// expire lets the time of a token come, and has the replicas look at it.
func (h hand) expire(ctx context.Context, company, token string) error {
	h.gate.expire(token)
	_, err := h.pool.Exec(ctx, `select pg_notify('rollingd_device_plane', $1 || '/')`, company)
	return err
}

// revoke takes back a device's tokens and has the replicas told.
func (h hand) revoke(ctx context.Context, company, device string) error {
	h.gate.revoke(company, device)
	_, err := h.pool.Exec(ctx, `select pg_notify('rollingd_device_plane', $1 || '/')`, company)
	return err
}

// ServeHTTP is for the tests that the official client runs.
func (h hand) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Company   string
		Device    string
		Token     string
		Day       string
		RollingDb bool
		TTLMs     int64
	}
	err := json.NewDecoder(r.Body).Decode(&asked)
	answer := map[string]string{}
	if err == nil {
		switch strings.TrimPrefix(r.URL.Path, "/") {
		case "restaurant":
			err = h.register(r.Context(), asked.Company)
		case "token":
			answer["token"] = h.gate.issue(asked.Company, asked.Device, time.Duration(asked.TTLMs)*time.Millisecond)
		case "flags":
			err = h.setFlags(r.Context(), asked.Company, asked.RollingDb)
		case "day":
			err = h.begin(r.Context(), asked.Company, asked.Day)
		case "expire":
			err = h.expire(r.Context(), asked.Company, asked.Token)
		case "revoke":
			err = h.revoke(r.Context(), asked.Company, asked.Device)
		default:
			err = errors.New("no such wish")
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}
