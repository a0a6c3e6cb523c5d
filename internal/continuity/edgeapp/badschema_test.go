package edgeapp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestForeignSchema: a hosted database that is older or newer than this program
// costs the way through it, and neither a command nor the way to the primary.
func TestForeignSchema(t *testing.T) {
	t.Parallel()
	const refused, taken = "503 queue_failure", "202 queued"
	for what, c := range map[string]struct {
		sql string
		// well and away are what a command is answered in either state of the primary,
		// and read what a read is while it is away.
		well, away, read string
		// mode is what the edge has to have read before.
		mode string
	}{
		"none":            {`drop schema public cascade`, "200 primary", refused, "503 snapshot_failure", ""},
		"no queue":        {`drop function continuity_enqueue`, "200 primary", refused, "503 snapshot_miss", ""},
		"another queue":   {`alter function continuity_enqueue rename to continuity_enqueue_2`, "200 primary", refused, "503 snapshot_miss", ""},
		"no fence":        {`drop function continuity_fence_state`, "200 primary", refused, "503 snapshot_miss", ""},
		"no way to open":  {`drop function continuity_open_epoch`, "200 primary", refused, "503 snapshot_miss", ""},
		"no snapshots":    {`drop function continuity_read_snapshot`, "200 primary", taken, "503 snapshot_failure", ""},
		"a later version": {`insert into rollingd_hosted_migrations (version_id, is_applied) values (999, true)`, "200 primary", taken, "503 snapshot_miss", ""},
		"one more column": {`alter table continuity_commands add column priority int not null default 0`, "200 primary", taken, "503 snapshot_miss", ""},
		"an unknown code": {`create or replace function continuity_lock_aggregates(p_commands jsonb) returns void language plpgsql as $$ begin raise exception 'no' using errcode = 'RC042'; end $$`, "200 primary", refused, "503 snapshot_miss", ""},
		"an unknown mode": {`alter table continuity_fence drop constraint continuity_fence_mode; update continuity_fence set epoch = 2, mode = 'PAUSED'`, taken, taken, "503 snapshot_miss", "PAUSED"},
		"no rights to it": {`create or replace function continuity_enqueue(p_command_id uuid, p_idempotency_key text, p_command_type text, p_aggregate_type text, p_aggregate_id text, p_payload jsonb, p_occurred_at timestamptz, p_expected_version bigint, p_epoch bigint) returns jsonb language plpgsql as $$ begin raise exception 'no' using errcode = '42501'; end $$`, "200 primary", refused, "503 snapshot_miss", ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			if _, err := pgtest.Open(t, s.hostedDSN).Exec(t.Context(), c.sql); err != nil {
				t.Fatal(err)
			}
			e := s.edge(edge.Everything)
			if c.mode != "" {
				e.until("the fence is read", func(health map[string]any) bool { return health["fence_mode"] == c.mode })
			}
			e.suffers(c.well, c.away, c.read)
		})
	}
	t.Run("none that PostgREST knows", func(t *testing.T) {
		t.Parallel()
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"code":"PGRST202","details":null,"hint":null,"message":"Could not find the function in the schema cache"}`)
		}))
		t.Cleanup(api.Close)
		e := newShop(t).edge(edge.Everything, func(o *edgeapp.Options) {
			o.DatabaseURL, o.SupabaseURL, o.SupabaseKey = "", api.URL, "sb_secret_of_the_tests"
		})
		e.suffers("200 primary", refused, "503 snapshot_failure")
	})
}

// suffers sends a command in either state of the primary, and reads. What was
// refused has done nothing: the same command is new to the primary afterwards.
func (e *runningEdge) suffers(well, away, read string) {
	e.Helper()
	take := func(what, key, want string) {
		e.Helper()
		if got := said(e.command(key, "order.create", "o-"+key, ofNorth)); got != want {
			e.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	take("well", "k-1", well)
	e.down.Store(true)
	take("away", "k-2", away)
	if got := said(e.ask("GET", "/v1/reads/order:o-k-1", "")); got != read {
		e.Errorf("read: %s, want %s", got, read)
	}
	effects := e.count(`select count(*) from continuity_inbox`)
	if want := strings.Count(well, "primary"); effects != want {
		e.Errorf("%d effects, want %d", effects, want)
	}
	recovers := strings.HasPrefix(away, "503")
	if recovers {
		e.untilState("DEGRADED") // What fails from here on opens nothing any more.
	}
	e.down.Store(false)
	if recovers {
		e.untilState("PRIMARY")
		take("well again", "k-2", "200 primary")
	}
}

// TestUnknownStatus of a command that a newer version has given it: it is not
// settled, as far as this one knows.
func TestUnknownStatus(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	e := s.edge(edge.Everything)
	e.goesAway()
	if _, err := pgtest.Open(t, s.hostedDSN).Exec(t.Context(), `
		alter table continuity_commands drop constraint continuity_commands_status;
		update continuity_commands set status = 'parked'`); err != nil {
		t.Fatal(err)
	}
	status, answer := e.command("k-first", "order.create", "o-first", ofNorth)
	if got := said(status, answer); got != "202 queued again" || answer["status"] != "parked" || answer["pendingSync"] != true {
		t.Errorf("%s %v", got, answer)
	}
	if _, health := e.ask("GET", "/api/_health", ""); health["fence_mode"] != "QUEUE" {
		t.Errorf("%v", health)
	}
}

// TestUnknownType of a command that a newer edge has put into the queue: it keeps
// the queue open until somebody has heard of it.
func TestUnknownType(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	e := s.edge(edge.Everything, func(o *edgeapp.Options) { o.OpenWindow = time.Hour })
	e.goesAway()
	e.untilTold("edge-1: primary_degraded")
	_, err := s.queue.Enqueue(t.Context(), continuity.Command{
		CommandID: uuid.New(), IdempotencyKey: "k-newer", CommandType: "order.bless", AggregateType: "order", AggregateID: "o-newer",
		Payload: json.RawMessage(`{}`),
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	e.untilTold("edge-1: primary_degraded", "edge-1: unknown_command_types")
}
