package history

import (
	"context"
	"errors"
	"strings"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// compare accounts for every key that the queue accepted.
func (c *check) compare(ctx context.Context) error {
	mark := c.mark()
	for _, q := range c.queue {
		switch q.Status {
		case contracts.CommandAcked:
			c.report.Acked++
			if q.effect == nil {
				c.report.violation(LostEffect, q.CommandID, "acked, and not in the inbox")
			} else if !q.effect.Counted {
				c.report.violation(LostEffect, q.CommandID, "acked, and the primary has not counted it")
			}
		case contracts.CommandDead:
			c.report.Dead++
			if err := c.dead(ctx, q); err != nil {
				return err
			}
		default:
			c.report.Open++
			c.open(q, mark)
		}
	}
	return nil
}

func (c *check) dead(ctx context.Context, q *accepted) error {
	if q.LastError == "" {
		c.report.violation(NoReason, q.CommandID, "dead")
	}
	// The effect under this key is that of another payload.
	if q.effect == nil || strings.HasPrefix(q.LastError, "key_reused") {
		return nil
	}
	now, err := c.Queue.Find(ctx, q.Key)
	if err != nil && !errors.Is(err, continuity.ErrUnknownCommand) {
		return err
	}
	if err == nil && now.Status == contracts.CommandDead {
		c.report.violation(DoubleEffect, q.CommandID, "dead (%s), and it has an effect", q.LastError)
	}
	return nil
}

// open looks at a command that is neither acked nor dead.
func (c *check) open(q *accepted, mark continuity.Sequence) {
	if c.Settled {
		c.report.violation(DroppedAck, q.CommandID, "%s, though everything is settled", q.Status)
		return
	}
	// Behind the mark of a cutover only what was brought back is open.
	broughtBack := q.LastError != "" || q.effect != nil && q.effect.Refused
	if q.Sequence <= mark && !broughtBack {
		c.report.violation(DroppedAck, q.CommandID, "%s, behind a cutover at %d", q.Status, mark)
	}
}

// mark is the highest that a cutover was granted at, unless a restore has begun an
// epoch since.
func (c *check) mark() (mark continuity.Sequence) {
	for _, f := range c.log {
		switch f.Event {
		case "cutover":
			if f.HighWaterMark != nil {
				mark = max(mark, *f.HighWaterMark)
			}
		case "reconcile":
			mark = 0
		}
	}
	return mark
}
