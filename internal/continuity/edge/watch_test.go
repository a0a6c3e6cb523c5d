package edge_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// told keeps what people would hear.
type told struct {
	mu  sync.Mutex
	now map[string]string
}

func (a *told) Raise(_ context.Context, condition, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now == nil {
		a.now = make(map[string]string)
	}
	a.now[condition] = text
}

func (a *told) Clear(_ context.Context, condition, _ string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.now, condition)
}

func (a *told) conditions() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for name := range a.now {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (w *world) watchWith(alerts edge.Alerts, transitions *edge.Transitions) *edge.Watch {
	return edge.NewWatch(edge.WatchOptions{
		Phase: edge.Everything, Router: w.router, Hosted: w.hosted, Alerts: alerts,
		Transitions: transitions, Metrics: prometheus.NewRegistry(), Logger: discard,
	})
}

// TestConditions are raised while they hold, each for itself.
func TestConditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alerts := &told{}
	watch := w.watchWith(alerts, edge.NewTransitions())
	age := 90 * time.Second
	well := edge.Stats{
		Depth:       map[contracts.CommandStatus]int64{contracts.CommandPending: 60, contracts.CommandClaimed: 40, contracts.CommandAcked: 5000},
		SnapshotAge: &age,
	}
	for _, c := range []struct {
		name   string
		change func(*edge.Stats)
		want   string
	}{
		{"well", func(*edge.Stats) {}, ""},
		{"one too many", func(s *edge.Stats) {
			s.Depth = map[contracts.CommandStatus]int64{contracts.CommandPending: 61, contracts.CommandClaimed: 40}
		}, "queue_depth"},
		{"dead", func(s *edge.Stats) { s.Dead, s.Blocked = 2, 1 }, "dead_commands"},
		{"a lease", func(s *edge.Stats) { s.ExpiredLeases = 1 }, "lease_expired"},
		{"of a type that nobody is given", func(s *edge.Stats) { s.UnknownTypes = []string{"order.bless"} }, "unknown_command_types"},
		{"well again", func(*edge.Stats) {}, ""},
	} {
		stats := well
		c.change(&stats)
		w.hosted.mu.Lock()
		w.hosted.stats = stats
		w.hosted.mu.Unlock()
		watch.RunOnce(t.Context())
		if got := alerts.conditions(); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}

	w.hosted.becomes(continuity.ErrUnavailable)
	for i, want := range []string{"", "", "hosted_unreachable", "hosted_unreachable"} {
		watch.RunOnce(t.Context())
		if got := alerts.conditions(); got != want {
			t.Errorf("look %d without the hosted database: %q", i+1, got)
		}
	}
	w.hosted.becomes(nil)
	w.primary.becomes(badGateway)
	for range breaker.DefaultFailureThreshold {
		watch.RunOnce(t.Context())
	}
	if got := alerts.conditions(); got != "primary_degraded" {
		t.Errorf("without the primary: %q", got)
	}
	if mode := w.hosted.beats[len(w.hosted.beats)-1]; mode != contracts.ModeDegraded {
		t.Errorf("it reports %s", mode)
	}
	summary := watch.Summary()
	for _, part := range []string{"Circuit: DEGRADED", "DIRECT of epoch 1", "100 commands wait", "5000", "1m30s old"} {
		if !strings.Contains(summary, part) {
			t.Errorf("%q is not in\n%s", part, summary)
		}
	}
}

// hanging is a hosted database that takes connections and does not answer.
type hanging struct{}

func (hanging) Stats(ctx context.Context) (edge.Stats, error) {
	<-ctx.Done()
	return edge.Stats{}, ctx.Err()
}

func (hanging) Beat(ctx context.Context, _ contracts.ReplicationMode) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestHostedHangs: people hear of it, and not of a watch that is stopped.
func TestHostedHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := router.New(router.Options{PassThrough: true})
		defer rt.Close()
		alerts := &told{}
		watch := edge.NewWatch(edge.WatchOptions{
			Phase: edge.Everything, Router: rt, Hosted: hanging{}, Alerts: alerts,
			Transitions: edge.NewTransitions(), Metrics: prometheus.NewRegistry(), Logger: discard,
		})
		stopped, stop := context.WithCancelCause(t.Context())
		stop(errors.New("stopped"))
		for range 10 {
			watch.RunOnce(stopped)
		}
		if got := alerts.conditions(); got != "" {
			t.Errorf("stopped: %q", got)
		}
		for i, want := range []string{"", "", "hosted_unreachable"} {
			watch.RunOnce(t.Context())
			if got := alerts.conditions(); got != want {
				t.Errorf("look %d: %q", i+1, got)
			}
		}
	})
}

// TestWatchRuns until it is stopped, and looks at once after a transition.
func TestWatchRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transitions := edge.NewTransitions()
	watch := w.watchWith(nil, transitions)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch.Run(ctx)
	}()
	looks := func() int {
		w.hosted.mu.Lock()
		defer w.hosted.mu.Unlock()
		return len(w.hosted.beats)
	}
	deadline, stop := context.WithTimeout(t.Context(), wait)
	defer stop()
	for looks() < 3 && deadline.Err() == nil {
		for range 200 { // More than there is room for; none waits.
			transitions.Add(breaker.Primary, breaker.Degraded)
		}
	}
	cancel(errors.New("stop"))
	<-ended
	if looks() < 3 {
		t.Errorf("%d looks", looks())
	}
}

func TestHealthRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.ask(t, "GET", "/api/_health", "", "Authorization", "")
	if fmt.Sprint(a.body) != "map[circuit_state:PRIMARY epoch:<nil> fence_mode:<nil> last_snapshot_age:<nil> pending_count:<nil> phase:6 version:test]" {
		t.Errorf("at first: %s", a)
	}
	age := 3 * time.Second
	w.hosted.stats = edge.Stats{Depth: map[contracts.CommandStatus]int64{contracts.CommandPending: 2, contracts.CommandClaimed: 1, contracts.CommandDead: 9}, SnapshotAge: &age}
	w.hosted.set(continuity.Fence{Epoch: 4, Mode: continuity.Catchup})
	w.watch.RunOnce(t.Context())
	a = w.ask(t, "GET", "/api/_health", "", "Authorization", "")
	if a.Code != http.StatusOK ||
		fmt.Sprint(a.body) != "map[circuit_state:PRIMARY epoch:4 fence_mode:CATCHUP last_snapshot_age:3 pending_count:3 phase:6 version:test]" {
		t.Errorf("later: %s", a)
	}
	// It asks nobody: whoever floods it reaches the edge alone.
	before := len(w.primary.seen)
	for range 10 {
		w.ask(t, "GET", "/api/_health", "")
	}
	if len(w.primary.seen) != before {
		t.Error("it asked the primary")
	}
}

func TestMetricsRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	age := 3 * time.Second
	w.hosted.stats = edge.Stats{Depth: map[contracts.CommandStatus]int64{contracts.CommandPending: 2}, SnapshotAge: &age, OldestPending: 7 * time.Second, Dead: 1}
	w.watch.RunOnce(t.Context())
	w.tell(t, "1", paid("1"))
	w.tell(t, "1", paid("1"), "X-Signature", "ts=1,v1=00")
	text := w.ask(t, "GET", "/metrics", "").Body.String()
	for _, line := range []string{
		"continuity_circuit_state 0",
		"continuity_epoch 1",
		`continuity_fence_mode{mode="DIRECT"} 1`,
		`continuity_queue_depth{status="pending"} 2`,
		`continuity_queue_depth{status="dead"} 0`,
		"continuity_queue_age_seconds 7",
		"continuity_snapshot_freshness_seconds 3",
		"continuity_dead_unacknowledged 1",
		`continuity_webhooks_total{outcome="primary",provider="mercadopago"} 1`,
		`continuity_webhooks_total{outcome="forged",provider="mercadopago"} 1`,
		`rollingd_edge_requests_total{method="POST",route="/v1/webhooks/mercadopago",status="401"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%s is not in\n%s", line, text)
		}
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "false false false false", "1": "false false false false", "2": "true false false false",
		"3": "true true false false", "4": "true true true false", "5": "true true true false", "6": "true true true true",
	} {
		p, err := edge.ParsePhase(text)
		if got := fmt.Sprint(p.Hosted(), p.Logs(), p.Routes(), p.Alerts()); err != nil || got != want {
			t.Errorf("phase %s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "7", "-1", "on", "1.5"} {
		if _, err := edge.ParsePhase(text); err == nil {
			t.Errorf("phase %q", text)
		}
	}
}
