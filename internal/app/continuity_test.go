package app_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/continuity/edge"
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
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
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
