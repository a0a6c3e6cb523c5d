package app

import (
	"context"
	"fmt"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/alert"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// drainOnce returns what drains, and says what it has done and what it waits for.
func (a *App) drainOnce(drainer *drain.Drainer, tell teller) func(context.Context) error {
	waitingFor := ""
	return func(ctx context.Context) error {
		result, err := drainer.RunOnce(ctx)
		if err != nil || result.Elsewhere {
			return err
		}
		// What it waits for is news when it changes; to wait for the same is none.
		if !result.Idle() || result.WaitingFor != waitingFor && result.WaitingFor != "" {
			a.opts.Logger.InfoContext(ctx, "queue drained", "epoch", result.Fence.Epoch, "mode", result.Fence.Mode, "applied", result.Applied,
				"deduplicated", result.Deduplicated, "failed", result.Failed, "dead", result.Dead, "waiting_for", result.WaitingFor)
		}
		waitingFor = result.WaitingFor
		if result.Cutover != nil {
			a.opts.Logger.InfoContext(ctx, "direct writes are open again", "epoch", result.Fence.Epoch, "accepted", result.Cutover.Accepted,
				"applied", result.Cutover.Applied, "dead", result.Cutover.Dead, "sealed", result.Cutover.Sealed.Duration())
			if a.opts.ContinuityPhase.Alerts() {
				tell(ctx, alert.Message{Subject: "direct writes are open again", Text: proofOf(*result.Cutover)})
			}
		}
		return nil
	}
}

// proofOf says a cutover in words.
func proofOf(c hosted.CutoverProof) string {
	return fmt.Sprintf("Epoch %d. %d commands were accepted = %d applied + %d dead; the queue was sealed for %s.",
		c.Fence.Epoch, c.Accepted, c.Applied, c.Dead, c.Sealed.Duration().Round(time.Millisecond))
}
