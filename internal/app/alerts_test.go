package app

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/crew"
	"github.com/rollingd/rollingd/internal/daemon"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
	"github.com/rollingd/rollingd/migrations"
)

// TestPeopleAreToldOfTheDead of a night, in one message of a bounded length, with
// the continuity plane off as well.
func TestPeopleAreToldOfTheDead(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pg.Migrate(t.Context(), pool, migrations.Hosted()); err != nil {
		t.Fatal(err)
	}
	// Each unit is dead as soon as it is handed out.
	if _, err := pool.Exec(t.Context(), `
		create function die() returns trigger language plpgsql as $$
		begin
		  new.status := 'dead';
		  new.settled_at := now();
		  new.last_error := 'out of luck';
		  return new;
		end
		$$;
		create trigger die before insert on public.continuity_commands for each row execute function die()`); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1)
	chat := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		told <- m.Text
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	defer chat.Close()
	quiet := slog.New(slog.DiscardHandler)
	a := &App{Daemon: daemon.New(), opts: Options{
		Env:       "prod",
		Receivers: alert.Receivers{TelegramToken: "1:secret", TelegramChat: "1", TelegramAPI: chat.URL},
		Logger:    quiet,
	}}
	tell, err := a.startAlerts(t.Context(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	crews := crew.New(crew.Options{Pool: pool, Name: "a", Workers: 4, Lease: 30 * time.Second, Logger: quiet, Metrics: prometheus.NewRegistry()})
	a.OnStop("crew", crews.Stop)
	if err := crews.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	var keys []string
	for n := range 12 {
		keys = append(keys, "prod_acme_r"+strconv.Itoa(n)+"_daily_20261101")
	}
	r := run.Run{ID: 4711, Report: &run.Report{}}
	r.Report.Fail(run.Failure{DBName: "another", Step: "work", Error: "of another part of the run"})
	if err := tell.ofDead(crews.Share)("archive")(t.Context(), r, keys); err != nil {
		t.Fatal(err)
	}
	got := <-told
	for _, want := range []string{"primary of prod: archive left out 12", "prod_acme_r", "and 2 more", "rollingd runs 4711"} {
		if !strings.Contains(got, want) {
			t.Errorf("people read %q, want %q in it", got, want)
		}
	}
}
