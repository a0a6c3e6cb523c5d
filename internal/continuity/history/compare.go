package history

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// compare accounts for every key that the queue accepted.
func (c *check) compare(ctx context.Context) error {
	mark := c.mark()
	inOrder := slices.SortedFunc(maps.Values(c.queue), func(a, b hosted.QueuedCommand) int {
		return int(a.Sequence - b.Sequence)
	})
	for _, q := range inOrder {
		e := c.byKey[q.IdempotencyKey]
		switch q.Status {
		case contracts.CommandAcked:
			c.report.Acked++
			if e == nil {
				c.report.violation(LostEffect, q.CommandID, "acked, and not in the inbox")
			} else if !e.Counted {
				c.report.violation(LostEffect, q.CommandID, "acked, and the primary has not counted it")
			}
		case contracts.CommandDead:
			c.report.Dead++
			if err := c.dead(ctx, q, e); err != nil {
				return err
			}
		default:
			c.report.Open++
			c.open(q, e, mark)
		}
	}
	forgotten := 0
	for _, e := range c.inbox {
		if e.Way != drained {
			continue
		}
		q, ok := c.queue[e.Key]
		// One behind it in the queue has come after that had forgotten the key.
		if !ok || q.CommandID != e.CommandID && q.Sequence > *e.Sequence {
			forgotten++
		} else if q.CommandID != e.CommandID {
			c.report.violation(Unaccounted, e.CommandID, "drained, but the queue has the key for %s", q.CommandID)
		}
	}
	if forgotten > 0 {
		c.report.warning(Unaccounted, uuid.Nil, "%d drained commands are not in the queue, which was purged or restored, or has taken them in meanwhile", forgotten)
	}
	return nil
}

func (c *check) dead(ctx context.Context, q hosted.QueuedCommand, e *entry) error {
	why := ""
	if q.LastError != nil {
		why = strings.TrimSpace(*q.LastError)
	}
	if why == "" {
		c.report.violation(NoReason, q.CommandID, "dead")
	}
	// The effect under this key is that of another payload.
	if e == nil || strings.HasPrefix(why, "key_reused") {
		return nil
	}
	now, err := c.Queue.Find(ctx, q.IdempotencyKey)
	if err != nil && !errors.Is(err, continuity.ErrUnknownCommand) {
		return err
	}
	if err == nil && now.Status == contracts.CommandDead {
		c.report.violation(DoubleEffect, q.CommandID, "dead (%s), and it has an effect", why)
	}
	return nil
}

// open looks at a command that is neither acked nor dead.
func (c *check) open(q hosted.QueuedCommand, e *entry, mark continuity.Sequence) {
	if c.Settled {
		c.report.violation(DroppedAck, q.CommandID, "%s, though everything is settled", q.Status)
		return
	}
	// Behind the mark of a cutover only what was brought back is open.
	broughtBack := q.LastError != nil || e != nil && e.Refused
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

// aggregate is what an order of commands is kept in.
type aggregate struct{ kind, id string }

// order compares the order in which an aggregate's commands were applied with
// that of the queue. A command that was given back may have been brought back out
// of its turn.
func (c *check) order() {
	last := make(map[aggregate]hosted.QueuedCommand)
	for _, e := range c.inbox {
		q, ok := c.queue[e.Key]
		if e.Way != drained || e.Refused || !ok || q.CommandID != e.CommandID {
			continue
		}
		of := aggregate{e.AggregateType, e.AggregateID}
		if before, ok := last[of]; ok && before.Sequence > q.Sequence {
			c.report.violation(Inverted, e.CommandID, "applied after %s, which was queued behind it", before.CommandID)
		}
		last[of] = q
	}
}

// versions accounts for every version of an aggregate by one event, for every event
// by one command, and for every command that changed something by an event.
func (c *check) versions() {
	commands := make(map[uuid.UUID]*entry, len(c.inbox))
	for i := range c.inbox {
		commands[c.inbox[i].CommandID] = &c.inbox[i]
	}
	type told struct {
		aggregate
		kind    string
		command uuid.UUID
	}
	seen := make(map[told]bool, len(c.events))
	heard := make(map[uuid.UUID]bool, len(c.inbox))
	last := make(map[aggregate]event)
	for _, ev := range c.events {
		of := aggregate{ev.AggregateType, ev.AggregateID}
		heard[ev.CommandID] = true
		e := commands[ev.CommandID]
		switch this := (told{of, ev.Type, ev.CommandID}); {
		case e == nil:
			c.report.violation(Unaccounted, ev.CommandID, "%s without a line in the inbox", ev.Type)
		case e.Outcome != "applied":
			c.report.violation(Unaccounted, ev.CommandID, "%s of a command that changed nothing", ev.Type)
		case seen[this]:
			c.report.violation(DoubleEffect, ev.CommandID, "%s twice", ev.Type)
		default:
			seen[this] = true
		}
		before := last[of]
		if ev.Version != before.Version+1 && ev.Version != 0 {
			code := Inverted
			if ev.Version > before.Version {
				code = Unaccounted
			}
			c.report.violation(code, ev.CommandID, "version %d of %s %q follows version %d", ev.Version, ev.AggregateType, ev.AggregateID, before.Version)
		}
		last[of] = ev
	}
	for of, ev := range last {
		if ev.Version != ev.Present {
			c.report.violation(DoubleEffect, ev.CommandID, "%s %q is at version %d, and its last event tells of %d", of.kind, of.id, ev.Present, ev.Version)
		}
	}
	for _, e := range c.inbox {
		if e.Outcome == "applied" && !heard[e.CommandID] {
			c.report.violation(LostEffect, e.CommandID, "applied, and no event tells of it")
		}
	}
	for _, a := range c.silent {
		c.report.violation(Unaccounted, uuid.Nil, "no event tells of %s %q", a.kind, a.id)
	}
}
