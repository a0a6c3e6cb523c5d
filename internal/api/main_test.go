package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/guard"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
	"github.com/rollingd/rollingd/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	viewer    = "viewer-token-0123456789"
	operator  = "operator-token-0123456789"
	destroyer = "destroyer-token-0123456789"
)

// site is the API on real stores, with one restaurant, acme/north, one day of it, and jobs that do nothing.
type site struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	env   string
	day   string
	couch *couch.Client
	// gate holds back the job "slow" until it is closed.
	gate chan struct{}
	log  *strings.Builder
	// options are those of the API, for another one on the same stores.
	options api.Options
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, pool: pgtest.New(t), gate: make(chan struct{}), log: &strings.Builder{}}
	couchURL := couchtest.New(t)
	s.env = couchtest.Env(t)
	s.day = s.env + "_acme_north_daily_20261101"
	var err error
	if s.couch, err = couch.New(couch.Options{URL: couchURL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.couch.Close() })
	s.fill()

	leases := fence.New(s.pool, "test", time.Minute)
	quiet := slog.New(slog.DiscardHandler)
	jobs := s.jobs()
	crons, err := cron.New(cron.Options{Pool: s.pool, Leases: leases, Logger: quiet}, jobs...)
	if err != nil {
		t.Fatal(err)
	}
	// The first look enters what the installation knows; after it nothing is due, and nothing is written.
	for _, job := range jobs {
		if err := crons.RunDue(t.Context(), job.Name); err != nil {
			t.Fatal(err)
		}
	}
	crons.Start()
	t.Cleanup(func() { crons.Stop(context.Background()) })
	tokens, err := api.ParseTokens("vera=viewer:" + viewer + ",otto=operator:" + operator + ",dora=destroyer:" + destroyer)
	if err != nil {
		t.Fatal(err)
	}
	s.options = api.Options{
		Env:        s.env,
		Version:    "test",
		Tokens:     tokens,
		Pool:       s.pool,
		Migrations: []pg.Migrations{migrations.Primary()},
		Couch:      s.couch,
		Crons:      crons,
		Guard:      guard.New(guard.Options{Pool: s.pool, Couch: s.couch, Leases: leases, Log: quiet, Env: s.env, TTLDays: 30, Silence: time.Hour}),
		Archive:    brokenArchive{},
		Metrics:    prometheus.NewRegistry(),
		Logger:     slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	server := httptest.NewServer(api.New(s.options))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *site) jobs() []cron.Job {
	s.t.Helper()
	idle := func(context.Context, run.Run) error { return nil }
	// No zone is off by half an hour: nothing is due at this minute.
	var at time.Time
	if err := s.pool.QueryRow(s.t.Context(), `select now() - interval '30 minutes'`).Scan(&at); err != nil {
		s.t.Fatal(err)
	}
	daily := fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour())
	return []cron.Job{
		{Name: "rolling-db-rotate", Schedule: daily, PerZone: true, Run: idle},
		{Name: "rolling-db-drop-eval", Schedule: daily, PerZone: true, Destructive: true, Run: idle, Check: func(_ context.Context, scope run.Scope, dryRun bool) error {
			if scope.BusinessDay.String() > "20301231" && !dryRun {
				return guard.ErrBusinessDay
			}
			return nil
		}},
		{Name: "slow", Schedule: daily, Run: func(ctx context.Context, _ run.Run) error {
			select {
			case <-s.gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}},
	}
}

// fill registers the restaurant, and enters its day.
func (s *site) fill() {
	s.t.Helper()
	ctx := s.t.Context()
	north := daydb.Restaurant{CompanyID: "acme", RestaurantID: "north"}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := daydb.Register(ctx, tx, daydb.Registration{Restaurant: north, Timezone: "America/Santiago", LegacyDB: "tables-" + s.env, Active: true})
		if err != nil {
			return err
		}
		day, err := daydb.ParseDay("20261101")
		if err != nil {
			return err
		}
		_, err = daydb.Insert(ctx, tx, north, day, s.day, daydb.Mark{Actor: "test", Token: 1})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// brokenArchive fails as an archive on stores that break does: the list in the middle, the restore at once.
type brokenArchive struct{}

func (brokenArchive) Restore(context.Context, daydb.DayDB, string, string) (archive.Restored, error) {
	return archive.Restored{}, couch.ErrUnavailable
}

func (brokenArchive) WriteProofList(_ context.Context, _ daydb.DayDB, w io.Writer) error {
	io.WriteString(w, strings.Repeat("one line of the list\n", 1000))
	return errors.New("connection lost")
}

// answer is what the API answered.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (s *site) do(method, path, token, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{status: res.StatusCode, header: res.Header, body: read}
}

// into decodes the body, which must have no field that the target lacks.
func (a answer) into(t *testing.T, target any) {
	t.Helper()
	if err := json.Unmarshal(a.body, target); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
}

// dump is everything that the database holds.
func (s *site) dump() string {
	s.t.Helper()
	var tables []string
	rows, err := s.pool.Query(s.t.Context(), `select tablename from pg_tables where schemaname = 'public' order by 1`)
	if err == nil {
		tables, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		s.t.Fatal(err)
	}
	var all strings.Builder
	for _, table := range tables {
		var content *string
		err := s.pool.QueryRow(s.t.Context(), `select json_agg(r order by r::text) from `+pgx.Identifier{table}.Sanitize()+` r`).Scan(&content)
		if err != nil {
			s.t.Fatal(err)
		}
		all.WriteString(table + "\n")
		if content != nil {
			all.WriteString(*content + "\n")
		}
	}
	return all.String()
}
