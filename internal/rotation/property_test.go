package rotation_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

// checked is a test that lasts and fails as one rapid check does.
type checked struct {
	testing.TB
	rt *rapid.T
}

func (c checked) Cleanup(f func())                  { c.rt.Cleanup(f) }
func (c checked) Context() context.Context          { return c.rt.Context() }
func (c checked) Error(args ...any)                 { c.rt.Helper(); c.rt.Error(args...) }
func (c checked) Errorf(format string, args ...any) { c.rt.Helper(); c.rt.Errorf(format, args...) }
func (c checked) Fatal(args ...any)                 { c.rt.Helper(); c.rt.Fatal(args...) }
func (c checked) Fatalf(format string, args ...any) { c.rt.Helper(); c.rt.Fatalf(format, args...) }
func (c checked) Failed() bool                      { return c.rt.Failed() }
func (c checked) Log(args ...any)                   { c.rt.Log(args...) }
func (c checked) Logf(format string, args ...any)   { c.rt.Logf(format, args...) }

// Whatever tills do and whichever runs break, in whichever order: what must hold
// at any moment holds after every step, and one clean run of rotation and archive
// at the end brings every document of the legacy database to where it belongs.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(checked{t, rt}, r1, r2)
		day := w.today().Add(-6)
		restaurants := []daydb.Restaurant{r1, r2}
		document := func(rt *rapid.T) (id string, fields map[string]any) {
			r := rapid.SampledFrom(restaurants).Draw(rt, "restaurant").RestaurantID
			n := rapid.IntRange(0, 2).Draw(rt, "n")
			if rapid.Bool().Draw(rt, "catalogue") {
				return fmt.Sprintf("product-%s-%d", r, n), product(r)
			}
			return fmt.Sprintf("order-%s-%d", r, n), order(r, rapid.SampledFrom([]string{"open", "closed"}).Draw(rt, "status"))
		}
		scope := func(rt *rapid.T) run.Scope {
			s := run.Scope{BusinessDay: day}
			if rapid.Bool().Draw(rt, "canary") {
				s.CompanyID, s.RestaurantID = "acme", rapid.SampledFrom(restaurants).Draw(rt, "restaurant").RestaurantID
			}
			return s
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { w.check() },
			"write": func(rt *rapid.T) {
				id, fields := document(rt)
				w.put(w.legacy, id, fields)
			},
			"delete": func(rt *rapid.T) {
				id, _ := document(rt)
				if w.rev(w.legacy, id) == "" {
					rt.Skip("there is no such document")
				}
				w.remove(w.legacy, id)
			},
			"night": func(rt *rapid.T) {
				// Today is left for the run at the end: a day that passed unused while
				// its database could not be looked at is closed with the next activation.
				n := rapid.IntRange(1, 2).Draw(rt, "days")
				if w.today().Before(day.Add(n + 1)) {
					rt.Skip("it is not that day yet")
				}
				day = day.Add(n)
			},
			"rotate": func(rt *rapid.T) { w.clean(w.rotate(scope(rt))) },
			"break": func(rt *rapid.T) {
				b := &breaker{
					fault: rapid.SampledFrom([]fault{failed, unanswered, killed}).Draw(rt, "fault"),
					nth:   rapid.IntRange(1, 40).Draw(rt, "request"),
				}
				w.runBroken(b, scope(rt))
			},
			"archive": func(*rapid.T) { w.archived(nil) },
			"switch":  func(rt *rapid.T) { w.setFlags("acme", rapid.Bool().Draw(rt, "on")) },
		})

		w.setFlags("acme", true)
		w.rotated(run.Scope{BusinessDay: day})
		w.rotated(run.Scope{})
		w.checkRotated(w.today(), r1, r2)
		if !w.flags("acme").DeviceRouted {
			rt.Error("devices are not routed")
		}
		w.archived(nil)
		for _, r := range restaurants {
			for n := range 3 {
				if id := fmt.Sprintf("product-%s-%d", r.RestaurantID, n); w.checkArrived(id, w.core(r)) != (w.rev(w.legacy, id) != "") {
					rt.Errorf("%s is not in core", id)
				}
				id := fmt.Sprintf("order-%s-%d", r.RestaurantID, n)
				if carried := w.checkArrived(id, w.dayNames(r)...); !carried && w.rev(w.legacy, id) != "" && len(w.rows(id)) == 0 {
					rt.Errorf("%s is neither in a day nor in the archive", id)
				}
			}
		}
	})
}

func (w *world) dayNames(r daydb.Restaurant) []string {
	var names []string
	for _, d := range w.days(r) {
		names = append(names, d.Name)
	}
	return names
}

// checkArrived holds that a document of the legacy database is in at most one of
// the databases, and there as it is. It reports whether it is live in one.
func (w *world) checkArrived(id string, dbs ...string) bool {
	w.Helper()
	legacy := w.leaves(w.legacy, id)
	holders := 0
	for _, db := range dbs {
		leaves := w.leaves(db, id)
		if len(leaves) == 0 {
			continue
		}
		holders++
		if !slices.Equal(leaves, legacy) {
			w.Errorf("%s in %s: leaves %v, want %v", id, db, leaves, legacy)
		}
	}
	if holders > 1 {
		w.Errorf("%s is in %d of %v", id, holders, dbs)
	}
	return holders == 1 && w.rev(w.legacy, id) != ""
}

// A paused run that comes back after its lease has passed on finds that it may
// not write, to Postgres or, through the generation, to core.
func TestOvertakenRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.rotated(run.Scope{BusinessDay: w.today().Add(-1)})
	overtaken := false
	c := hooked{w.couch, func(call, db string) {
		// Just before tomorrow is created: another run takes everything over.
		if call == "Create" && !overtaken {
			overtaken = true
			w.expireLeases()
			w.rotated(run.Scope{})
			w.checkRotated(w.today(), r1)
		}
	}}
	report := &run.Report{}
	err := w.rotator(c).Run(t.Context(), run.Run{Actor: "test", Report: report})
	if err != nil {
		t.Fatal(err)
	}
	if !overtaken || len(report.Failures()) == 0 {
		t.Errorf("overtaken %v, failures %v", overtaken, report.Failures())
	}
	w.checkRotated(w.today(), r1)
}
