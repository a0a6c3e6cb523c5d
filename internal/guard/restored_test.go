package guard

import (
	"net/http"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// hide sets the checkpoint of a day to the end of its feed: as if the archive had
// read on, and the files of the database had then been put back to what they are.
func (w *world) hide(d daydb.DayDB) {
	w.t.Helper()
	feed, err := w.couch.Changes(w.t.Context(), d.Name, couch.ChangesOptions{Since: couch.SeqStart})
	if err != nil {
		w.t.Fatal(err)
	}
	defer feed.Close()
	for feed.Next() {
		continue
	}
	end, _ := feed.End()
	if _, err := w.pool.Exec(w.t.Context(), `update archive_checkpoints set since = $1 where db_name = $2`, end, d.Name); err != nil {
		w.t.Fatal(err)
	}
}

// TestRestoredFromABackup has what the feed hides read at the latest by the
// evaluation after the one that misses it, which is red.
func TestRestoredFromABackup(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, hidden func(w *world, db string)
		// lock1 is what the look that misses it says; its lock 2 is red.
		lock1 bool
		then  daydb.State
	}{
		"a finished document": {
			hidden: func(w *world, db string) { w.put(db, "hidden", order("closed")) },
			lock1:  true, then: daydb.Archived,
		},
		"another revision": {
			hidden: func(w *world, db string) {
				fields := order("closed")
				fields["_rev"], fields["tip"] = w.acked["order-1"], 100
				w.put(db, "order-1", fields)
			},
			lock1: true, then: daydb.Archived,
		},
		"an open document": {
			hidden: func(w *world, db string) { w.put(db, "hidden", order("open")) },
			lock1:  true, then: daydb.Draining,
		},
		"an order that was closed": {
			before: func(w *world, db string) { w.put(db, "was-open", order("open")) },
			hidden: func(w *world, db string) {
				fields := order("closed")
				fields["_rev"] = w.acked["was-open"]
				w.put(db, "was-open", fields)
			},
			then: daydb.Archived,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(1)
			w.sales(d.Name, 3)
			if tc.before != nil {
				tc.before(w, d.Name)
			}
			g := w.guard(parts{})
			w.mustNight(g)
			tc.hidden(w, d.Name)
			w.hide(d)

			if c := w.mustNight(g).Counters(); c["reread"] != 1 {
				t.Errorf("the first night: %v", c)
			}
			e, err := latest(t.Context(), w.pool, d.ID)
			if err != nil {
				t.Fatal(err)
			}
			if e.Lock1.Green != tc.lock1 || e.Lock2.Green {
				t.Errorf("the look that missed it: %+v, %+v", e.Lock1, e.Lock2)
			}
			if c := w.mustNight(g).Counters(); c["reread"] != 0 {
				t.Errorf("the second night: %v", c)
			}
			if got := w.day(d.Name); got.State != tc.then {
				t.Errorf("the day is %s, not %s", got.State, tc.then)
			}
			w.check()
		})
	}
}

// TestOpenDocumentsAreNoReasonToReadAgain: what the archive knows and does not
// take is not read every night.
func TestOpenDocumentsAreNoReasonToReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(1)
	w.sales(d.Name, 3)
	w.put(d.Name, "open", order("open"))
	w.put(d.Name, "product", map[string]any{"type": "product"})
	for _, rev := range []string{"2-a", "2-b"} {
		status, body := w.requestRaw(http.MethodPost, d.Name+"/_bulk_docs",
			[]byte(`{"new_edits":false,"docs":[{"_id":"fork","_rev":"`+rev+`","type":"order","status":"closed"}]}`))
		if status != http.StatusCreated {
			t.Fatalf("fork: %d %s", status, body)
		}
	}
	g := w.guard(parts{})
	for range 2 {
		if c := w.mustNight(g).Counters(); c["reread"] != 0 || c["blocked"] != 1 {
			t.Errorf("counters %v", c)
		}
	}
}
