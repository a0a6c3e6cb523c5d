package device

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/flags"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The days of the shop, in the states that their names say.
const (
	gone   = "20261001"
	sealed = "20261002"
	// closing is ARCHIVED, and its seal has begun.
	closing  = "20261003"
	archived = "20261004"
	draining = "20261129"
	today    = "20261130"
	tomorrow = "20261201"
)

var north = daydb.Restaurant{CompanyID: "acme", RestaurantID: "north"}
var south = daydb.Restaurant{CompanyID: "beta", RestaurantID: "south"}

// shop is the proxy on real stores, with two restaurants of two companies, both
// routed, which share a legacy database.
type shop struct {
	t      *testing.T
	pool   *pgxpool.Pool
	couch  *couch.Client
	env    string
	view   *View
	proxy  *Proxy
	tokens *Tokens
	url    string
	// couchURL is that of CouchDB, with an administrator's credentials.
	couchURL string
}

type shopOptions struct {
	// couchURL replaces the address that the proxy goes to.
	couchURL string
	// front gives one that stands before the CouchDB of the shop.
	front   func(couchURL string) string
	secret  string
	limit   time.Duration
	rate    int
	origins []string
	// smallBuffers keeps the kernel from taking megabytes for each client.
	smallBuffers bool
}

func smallBuffers(ctx context.Context, c net.Conn) context.Context {
	_ = c.(*net.TCPConn).SetWriteBuffer(16 << 10)
	return ctx
}

func newShop(t *testing.T, opts shopOptions) *shop {
	t.Helper()
	couchURL := couchtest.New(t)
	s := &shop{t: t, pool: pgtest.New(t), env: couchtest.Env(t), view: NewView(), couchURL: couchURL}
	var err error
	if s.couch, err = couch.New(couch.Options{URL: couchURL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.couch.Close() })
	for _, r := range []daydb.Restaurant{north, south} {
		s.fill(r)
	}
	s.createDB("tables-"+s.env, LegacyRole)

	if opts.secret == "" {
		opts.secret = couchtest.ProxySecret
	}
	if opts.front != nil {
		opts.couchURL = opts.front(couchURL)
	}
	if opts.couchURL == "" {
		opts.couchURL = couchURL
	}
	if opts.limit == 0 {
		opts.limit = time.Minute
	}
	if opts.rate == 0 {
		opts.rate = 10_000
	}
	s.tokens = newTokens(t, TokenOptions{Secret: testSecret})
	s.proxy, err = New(Options{
		CouchURL:    opts.couchURL,
		ProxySecret: opts.secret,
		Env:         s.env,
		Tokens:      s.tokens,
		View:        s.view,
		Pool:        s.pool,
		WriteLimit:  opts.limit,
		Rate:        opts.rate,
		Origins:     opts.origins,
		Metrics:     prometheus.NewRegistry(),
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.view.LoadAll(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.view.Follow(ctx, s.pool, slog.New(slog.DiscardHandler)) })
	running.Go(func() { s.proxy.Watch(ctx) })
	server := httptest.NewUnstartedServer(s.proxy)
	if opts.smallBuffers {
		server.Config.ConnContext = smallBuffers
	}
	server.Start()
	s.url = server.URL
	t.Cleanup(func() {
		stop()
		running.Wait()
		server.CloseClientConnections()
		server.Close()
		s.proxy.Close()
	})
	return s
}

func (s *shop) fill(r daydb.Restaurant) {
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		err := daydb.Register(ctx, tx, daydb.Registration{Restaurant: r, Timezone: daydb.DefaultTimezone, LegacyDB: "tables-" + s.env, Active: true})
		if err != nil {
			return err
		}
		if _, err := flags.Set(ctx, tx, r.CompanyID, true, true, "test"); err != nil {
			return err
		}
		_, err = flags.Route(ctx, tx, r.CompanyID, "test")
		return err
	})
	s.createDB(s.db(r, "core"), r.Role())
	for day, state := range map[string]daydb.State{
		gone: daydb.Dropped, sealed: daydb.Droppable, closing: daydb.Archived, archived: daydb.Archived,
		draining: daydb.Draining, today: daydb.Active, tomorrow: daydb.Prewarmed,
	} {
		s.enter(r, day)
		s.setState(r, day, state)
		if day == closing {
			s.exec(`update day_databases set seal_started_at = now() where db_name = $1`, s.db(r, "daily_"+day))
		}
		if state != daydb.Dropped {
			role := r.Role()
			if state == daydb.Droppable {
				role = couch.SealedRole
			}
			s.createDB(s.db(r, "daily_"+day), role)
		}
	}
}

func (s *shop) enter(r daydb.Restaurant, text string) {
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		day, err := daydb.ParseDay(text)
		if err != nil {
			return err
		}
		_, err = daydb.Insert(ctx, tx, r, day, s.db(r, "daily_"+text), daydb.Mark{Actor: "test", Token: 1})
		return err
	})
}

// setState puts a day where no test needs to know the way to: the triggers that
// guard the way are others' concern, that which notifies is not.
func (s *shop) setState(r daydb.Restaurant, day string, state daydb.State) {
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			alter table day_databases disable trigger day_databases_check;
			alter table day_databases disable trigger day_databases_moves_audited`)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update day_databases set state = $2 where db_name = $1`, s.db(r, "daily_"+day), state); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			alter table day_databases enable trigger day_databases_check;
			alter table day_databases enable trigger day_databases_moves_audited`)
		return err
	})
}

func (s *shop) setFlags(company string, rolling, routed bool) {
	s.tx(func(ctx context.Context, tx pgx.Tx) error {
		if _, err := flags.Set(ctx, tx, company, rolling, false, "test"); err != nil {
			return err
		}
		if !routed {
			return nil
		}
		_, err := flags.Route(ctx, tx, company, "test")
		return err
	})
}

func (s *shop) tx(fn func(ctx context.Context, tx pgx.Tx) error) {
	s.t.Helper()
	ctx := s.t.Context()
	if err := pg.WithTx(ctx, s.pool, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) db(r daydb.Restaurant, suffix string) string {
	return s.env + "_" + r.CompanyID + "_" + r.RestaurantID + "_" + suffix
}

func (s *shop) createDB(name, role string) {
	s.t.Helper()
	if _, err := s.couch.Create(s.t.Context(), name); err != nil {
		s.t.Fatal(err)
	}
	if err := s.couch.PutSecurity(s.t.Context(), name, couch.OpenTo(role, uuidOf(s.t))); err != nil {
		s.t.Fatal(err)
	}
}

// until waits for the view to be as it should; notifications bring it there.
func (s *shop) until(what string, met func() bool) {
	s.t.Helper()
	limit := time.After(time.Minute)
	for {
		changed := s.view.Changed()
		if met() {
			return
		}
		select {
		case <-changed:
		case <-limit:
			s.t.Fatalf("the view does not show %s", what)
		}
	}
}

// token is one of a device of a restaurant, good for an hour.
func (s *shop) token(r daydb.Restaurant, id string) string {
	return s.tokenFor(r, id, time.Hour)
}

func (s *shop) tokenFor(r daydb.Restaurant, id string, ttl time.Duration) string {
	s.t.Helper()
	var now time.Time
	if err := s.pool.QueryRow(s.t.Context(), `select now()`).Scan(&now); err != nil {
		s.t.Fatal(err)
	}
	raw, _, err := s.tokens.Issue(Identity{Restaurant: r, DeviceID: id}, now, ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return raw
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request whose path goes over the wire as it is written.
func (s *shop) do(method, path, token, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	raw, query, _ := strings.Cut(path, "?")
	req.URL = &url.URL{Scheme: "http", Host: req.URL.Host, RawQuery: query, RawPath: raw}
	if req.URL.Path, err = url.PathUnescape(raw); err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Add(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{status: res.StatusCode, header: res.Header, body: string(read)}
}
