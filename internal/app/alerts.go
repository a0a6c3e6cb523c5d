package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/run"
)

// teller tells people, and does not wait for them.
type teller func(context.Context, alert.Message)

// startAlerts returns what tells people, which is nobody without receivers.
func (a *App) startAlerts(ctx context.Context, metrics prometheus.Registerer) (teller, error) {
	senders, err := a.opts.Senders()
	if err != nil {
		return nil, err
	}
	alerts := alert.New(alert.Options{Origin: "primary of " + a.opts.Env, Senders: senders, Metrics: metrics, Logger: a.opts.Logger})
	a.Background(ctx, "alerts", alerts.Run)
	return alerts.Tell, nil
}

const (
	// deadStep is the step of the failures of units that no replica got through.
	deadStep = "work"
	// mostNamed bounds the databases or restaurants that one message names.
	mostNamed = 10
)

// shared is what shares the units of a job, as run.Run.Share has it.
type shared = func(ctx context.Context, r run.Run, keys []string) error

// ofDead returns what shares the units of jobs, and tells people, once for a run
// that shares them once, of those that ended dead.
func (tell teller) ofDead(share func(job string) shared) func(job string) shared {
	return func(job string) shared {
		all := share(job)
		return func(ctx context.Context, r run.Run, keys []string) error {
			err := all(ctx, r, keys)
			var dead []string
			for _, f := range r.Report.Failures() {
				if f.Step == deadStep && slices.Contains(keys, f.DBName) {
					dead = append(dead, f.DBName)
				}
			}
			if len(dead) > 0 {
				tell(ctx, aboutDead(job, r.ID, dead))
			}
			return err
		}
	}
}

func aboutDead(job string, runID int64, dead []string) alert.Message {
	named, more := dead[:min(len(dead), mostNamed)], ""
	if n := len(dead) - len(named); n > 0 {
		more = fmt.Sprintf("\nand %d more", n)
	}
	return alert.Message{
		Subject: fmt.Sprintf("%s left out %d after all attempts", job, len(dead)),
		Text: fmt.Sprintf("No replica got through:\n%s%s\n\n`rollingd runs %d` says why. Nothing was dropped for it; the next run tries again.",
			strings.Join(named, "\n"), more, runID),
	}
}
