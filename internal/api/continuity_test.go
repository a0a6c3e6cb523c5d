package api_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/api"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/continuity/primary"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestContinuityOverTheAPI has a queue with a dead command, and decides about it
// and about the gates.
func TestContinuityOverTheAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var off struct{ Phase int }
	if s.do("GET", "/admin/continuity", viewer, "").into(t, &off); off.Phase != 0 {
		t.Errorf("a plane that is off is in phase %d", off.Phase)
	}
	if got := s.do("POST", "/admin/continuity/force-queue", destroyer, `{"epoch":1,"reason":"audit"}`); got.status != http.StatusConflict || codeOf(t, got) != "continuity_off" {
		t.Errorf("forced while off: %d %s", got.status, got.body)
	}

	pool := pgtest.NewHosted(t)
	transport := hosted.NewPostgres(pool)
	queue, fence := hosted.NewQueue(transport), hosted.NewFence(transport)
	authority, err := primary.New(primary.Options{Pool: s.pool})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := api.ParseTokens("vera=viewer:" + viewer + ",otto=operator:" + operator + ",dora=destroyer:" + destroyer)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api.New(api.Options{
		Env: s.env, Tokens: tokens, Pool: s.pool, Couch: s.couch, Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		Continuity: &api.Continuity{Phase: 6, Primary: authority, Queue: queue, Fence: fence, Nodes: hosted.NewNodes(transport)},
	}))
	t.Cleanup(server.Close)
	s.url = server.URL

	if err := authority.Adopt(t.Context(), continuity.Fence{Epoch: 1, Mode: continuity.Direct}, time.Time{}, "test"); err != nil {
		t.Fatal(err)
	}
	direct := func() bool {
		t.Helper()
		state, err := authority.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return state.Direct(primary.Available)
	}
	if other := s.do("POST", "/admin/continuity/force-queue", destroyer, `{"epoch":7,"reason":"mistyped"}`); other.status != http.StatusConflict || codeOf(t, other) != "stale_epoch" || !direct() {
		t.Errorf("of another epoch: %d %s, direct writes are open: %t", other.status, other.body, direct())
	}
	forced := s.do("POST", "/admin/continuity/force-queue", destroyer, `{"epoch":1,"reason":"the tunnel flaps"}`)
	if forced.status != http.StatusOK || direct() {
		t.Fatalf("force-queue: %d %s, direct writes are open: %t", forced.status, forced.body, direct())
	}
	for _, body := range []string{`{"reason":"x"}`, `{"epoch":2}`, `{"epoch":"2","reason":"x"}`} {
		if got := s.do("POST", "/admin/continuity/force-direct", destroyer, body); got.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}

	id := uuid.New()
	_, err = queue.Enqueue(t.Context(), continuity.Command{
		CommandID: id, IdempotencyKey: "k", CommandType: "order.create", AggregateType: "order", AggregateID: "o", Payload: []byte(`{}`),
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fence.BeginCatchup(t.Context(), 2, 1); err != nil {
		t.Fatal(err)
	}
	claims, err := queue.Claim(t.Context(), hosted.ClaimOptions{Worker: "test", Limit: 1, Lease: 30e9})
	if err != nil || len(claims) != 1 {
		t.Fatal(claims, err)
	}
	decide := "/admin/continuity/commands/" + id.String()
	for path, body := range map[string]string{
		decide + "/skip":                 `{"reason":"` + strings.Repeat("é", 129) + `"}`,
		"/admin/continuity/force-direct": `{"epoch":2,"reason":"` + strings.Repeat("é", 129) + `"}`,
	} {
		if got := s.do("POST", path, destroyer, body); got.status != http.StatusBadRequest || codeOf(t, got) != "invalid_reason" {
			t.Errorf("%s for a long reason: %d %s", path, got.status, got.body)
		}
	}
	if got := s.do("POST", decide+"/skip", destroyer, `{"reason":"x"}`); got.status != http.StatusConflict {
		t.Errorf("skip of what is not dead: %d %s", got.status, got.body)
	}
	if _, err := queue.Fail(t.Context(), id, claims[0].Token, "out of luck", true); err != nil {
		t.Fatal(err)
	}
	var state struct {
		Phase  int
		Direct bool
		Hosted struct {
			Fence continuity.Fence
			Queue struct{ UnacknowledgedDead int }
		}
	}
	s.do("GET", "/admin/continuity", viewer, "").into(t, &state)
	if state.Phase != 6 || state.Hosted.Fence.Epoch != 2 || state.Hosted.Fence.Mode != continuity.Catchup || state.Hosted.Queue.UnacknowledgedDead != 1 {
		t.Errorf("the state is %+v", state)
	}
	var page struct{ Commands []hosted.QueuedCommand }
	s.do("GET", "/admin/continuity/commands?status=dead", viewer, "").into(t, &page)
	if len(page.Commands) != 1 || page.Commands[0].CommandID != id || page.Commands[0].LastError == nil || *page.Commands[0].LastError != "out of luck" {
		t.Errorf("dead are %+v", page.Commands)
	}
	var after hosted.QueuedCommand
	s.do("POST", decide+"/redrive", operator, `{"reason":"the gateway is back"}`).into(t, &after)
	if after.Status != "pending" || after.Attempts != 0 {
		t.Errorf("redriven: %+v", after)
	}
	if got := s.do("POST", "/admin/continuity/commands/"+uuid.NewString()+"/redrive", operator, `{"reason":"x"}`); got.status != http.StatusNotFound {
		t.Errorf("redrive of nothing: %d %s", got.status, got.body)
	}
}

func codeOf(t *testing.T, a answer) string {
	t.Helper()
	var p api.Problem
	a.into(t, &p)
	return p.Code
}
