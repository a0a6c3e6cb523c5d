package drain

import (
	"fmt"
	"testing"
	"time"
)

// TestAcksGather holds the first ack back until all commands are applied: what
// was committed meanwhile goes with the next call, but for the last of each other
// worker, which may have committed without having said so yet. None is forgotten.
func TestAcksGather(t *testing.T) {
	t.Parallel()
	const commands = 60
	w := newWorld(t)
	w.run(w.drainer(nil))
	w.openQueue(1)
	for n := range commands {
		w.enqueue(command(fmt.Sprint("o", n), "order.create", fmt.Sprint("o", n), ofNorth))
	}
	calls := 0
	d := w.drainer(&transport{before: func(_ int64, function string) error {
		if function != "continuity_ack_commands" {
			return nil
		}
		calls++ // One worker acks at a time.
		start := time.Now()
		for scalar[int](w, w.primary, `select count(*) from primary_drained`) < commands {
			if time.Since(start) > time.Minute {
				return errStopped
			}
		}
		return nil
	}})
	d.Workers, d.Batch = 8, 100
	d.ClaimLease = time.Hour // Long after it is decided.
	if r := w.run(d); r.Applied != commands || r.Cutover == nil || r.Cutover.Applied != commands {
		t.Errorf("%+v", r)
	}
	if most := 2 + d.Workers - 1; calls > most {
		t.Errorf("%d calls for %d commands, want at most %d", calls, commands, most)
	}
	if n := scalar[int](w, w.hosted, `select count(*) from continuity_commands where status = 'acked' and attempts = 0`); n != commands {
		t.Errorf("%d are acked", n)
	}
	w.checkHistory(true)
}
