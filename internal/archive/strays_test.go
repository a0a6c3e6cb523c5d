package archive_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/run"
)

// TestStraysAreCounted counts what belongs to nobody, once, and nothing else.
func TestStraysAreCounted(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.put(db,
		legacyDoc("mine", "acme", "centro", ""),
		legacyDoc("routed", "routed", "centro", ""),
		legacyDoc("unregistered", "acme", "nowhere", ""),
		`{"_id":"open","companyId":"acme","restaurantId":"Centro","type":"order","status":"open"}`,
		`{"_id":"ownerless","type":"payment","status":"approved"}`,
		`{"_id":"number","companyId":"acme","restaurantId":7,"type":"cashflow","status":"closed"}`,
		`{"_id":"menu","type":"menu"}`,
		`{"_id":"untyped"}`)
	dry := &run.Report{}
	if err := w.Run(t.Context(), run.Run{Actor: "test", DryRun: true, Report: dry}); err != nil {
		t.Fatal(err)
	}
	for name, counters := range map[string]map[string]int64{"dry": dry.Counters(), "first": w.legacyRun().Counters()} {
		if counters["unassigned"] != 4 {
			t.Errorf("%s run: %v", name, counters)
		}
	}
	if c := w.legacyRun().Counters(); c["unassigned"] != 0 {
		t.Errorf("second run: %v", c)
	}
}
