package guard

import (
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

// TestUnknownZoneStopsNoOther: a zone that was typed by hand, or that this
// Postgres does not know, keeps only its own restaurant from being evaluated and
// explained.
func TestUnknownZoneStopsNoOther(t *testing.T) {
	t.Parallel()
	s := newStores(t)
	lost, w := s.world(t), s.world(t)
	theirs, ours := lost.draining(3), w.draining(3)
	w.sales(ours.Name, 1)
	_, err := s.pool.Exec(t.Context(), `update restaurants set timezone = 'Mars/Olympus' where company_id = $1`, lost.r.CompanyID)
	if err != nil {
		t.Fatal(err)
	}
	g := w.guard(parts{})
	report, err := w.night(g, func(r *run.Run) { r.Scope = run.Scope{} })
	if err != nil {
		t.Fatal(err)
	}
	if state := w.day(ours.Name).State; state != daydb.Archived {
		t.Errorf("the day of the other restaurant is %s", state)
	}
	failures := report.Failures()
	if len(failures) != 1 || failures[0].CompanyID != lost.r.CompanyID || !strings.Contains(failures[0].Error, "Mars/Olympus") {
		t.Errorf("failures: %+v", failures)
	}

	all, err := g.List(t.Context(), daydb.Filter{})
	if err != nil || len(all) != 2 {
		t.Fatalf("the listing has %d days: %v", len(all), err)
	}
	x, err := g.Explain(t.Context(), theirs.Name)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(x.Summary, "\n"); !strings.Contains(text, "Mars/Olympus") || x.Next.When != nil {
		t.Errorf("the explanation does not name the zone:\n%s", text)
	}
}
