package drain

import (
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
)

// TestCommandDiesWhileSealed has a command come in right before the seal, and die
// behind it: the queue takes commands again at once.
func TestCommandDiesWhileSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	orphan := command("orphan", "order.cancel", "o9", `{}`)
	late := false
	d := w.drainer(&transport{before: func(_ int64, function string) error {
		if function == "continuity_seal" && !late {
			late = true
			w.enqueue(orphan)
		}
		return nil
	}})
	r := w.run(d)
	if r.WaitingFor != "dead" || r.Dead != 2 || r.Cutover != nil || r.Fence.Mode != continuity.Catchup {
		t.Fatalf("the run says %+v", r)
	}
	local, err := d.Primary.State(t.Context())
	if err != nil || local.Mode != continuity.Catchup || local.Direct(d.Primary.Policy()) {
		t.Errorf("the primary's fence is %+v, %v", local, err)
	}
	w.enqueue(command("o10", "order.create", "o10", ofNorth))
	if r := w.run(d); r.Cutover != nil || r.Applied != 1 {
		t.Errorf("with the dead one undecided: %+v", r)
	}
	if _, err := w.queue.Skip(t.Context(), orphan.CommandID, "test", "gone"); err != nil {
		t.Fatal(err)
	}
	if r := w.run(d); r.Cutover == nil || r.Fence.Mode != continuity.Direct {
		t.Errorf("after the decision: %+v", r)
	}
	w.checkHistory(true)
}

// TestFaultsOfUnseal breaks the step that opens a sealed queue again: the next run
// opens it.
func TestFaultsOfUnseal(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct{ before, after func(int64, string) error }{
		"not sent":   {before: at("continuity_unseal", errNotSent)},
		"unanswered": {after: at("continuity_unseal", errUnanswered)},
		"stopped":    {after: at("continuity_unseal", errStopped)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			orphan := command("orphan", "order.cancel", "o9", `{}`)
			tr := &transport{after: broken.after}
			late := false
			tr.before = func(n int64, function string) error {
				if function == "continuity_seal" && !late {
					late = true
					w.enqueue(orphan)
				}
				if broken.before != nil {
					return broken.before(n, function)
				}
				return nil
			}
			if r, err := w.drainer(tr).RunOnce(t.Context()); err == nil || r.Cutover != nil {
				t.Fatalf("%+v, %v", r, err)
			}
			w.heal()
			d := w.drainer(nil)
			if r := w.run(d); r.WaitingFor != "dead" || r.Fence.Mode != continuity.Catchup {
				t.Errorf("the next run says %+v", r)
			}
			w.enqueue(command("o10", "order.create", "o10", ofNorth))
			if _, err := w.queue.Skip(t.Context(), orphan.CommandID, "test", "gone"); err != nil {
				t.Fatal(err)
			}
			w.finish(3)
		})
	}
}

// at breaks each call of a function.
func at(function string, broken error) func(int64, string) error {
	return func(_ int64, called string) error {
		if called != function {
			return nil
		}
		return broken
	}
}
