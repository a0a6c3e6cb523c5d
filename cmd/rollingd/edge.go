package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/daemon"
)

// summaryHour is when people are told how things stand, in UTC: the morning in
// the restaurants' zones.
const summaryHour = 11

func (c *cli) edgeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "edge",
		Short: "Run an edge of the continuity plane",
		Long: `Run an edge: the HTTP API that takes commands, reads and payment webhooks in front of the primary.
While the primary does not answer, it reads from snapshots and puts essential commands into the
queue of the hosted database. Several edges may run; each has an instance name of its own.

LOCAL_CONTINUITY_PHASE says how much of it is switched on, and each number includes those before
it: 0 off and 1 schema send everything to the primary; 2 shadow watches and says in metrics what it
would do; 3 also logs that the circuit opens and closes; 4 takes the other way; 5 is for the
primary, which drains and publishes; 6 alerts. Going back one loses nothing.

A first SIGINT or SIGTERM stops it in order. A second one ends it at once.

Settings, from the environment:
` + edgeSettingsHelp(),
		Example: `  LOCAL_CONTINUITY_PHASE=6 \
  ROLLINGD_EDGE_TOKENS=site=2f6c0d1e9a7b4c58 \
  ROLLINGD_PRIMARY_URL=https://primary.shop.example \
  ROLLINGD_PRIMARY_TOKEN=6a1f0c9b3d5e7f82 \
  SUPABASE_URL=https://project.supabase.co \
  SUPABASE_SERVICE_ROLE_KEY=sb_secret_… \
  rollingd edge`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, edge, err := c.configureEdge()
			if err != nil {
				return err
			}
			return edgeUntilStopped(cmd.Context(), cfg, edge)
		},
	}
}

// edgeUntilStopped runs an edge until ctx ends or it fails by itself.
func edgeUntilStopped(ctx context.Context, cfg edgeConfig, edge *edgeapp.App) error {
	if err := edge.Start(ctx); err != nil {
		return err
	}
	failure := summarizeDaily(ctx, edge)
	if failure == nil {
		cfg.Logger.InfoContext(ctx, "stopping", "timeout", cfg.shared.stopTimeout)
	}
	// The context that has ended is the reason to stop.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.shared.stopTimeout)
	defer cancel()
	err := errors.Join(failure, edge.Stop(stopping))
	if err == nil {
		cfg.Logger.InfoContext(ctx, "stopped")
	}
	return err
}

// summarizeDaily tells people once a day how things stand, until ctx ends or the
// edge has failed, whose error it returns.
func summarizeDaily(ctx context.Context, edge *edgeapp.App) error {
	for {
		timer := time.NewTimer(untilHour(time.Now(), summaryHour))
		select {
		case <-timer.C:
			edge.Summarize(ctx)
		case <-ctx.Done():
			timer.Stop()
			return nil
		case err := <-edge.Failed():
			timer.Stop()
			return err
		}
	}
}

// untilHour is the time from now to the next full hour of that number in UTC.
func untilHour(now time.Time, hour int) time.Duration {
	now = now.UTC()
	next := time.Date(now.Year(), now.Month(), now.Day(), hour, 0, 0, 0, time.UTC)
	if !next.After(now) {
		next = next.AddDate(0, 0, 1)
	}
	return next.Sub(now)
}

// configureEdge reads the environment and returns an edge with these options. All
// settings that are wrong are named in one error, a line each.
func (c *cli) configureEdge() (edgeConfig, *edgeapp.App, error) {
	cfg := edgeConfig{shared: config{logFormat: "text", stopTimeout: defaultStopTimeout}}
	var problems []string
	reported := make(map[string]bool)
	for _, s := range edgeSettings {
		value := c.getenv(s.name)
		if value == "" {
			continue
		}
		if err := s.set(&cfg, value); err != nil {
			problems = append(problems, s.name+": "+err.Error())
			reported[s.option] = true
		}
	}
	cfg.Version = versionText()
	cfg.Logger = cfg.shared.logger(c)
	edge, err := edgeapp.New(cfg.Options)
	var invalid *daemon.InvalidError
	if err != nil && !errors.As(err, &invalid) {
		return edgeConfig{}, nil, err
	}
	if invalid != nil {
		problems = append(problems, problemsOf(invalid, reported, edgeVariableOf)...)
	}
	if len(problems) > 0 {
		return edgeConfig{}, nil, wrongSettings(problems)
	}
	return cfg, edge, nil
}
