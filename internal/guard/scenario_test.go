package guard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

// order is a document of a till.
func order(status string) map[string]any { return map[string]any{"type": "order", "status": status} }

func TestLifeOfADay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 5)
	w.put(d.Name, "gone", order("closed"))
	w.request(http.MethodDelete, d.Name+"/gone?rev="+w.acked["gone"], nil)
	delete(w.acked, "gone")
	g := w.guard(parts{})

	for _, want := range []daydb.State{daydb.Archived, daydb.Droppable, daydb.Dropped} {
		report := w.mustNight(g)
		if got := w.day(d.Name); got.State != want {
			t.Fatalf("the day is %s, not %s", got.State, want)
		}
		if changes := report.Changes(); len(changes) != 1 || changes[0].To != want {
			t.Errorf("the report says %+v", changes)
		}
		w.check()
	}
	got := w.day(d.Name)
	if got.Proof == nil || got.Proof.Documents != 6 || got.DropIntendedAt == nil || got.DroppedAt == nil {
		t.Errorf("the row says %+v", got)
	}
	history, err := daydb.History(t.Context(), w.pool, d.ID)
	if err != nil {
		t.Fatal(err)
	}
	var events []daydb.Event
	for _, l := range history {
		events = append(events, l.Event)
	}
	if want := []daydb.Event{daydb.Prewarm, daydb.Activate, daydb.Drain, daydb.Archive, daydb.Seal, intend, daydb.Drop}; !slices.Equal(events, want) {
		t.Errorf("the history says %v", events)
	}
	// Nothing is left to do, and nothing comes back.
	if report := w.mustNight(g); report.Counters()["evaluated"] != 0 {
		t.Errorf("a dropped day was evaluated: %v", report.Counters())
	}
}

// TestStaysRed checks what must keep a day from being archived, and how it is
// explained.
func TestStaysRed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(w *world, db string)
		code    string
		says    string
	}{
		"an open order": {
			func(w *world, db string) { w.put(db, "o-7", order("open")) },
			CodeNonTerminal, "1 document is still open",
		},
		"an order without a status": {
			func(w *world, db string) { w.put(db, "o-7", map[string]any{"type": "order"}) },
			CodeNonTerminal, "(o-7)",
		},
		"a status in another case": {
			func(w *world, db string) { w.put(db, "o-7", order("CLOSED")) },
			CodeNonTerminal, "(o-7)",
		},
		"a catalogue document": {
			func(w *world, db string) { w.put(db, "p-1", map[string]any{"type": "product", "status": "closed"}) },
			CodeCoreType, "catalogue type",
		},
		"no type": {
			func(w *world, db string) { w.put(db, "x", map[string]any{"status": "closed"}) },
			CodeNoType, "no type",
		},
		"a conflict": {
			func(w *world, db string) {
				w.put(db, "o-7", order("closed"))
				w.request(http.MethodPost, db+"/_bulk_docs", map[string]any{"new_edits": false, "docs": []any{
					map[string]any{"_id": "o-7", "_rev": "1-00000000000000000000000000000000", "type": "order", "status": "closed"},
				}})
			},
			CodeConflict, "conflicting revisions",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(40)
			w.sales(d.Name, 1)
			tc.prepare(w, d.Name)
			g := w.guard(parts{})
			for range 3 {
				w.mustNight(g)
			}
			if state := w.day(d.Name).State; state != daydb.Draining {
				t.Fatalf("the day is %s", state)
			}
			x, err := g.Explain(t.Context(), d.Name)
			if err != nil {
				t.Fatal(err)
			}
			if x.Locks == nil || x.Locks.Lock1.Green || !slices.ContainsFunc(x.Locks.Lock1.Reasons, func(r Reason) bool { return r.Code == tc.code && r.Count == 1 }) {
				t.Errorf("locks are %+v", x.Locks)
			}
			if text := strings.Join(x.Summary, "\n"); !strings.Contains(text, tc.says) || x.Next.When == nil {
				t.Errorf("the explanation says:\n%s", text)
			}
			w.check()
		})
	}
}

func TestEmptyDayIsArchivedAndDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(31)
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
}

func TestAgeCountsDates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(30)
	w.sales(d.Name, 1)
	g := w.guard(parts{})
	for range 3 {
		w.mustNight(g)
	}
	if state := w.day(d.Name).State; state != daydb.Archived {
		t.Errorf("a day of exactly 30 days is %s", state)
	}
}

// TestSwitchedOff turns a flag off, or sets a hold, at each request of the night
// that drops a day, up to the last before the DELETE. The day must not be
// dropped: the transaction that precedes the DELETE reads them again.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	shared := newStores(t)
	sealed := func(t *testing.T) (*world, daydb.DayDB) {
		w := shared.world(t)
		d := w.draining(40)
		w.sales(d.Name, 2)
		return w, w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	}
	isDrop := func(req *http.Request) bool {
		return req.Method == http.MethodDelete && strings.Count(req.URL.Path, "/") == 1
	}
	var last int64
	w, _ := sealed(t)
	w.mustNight(w.guard(parts{transport: &faultyTransport{decide: func(n int64, req *http.Request) fault {
		if isDrop(req) {
			last = n - 1
		}
		return passes
	}}}))
	if last < 5 {
		t.Fatalf("the DELETE came after %d requests", last)
	}
	for name, off := range map[string]func(w *world, db string){
		"rollingDbDrop": func(w *world, _ string) { w.setFlags(true, false) },
		"rollingDb":     func(w *world, _ string) { w.setFlags(false, false) },
		"hold": func(w *world, db string) {
			w.tx(func(tx pgx.Tx) error {
				_, err := daydb.SetHold(context.Background(), tx, db, "a lawyer called", "ops")
				return err
			})
		},
	} {
		for at := int64(1); at <= last; at++ {
			t.Run(fmt.Sprintf("%s/%02d", name, at), func(t *testing.T) {
				t.Parallel()
				w, d := sealed(t)
				deletes := 0
				_, _ = w.night(w.guard(parts{transport: &faultyTransport{decide: func(n int64, req *http.Request) fault {
					if n == at {
						off(w, d.Name)
					}
					if isDrop(req) {
						deletes++
					}
					return passes
				}}}))
				_, _ = w.night(w.guard(parts{}))
				if state := w.day(d.Name).State; state != daydb.Droppable || deletes != 0 {
					t.Errorf("the day is %s after %d deletes", state, deletes)
				}
				w.check()
			})
		}
	}
}

// TestSealIsTakenBack switches off between the seal and its move.
func TestSealIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 2)
	w.nights(w.guard(parts{}), d.Name, daydb.Archived)
	g := w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
		if req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, sealDesign) {
			w.setFlags(true, false)
		}
		return passes
	}}})
	report, err := w.night(g)
	if err != nil || len(report.Failures()) != 1 {
		t.Errorf("the night says %v, %+v", err, report.Failures())
	}
	security, err := w.couch.Security(t.Context(), d.Name)
	if err != nil || security.IsSealed() || !security.Marked(d.Generation) {
		t.Errorf("security is %+v, %v", security, err)
	}
	if _, err := w.couch.Doc(t.Context(), d.Name, sealDesign, ""); !errors.Is(err, couch.ErrNotFound) {
		t.Errorf("the sealing design document: %v", err)
	}
	if got := w.day(d.Name); got.State != daydb.Archived || got.SealStartedAt != nil {
		t.Errorf("the row says %+v", got)
	}
}

// TestReopen brings an open document to a day that was archived, and to one
// that was sealed.
func TestReopen(t *testing.T) {
	t.Parallel()
	for _, from := range []daydb.State{daydb.Archived, daydb.Droppable} {
		t.Run(string(from), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(40)
			w.sales(d.Name, 2)
			g := w.guard(parts{})
			w.nights(g, d.Name, from)
			if from == daydb.Droppable {
				// A write that was in flight at the seal: as if it had never been refused.
				w.unsealForAWrite(d)
			}
			w.put(d.Name, "late", order("open"))
			w.mustNight(g)
			got := w.day(d.Name)
			if got.State != daydb.Draining || got.SealStartedAt != nil || got.SealedAt != nil || got.Proof != nil {
				t.Fatalf("the row says %+v", got)
			}
			security, err := w.couch.Security(t.Context(), d.Name)
			if err != nil || security.IsSealed() {
				t.Errorf("security is %+v, %v", security, err)
			}
			w.put(d.Name, "late", map[string]any{"_rev": w.acked["late"], "type": "order", "status": "closed"})
			w.nights(g, d.Name, daydb.Dropped)
		})
	}
}

// unsealForAWrite removes the sealing design document, which binds even the
// administrator, and leaves _security sealed.
func (w *world) unsealForAWrite(d daydb.DayDB) {
	w.t.Helper()
	if err := w.couch.DropDesign(w.t.Context(), d.Name, sealDesign); err != nil {
		w.t.Fatal(err)
	}
}

// TestLateFinishedDocumentIsArchived brings a finished document to a sealed day.
func TestLateFinishedDocumentIsArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 2)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	w.unsealForAWrite(d)
	w.put(d.Name, "late", order("closed"))
	report, err := w.night(w.guard(parts{}))
	if err != nil {
		t.Fatal(err)
	}
	if failures := report.Failures(); len(failures) != 1 || !strings.Contains(failures[0].Error, ErrSealBroken.Error()) {
		t.Errorf("failures are %+v", failures)
	}
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
	if n := w.archived(d); n != 3 {
		t.Errorf("%d documents are archived", n)
	}
}

// TestSettle: a day that was sealed just now is not dropped.
func TestSettle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	g := w.guard(parts{settle: time.Hour})
	w.nights(g, d.Name, daydb.Droppable)
	if report := w.mustNight(g); report.Counters()["settling"] != 1 {
		t.Errorf("counters are %v", report.Counters())
	}
	if state := w.day(d.Name).State; state != daydb.Droppable {
		t.Errorf("the day is %s", state)
	}
	x, err := g.Explain(t.Context(), d.Name)
	if err != nil || x.Next.Action != "drop" || x.Next.When == nil || x.Next.When.Before(time.Now().Add(time.Hour-time.Minute)) {
		t.Errorf("next is %+v, %v", x.Next, err)
	}
}

// TestDecisionGrowsOld: a process that was stopped between the decision and the DELETE decides anew.
func TestDecisionGrowsOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	deletes := 0
	g := w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
		if req.Method == http.MethodDelete {
			deletes++
		}
		return passes
	}}})
	g.deleteWithin = 0
	report, err := w.night(g)
	if err != nil || len(report.Failures()) != 1 || !strings.Contains(report.Failures()[0].Error, ErrNotPermitted.Error()) {
		t.Errorf("the night says %v, %+v", err, report.Failures())
	}
	if state := w.day(d.Name).State; state != daydb.Droppable || deletes != 0 {
		t.Errorf("the day is %s after %d deletes", state, deletes)
	}
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
}

// TestDecisionIsTakenAnew: one that grew old is no reason to wait for the next night.
func TestDecisionIsTakenAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	var g *Guard
	g = w.guard(parts{couch: func(c *couch.Client) Couch {
		return &speaking{Client: c, looked: func() {
			if w.day(d.Name).DropIntendedAt != nil {
				g.deleteWithin = patience
			}
		}}
	}})
	g.deleteWithin = 0
	w.mustNight(g)
	if state := w.day(d.Name).State; state != daydb.Dropped {
		t.Errorf("the day is %s", state)
	}
}

// TestNeverDropped lists what people and accidents do to a sealed day. Each is
// noticed and reported, and none is followed by a DELETE.
func TestNeverDropped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		harm func(w *world, d daydb.DayDB)
		says string
	}{
		"deleted by hand": {
			func(w *world, d daydb.DayDB) { w.request(http.MethodDelete, d.Name, nil) },
			"not dropped by rollingd",
		},
		"deleted and created again": {
			func(w *world, d daydb.DayDB) {
				w.request(http.MethodDelete, d.Name, nil)
				if _, err := w.couch.Create(w.t.Context(), d.Name); err != nil {
					w.t.Fatal(err)
				}
			},
			"another database under this name",
		},
		"created again and marked by another": {
			func(w *world, d daydb.DayDB) {
				w.request(http.MethodDelete, d.Name, nil)
				if _, err := w.couch.Create(w.t.Context(), d.Name); err != nil {
					w.t.Fatal(err)
				}
				other := d.Generation
				other[0] ^= 0xff
				if err := w.couch.PutSecurity(w.t.Context(), d.Name, couch.Sealed(other)); err != nil {
					w.t.Fatal(err)
				}
			},
			"another database under this name",
		},
		"purged": {
			func(w *world, d daydb.DayDB) {
				status, body := w.request(http.MethodPost, d.Name+"/_purge", map[string][]string{"order-0": {w.acked["order-0"]}})
				if status != http.StatusCreated {
					w.t.Fatalf("purge: %d %s", status, body)
				}
				delete(w.acked, "order-0")
			},
			"purge",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(40)
			w.sales(d.Name, 3)
			w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
			tc.harm(w, d)
			deletes := 0
			g := w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
				if req.Method == http.MethodDelete && strings.Count(req.URL.Path, "/") == 1 {
					deletes++
				}
				return passes
			}}})
			var said []string
			for range 3 {
				report, err := w.night(g)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range report.Failures() {
					said = append(said, f.Error)
				}
			}
			x, err := g.Explain(t.Context(), d.Name)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(append(said, x.Summary...), "\n")
			if !strings.Contains(text, tc.says) {
				t.Errorf("nobody says %q:\n%s", tc.says, text)
			}
			if state := w.day(d.Name).State; state != daydb.Droppable || deletes != 0 {
				t.Errorf("the day is %s after %d deletes", state, deletes)
			}
			if x.Eligible {
				t.Error("it is called eligible")
			}
		})
	}
}

// TestExplainLooksAtCouchDBNow: what happened to the database since the last
// evaluation is in the answer.
func TestExplainLooksAtCouchDBNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.guard(parts{})
	says := func(d daydb.DayDB, want string) {
		t.Helper()
		x, err := g.Explain(t.Context(), d.Name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(x.Summary, "\n")
		if got := strings.Contains(text, "WARNING"); got != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%s: the explanation says, want %q:\n%s", d.State, want, text)
		}
	}
	d := w.draining(40)
	says(d, "")
	open := couch.OpenTo(w.r.Role(), d.Generation)
	for _, wrong := range []struct {
		security couch.Security
		want     string
	}{
		{couch.OpenTo("everybody", d.Generation), "admits the roles [everybody]"},
		{couch.Sealed(d.Generation), "knows of no seal"},
		{couch.Security{Admins: open.Admins, Members: open.Members}, "not the one in the ledger"},
	} {
		if err := w.couch.PutSecurity(t.Context(), d.Name, wrong.security); err != nil {
			t.Fatal(err)
		}
		says(d, wrong.want)
	}
	if err := w.couch.PutSecurity(t.Context(), d.Name, open); err != nil {
		t.Fatal(err)
	}
	d = w.nights(g, d.Name, daydb.Droppable)
	says(d, "")
	if err := w.couch.PutSecurity(t.Context(), d.Name, open); err != nil {
		t.Fatal(err)
	}
	says(d, "seal is broken")
	_, _ = w.night(g) // Seals again, and says so.
	d = w.nights(g, d.Name, daydb.Dropped)
	says(d, "")
	if _, err := w.couch.Create(t.Context(), d.Name); err != nil {
		t.Fatal(err)
	}
	says(d, "somebody has created it again")
	gone := w.draining(3)
	w.request(http.MethodDelete, gone.Name, nil)
	says(gone, "was not dropped by rollingd")
}

// undropped is a day whose drop is committed, and whose DELETE never arrived.
func (w *world) undropped() daydb.DayDB {
	w.t.Helper()
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	_, _ = w.night(w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
		if req.Method == http.MethodDelete {
			return fails
		}
		return passes
	}}}))
	if d = w.day(d.Name); d.State != daydb.Droppable || d.DropIntendedAt == nil {
		w.t.Fatalf("the row says %+v", d)
	}
	return d
}

// TestDropThatFailedIsCalledOff: a committed drop whose DELETE never arrived, a
// hold, and a database that somebody then deletes: that was not the drop.
func TestDropThatFailedIsCalledOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.undropped()
	w.tx(func(tx pgx.Tx) error {
		_, err := daydb.SetHold(t.Context(), tx, d.Name, "a lawyer called", "ops")
		return err
	})
	w.mustNight(w.guard(parts{}))
	if d = w.day(d.Name); d.DropIntendedAt != nil {
		t.Errorf("the drop is still intended: %+v", d)
	}
	w.request(http.MethodDelete, d.Name, nil)
	report, err := w.night(w.guard(parts{}))
	if err != nil || len(report.Failures()) != 1 || w.day(d.Name).State != daydb.Droppable {
		t.Errorf("the day is %s: %v, %+v", w.day(d.Name).State, err, report.Failures())
	}
}

// TestPurgedBeforeItWasArchived: the feed never shows what was purged, so the
// day stays, although all that is left of it is archived.
func TestPurgedBeforeItWasArchived(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 2)
	w.request(http.MethodPost, d.Name+"/_purge", map[string][]string{"order-0": {w.acked["order-0"]}})
	delete(w.acked, "order-0")
	g := w.guard(parts{})
	for range 3 {
		w.mustNight(g)
	}
	x, err := g.Explain(t.Context(), d.Name)
	if err != nil {
		t.Fatal(err)
	}
	if x.State != daydb.Draining || x.Locks.Lock2.Green || !strings.Contains(strings.Join(x.Summary, "\n"), "1 purge:") {
		t.Errorf("the day is %s:\n%s", x.State, strings.Join(x.Summary, "\n"))
	}
}

// TestGhosts: a database that the ledger calls DROPPED or does not know raises
// an alarm every night; look-alikes of other environments do not.
func TestGhosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	g := w.guard(parts{})
	w.nights(g, d.Name, daydb.Dropped)

	unknown := w.env + "_acme_norte_daily_20260101"
	names := []string{d.Name, unknown, w.env + "_acme_norte_daily_20260230", w.env + "_acme_norte_core", w.env + "_acme_norte_daily_20260101x"}
	for _, name := range names {
		if _, err := w.couch.Create(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	report, err := w.night(g, func(r *run.Run) { r.Scope = run.Scope{} })
	if err != nil {
		t.Fatal(err)
	}
	var reported []string
	for _, f := range report.Failures() {
		reported = append(reported, f.DBName)
	}
	slices.Sort(reported)
	want := []string{d.Name, unknown}
	slices.Sort(want)
	if !slices.Equal(reported, want) {
		t.Errorf("reported are %v, want %v", reported, want)
	}
	for _, name := range names {
		if _, err := w.couch.Info(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnhealthyIsNotAbsent: whatever CouchDB answers but 404 proves nothing.
func TestUnhealthyIsNotAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	for _, how := range []fault{fails, answers500} {
		report, err := w.night(w.guard(parts{transport: &faultyTransport{decide: func(int64, *http.Request) fault { return how }}}))
		if err == nil && len(report.Failures()) == 0 {
			t.Error("a night without CouchDB reports nothing")
		}
		if state := w.day(d.Name).State; state != daydb.Droppable {
			t.Errorf("the day is %s", state)
		}
	}
	w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
}

// TestOneBadDayStopsNoOther has one day without a database among good ones.
func TestOneBadDayStopsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := w.draining(42)
	good := w.draining(41)
	w.request(http.MethodDelete, bad.Name, nil)
	report, err := w.night(w.guard(parts{}))
	if err != nil {
		t.Fatal(err)
	}
	if f := report.Failures(); len(f) != 1 || f[0].DBName != bad.Name {
		t.Errorf("failures are %+v", f)
	}
	if state := w.day(good.Name).State; state != daydb.Archived {
		t.Errorf("the good day is %s", state)
	}
}

// TestQuietNight counts requests: a day that has not changed costs two.
func TestQuietNight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(20)
	w.sales(d.Name, 3)
	counter := &faultyTransport{decide: func(int64, *http.Request) fault { return passes }}
	g := w.guard(parts{transport: counter})
	w.nights(g, d.Name, daydb.Archived)
	w.mustNight(g)
	counter.n.Store(0)
	report := w.mustNight(g)
	if n := counter.n.Load(); n != 2 || report.Counters()["unchanged"] != 1 {
		t.Errorf("a quiet night took %d requests: %v", n, report.Counters())
	}
}

// TestDryRun foresees, and writes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(20)
	w.sales(d.Name, 1)
	g := w.guard(parts{})
	w.nights(g, d.Name, daydb.Archived)
	before := w.dump()
	report := w.mustNight(g, func(r *run.Run) {
		r.DryRun = true
		r.Scope.BusinessDay = w.today().Add(36)
	})
	if changes := report.Changes(); len(changes) != 1 || changes[0].Event != daydb.Seal || report.Counters()["would_seal"] != 1 {
		t.Errorf("foresees %+v, %v", changes, report.Counters())
	}
	if after := w.dump(); after != before {
		t.Errorf("a dry run wrote:\n%s\nwas\n%s", after, before)
	}
	_, err := w.night(g, func(r *run.Run) { r.Scope.BusinessDay = w.today().Add(1) })
	if !errors.Is(err, ErrBusinessDay) {
		t.Errorf("a later day without dryRun: %v", err)
	}
	// An earlier day shrinks all ages, and is free.
	w.mustNight(g, func(r *run.Run) { r.Scope.BusinessDay = w.today().Add(-30) })
}

// dump is everything that the guard could write to, as text.
func (w *world) dump() (text string) {
	w.t.Helper()
	err := w.pool.QueryRow(w.t.Context(), `
		select (select coalesce(string_agg(d::text, E'\n' order by id), '') from day_databases d)
		    || (select coalesce(string_agg(e::text, E'\n' order by id), '') from guard_evaluations e)
		    || (select coalesce(string_agg(x::text, E'\n' order by id), '') from day_database_transitions x)
		    || (select coalesce(string_agg(c::text, E'\n' order by id), '') from archive_checkpoints c)
		    || (select count(*)::text from archived_docs)
		    || (select count(*)::text from leases)`).Scan(&text)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

// TestFlagsOff: a company with its flags off is not looked at.
func TestFlagsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.setFlags(false, false)
	before := w.dump()
	counter := &faultyTransport{decide: func(int64, *http.Request) fault { return passes }}
	w.mustNight(w.guard(parts{transport: counter}))
	if after := w.dump(); after != before || counter.n.Load() != 0 {
		t.Errorf("%d requests, and the tables are\n%s", counter.n.Load(), after)
	}
	// Archived days are kept while the drop alone is off.
	w.setFlags(true, false)
	g := w.guard(parts{})
	for range 4 {
		w.mustNight(g)
	}
	if state := w.day(d.Name).State; state != daydb.Archived {
		t.Errorf("the day is %s", state)
	}
}
