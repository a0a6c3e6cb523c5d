package app_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestPhaseWithoutAFence says at the start when direct writes will stay refused:
// strict needs a fence that is read, and this phase reads none.
func TestPhaseWithoutAFence(t *testing.T) {
	t.Parallel()
	for policy, warned := range map[string]bool{"available": false, "strict": true} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			opts := options(t)
			var log strings.Builder
			opts.ContinuityPhase, opts.ContinuityPolicy = edge.Schema, policy
			opts.ServiceTokens = "service-token-0123456789"
			opts.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			a, err := app.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			if err := a.Stop(ctx); err != nil {
				t.Error("stop: ", err)
			}
			if got := strings.Contains(log.String(), "direct writes are refused"); got != warned {
				t.Errorf("warned: %t\n%s", got, &log)
			}
		})
	}
}

// TestWhatFailbackWaitsFor is in the log although there is nothing to drain.
func TestWhatFailbackWaitsFor(t *testing.T) {
	t.Parallel()
	opts := options(t)
	opts.HostedDatabaseURL = pgtest.HostedDSN(t)
	fence := hosted.NewFence(hosted.NewPostgres(pgtest.Open(t, opts.HostedDatabaseURL)))
	if _, err := fence.ForceQueue(t.Context(), 1, "test", "nobody reaches the primary"); err != nil {
		t.Fatal(err)
	}
	said := make(lines, 1000)
	opts.ContinuityPhase = edge.Route
	opts.ServiceTokens = "service-token-0123456789"
	opts.Logger = slog.New(slog.NewTextHandler(said, nil))
	started(t, opts)
	timeout := time.After(time.Minute)
	for {
		select {
		case line := <-said:
			if strings.Contains(line, "waiting_for=reach") {
				return
			}
		case <-timeout:
			t.Fatal("nobody says that no edge reaches the primary")
		}
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
