package drain

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// queuePage is how many commands are listed at a time.
const queuePage = 1000

// revive brings back dead commands that have had their effect: their workers were
// gone, or could not reach the queue, each time before they could ack. They are
// acked when they are claimed again.
func (w *work) revive(ctx context.Context, epoch continuity.Epoch) error {
	revived := 0
	for after := continuity.Sequence(0); ; {
		page, err := w.Queue.List(ctx, contracts.CommandDead, after, queuePage)
		if err != nil {
			return fmt.Errorf("list the dead: %w", err)
		}
		undecided := make(map[string]uuid.UUID, len(page))
		keys := make([]string, 0, len(page))
		for _, q := range page {
			after = q.Sequence
			if q.SkippedAt == nil {
				keys = append(keys, q.IdempotencyKey)
				undecided[q.IdempotencyKey] = q.CommandID
			}
		}
		settled, err := w.Primary.Settled(ctx, keys)
		if err != nil {
			return err
		}
		for _, key := range settled {
			if _, err := w.Queue.Redrive(ctx, undecided[key], w.Instance, "it has had its effect"); err != nil {
				return fmt.Errorf("bring back: %w", err)
			}
			revived++
		}
		if len(page) < queuePage {
			break
		}
	}
	if revived == 0 {
		return nil
	}
	return w.empty(ctx, epoch, nil)
}
