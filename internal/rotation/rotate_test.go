package rotation_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/run"
)

func order(r string, status string) map[string]any {
	return map[string]any{"type": "order", "companyId": "acme", "restaurantId": r, "status": status}
}

func product(r string) map[string]any {
	return map[string]any{"type": "product", "companyId": "acme", "restaurantId": r, "name": "cazuela"}
}

func TestFirstRotation(t *testing.T) {
	w := newWorld(t, r1, r2)
	p1 := w.put(w.legacy, "p1", product("r1"))
	w.put(w.legacy, "p2", product("r2"))
	w.put(w.legacy, "p9", map[string]any{"type": "product", "companyId": "other", "restaurantId": "r9"})
	o1 := w.put(w.legacy, "o1", order("r1", "open"))

	report := w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1, r2)
	t.Log(report.Counters())
	if got := w.rev(w.core(r1), "p1"); got != p1 {
		t.Errorf("p1 in core: %q, want %q", got, p1)
	}
	if w.rev(w.core(r1), "p2") != "" || w.rev(w.core(r1), "p9") != "" || w.rev(w.core(r1), "o1") != "" {
		t.Error("core of r1 has documents that are not its own")
	}
	if got := w.rev(w.dayDB(r1, w.today()), "o1"); got != o1 {
		t.Errorf("o1 in today's database: %q, want %q", got, o1)
	}
	if !w.flags("acme").DeviceRouted {
		t.Error("devices are not routed")
	}
	report = w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1, r2)
	t.Log(report.Counters())
}
