package history

import (
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// epochs checks that both logs rise, and that no epoch has opened both gates,
// in one log or in the other.
func (c *check) epochs() {
	for i, f := range c.log {
		if i > 0 && f.Epoch < c.log[i-1].Epoch {
			c.report.violation(FallingEpoch, uuid.Nil, "the hosted log: %d follows %d", f.Epoch, c.log[i-1].Epoch)
		}
		direct := f.Mode == continuity.Direct
		if was, known := c.gates[f.Epoch]; known && was != direct {
			c.report.violation(TwoGates, uuid.Nil, "the hosted log: epoch %d is one of direct writes and one of the queue", f.Epoch)
		}
		c.gates[f.Epoch] = direct
		c.report.Epoch = f.Epoch
	}
	for i, f := range c.flips {
		if i > 0 && f.Epoch < c.flips[i-1].Epoch {
			c.report.violation(FallingEpoch, uuid.Nil, "the primary's log: %d follows %d", f.Epoch, c.flips[i-1].Epoch)
		}
		if f.Closed {
			continue
		}
		direct, known := c.gates[f.Epoch]
		if known && direct != f.direct() {
			c.report.violation(TwoGates, uuid.Nil, "epoch %d is %s on the primary, and not in the hosted log", f.Epoch, f.Mode)
		}
		if !known && f.Epoch > 0 { // Epoch 0 has no hosted database.
			c.report.warning(TwoGates, uuid.Nil, "epoch %d is not in the hosted log, which was restored", f.Epoch)
		}
		c.openedEarly(i)
	}
	for _, q := range c.queue {
		if direct, known := c.gates[q.Epoch]; known && direct {
			c.report.violation(TwoGates, q.CommandID, "taken into the queue in epoch %d, which is one of direct writes", q.Epoch)
		}
	}
}

// openedEarly checks that the primary has opened direct writes after the hosted
// log has.
func (c *check) openedEarly(i int) {
	f := c.flips[i]
	if !f.direct() {
		return
	}
	for _, h := range c.log {
		if h.Epoch == f.Epoch && f.At.Before(h.At.Add(-c.Skew)) {
			c.report.violation(TwoGates, uuid.Nil, "the primary opened epoch %d %s before the hosted cutover", f.Epoch, h.At.Sub(f.At).Round(time.Millisecond))
		}
	}
}

// gate checks of an effect that its gate was open. The primary's log says where in
// the inbox each flip stands, so no clock decides.
func (c *check) gate(e entry) {
	f, ok := c.under(e)
	switch {
	case !ok || f.Closed || f.Epoch != e.Epoch:
		c.report.violation(WrongGate, e.CommandID, "%s under epoch %d, when the primary was at %d, closed %t", e.Way, e.Epoch, f.Epoch, f.Closed)
	case e.Way != drained && f.Mode != continuity.Direct:
		c.report.violation(TwoGates, e.CommandID, "a direct write, when the primary was %s of epoch %d", f.Mode, f.Epoch)
	case e.Way == drained && f.Mode == continuity.Queue:
		c.report.violation(WrongGate, e.CommandID, "drained, when the primary was %s of epoch %d", f.Mode, f.Epoch)
	}
}

// under is the flip that an effect stands behind.
func (c *check) under(e entry) (flip, bool) {
	next := sort.Search(len(c.flips), func(i int) bool { return c.flips[i].InboxOrder >= e.ApplyOrder })
	if next == 0 {
		return flip{}, false
	}
	return c.flips[next-1], true
}

// afterTheQueueOpened looks for a direct write that was applied when the hosted
// log had opened the queue: a primary that was cut off did not know.
func (c *check) afterTheQueueOpened(e entry) {
	i := slices.IndexFunc(c.log, func(f hosted.Flip) bool { return f.Epoch > e.Epoch })
	if i < 0 || c.log[i].Mode == continuity.Direct || !e.AppliedAt.After(c.log[i].At.Add(c.Skew)) {
		return
	}
	late := e.AppliedAt.Sub(c.log[i].At).Round(time.Millisecond)
	if c.Strict {
		c.report.violation(TwoGates, e.CommandID, "a direct write of epoch %d, %s after the queue had opened", e.Epoch, late)
		return
	}
	c.report.warning(TwoGates, e.CommandID, "a direct write of epoch %d, %s after the queue had opened", e.Epoch, late)
}
