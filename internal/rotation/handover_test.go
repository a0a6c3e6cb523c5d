package rotation_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/run"
)

// archived runs the archiver once, through a transport; nil is none.
func (w *world) archived(transport http.RoundTripper) {
	w.Helper()
	a := archive.New(archive.Options{
		Pool:   w.pool,
		Couch:  w.client(transport),
		Leases: fence.New(w.pool, "archiver", time.Minute),
		Log:    slog.New(slog.DiscardHandler),
		Env:    w.env,
	})
	report := &run.Report{}
	if err := a.Run(w.Context(), run.Run{ID: 1, Actor: "test", Report: report}); err != nil {
		w.Fatal(err)
	}
	w.clean(report)
}

// rows returns the databases that a document was archived from, as it is now in
// the legacy database.
func (w *world) rows(id string) []string {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `
		select c.db_name, d.rev
		from archived_docs d
		join archive_checkpoints c on c.id = d.source_id
		where d.doc_id = $1
		order by 1`, []byte(id))
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	var dbs []string
	want := w.rev(w.legacy, id)
	for rows.Next() {
		var db, rev string
		if err := rows.Scan(&db, &rev); err != nil {
			w.Fatal(err)
		}
		if rev == want {
			dbs = append(dbs, db)
		}
	}
	return dbs
}

// tenants returns whose documents the archiver takes from the legacy database.
func (w *world) tenants() string {
	w.Helper()
	var tenants []string
	err := w.pool.QueryRow(w.Context(), `select tenants from archive_checkpoints where db_name = $1`, w.legacy).Scan(&tenants)
	if err != nil {
		w.Fatal(err)
	}
	return strings.Join(tenants, " ")
}

// What was finished before the cutover goes to the archive and to no till, also
// when nothing was archived before it.
func TestHistoryStaysBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	today := w.dayDB(r1, w.today())
	w.put(w.legacy, "open", order("r1", "open"))
	for i := range 30 {
		w.put(w.legacy, fmt.Sprintf("old-%d", i), order("r1", "closed"))
	}
	if n := w.rotated(run.Scope{}).Counters()["carried_documents"]; n != 1 {
		t.Errorf("%d documents carried, want 1", n)
	}
	w.wantLeaves("open", today)

	w.archived(nil)
	for i := range 30 {
		id := fmt.Sprintf("old-%d", i)
		w.wantAbsent(id, today)
		if dbs := w.rows(id); len(dbs) != 1 {
			t.Errorf("%s was archived from %v", id, dbs)
		}
	}
	// From then on rotation alone looks after the restaurant.
	w.put(w.legacy, "late", order("r1", "closed"))
	w.rotated(run.Scope{})
	w.archived(nil)
	w.wantLeaves("late", today)
	if dbs := w.rows("late"); !slices.Equal(dbs, []string{today}) {
		t.Errorf("late was archived from %v", dbs)
	}
	if got := w.tenants(); got != "other/r9" {
		t.Errorf("tenants of the legacy database: %s", got)
	}
}

// The same for a restaurant that is registered when its company's devices are
// routed already.
func TestHistoryOfARestaurantThatJoins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.rotated(run.Scope{})
	w.archived(nil)
	w.put(w.legacy, "old", order("r2", "closed"))
	w.put(w.legacy, "open", order("r2", "open"))
	w.register(r2, "America/Santiago")
	w.rotated(run.Scope{})
	today := w.dayDB(r2, w.today())
	w.wantLeaves("open", today)
	w.wantAbsent("old", today)
	w.put(w.legacy, "late", order("r2", "closed"))
	w.rotated(run.Scope{})
	w.wantLeaves("late", today)
	w.archived(nil)
	if dbs := w.rows("old"); !slices.Equal(dbs, []string{w.legacy}) {
		t.Errorf("old was archived from %v", dbs)
	}
	w.archived(nil)
	if got := w.tenants(); got != "other/r9" {
		t.Errorf("tenants of the legacy database: %s", got)
	}
}

// Tills push to the legacy database before, at every request of, and after a
// cutover and the archivings around it. Each document is in the archive or in the
// day's database afterwards, whichever of the two is under way at which moment.
func TestNothingFallsBetweenRotationAndArchive(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(w *world, pushing http.RoundTripper){
		"one after the other": func(w *world, pushing http.RoundTripper) {
			w.clean(w.rotateOver(pushing))
			w.archived(pushing)
		},
		"archived first": func(w *world, pushing http.RoundTripper) {
			w.archived(pushing)
			w.clean(w.rotateOver(pushing))
		},
		// The archiver asks what is pending, reads, and asks again.
		"cutover before it is archived": cutOverAfter(1),
		"cutover while it is archived":  cutOverAfter(2),
		"cutover after it was archived": cutOverAfter(3),
		"archived at every step of the cutover": func(w *world, pushing http.RoundTripper) {
			w.clean(w.rotateOver(&breaker{match: func(request string) bool {
				if strings.Contains(request, w.legacy) || strings.Contains(request, "_bulk_docs") {
					w.archived(pushing)
				}
				return false
			}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, r1)
			w.rotated(run.Scope{BusinessDay: w.today().Add(-1), RestaurantID: "nobody"})
			n := 0
			push := func() {
				n++
				w.put(w.legacy, fmt.Sprintf("closed-%d", n), order("r1", "closed"))
				w.put(w.legacy, fmt.Sprintf("open-%d", n), order("r1", "open"))
				w.put(w.legacy, fmt.Sprintf("closes-%d", n), order("r1", "open"))
				if n > 2 {
					w.put(w.legacy, fmt.Sprintf("closes-%d", n-2), order("r1", "closed"))
				}
			}
			push()
			push()
			meanwhile(w, &breaker{match: func(string) bool { push(); return false }})
			if !w.flags("acme").DeviceRouted {
				t.Fatal("devices are not routed")
			}
			push()
			// Two nights, since what arrives after the rotation waits for the next.
			for range 2 {
				w.archived(nil)
				w.rotated(run.Scope{})
			}
			w.archived(nil)
			if got := w.tenants(); got != "other/r9" {
				t.Errorf("tenants of the legacy database: %s", got)
			}
			day := w.dayDB(r1, w.today())
			for i := 1; i <= n; i++ {
				w.wantLeaves(fmt.Sprintf("open-%d", i), day)
				for _, id := range []string{fmt.Sprintf("closed-%d", i), fmt.Sprintf("closes-%d", i)} {
					if !slices.Equal(w.leaves(day, id), w.leaves(w.legacy, id)) && len(w.rows(id)) == 0 {
						t.Errorf("%s of %d is neither in the archive nor in the day", id, n)
					}
					// What a till sees as open is closed as soon as it is elsewhere.
					if held := w.leaves(day, id); len(held) > 0 && !slices.Equal(held, w.leaves(w.legacy, id)) {
						t.Errorf("%s of %d is still %v in the day", id, n, held)
					}
				}
			}
		})
	}
}

// cutOverAfter archives, and cuts over as soon as CouchDB has answered the nth
// look at the feed of the legacy database.
func cutOverAfter(nth int) func(w *world, pushing http.RoundTripper) {
	return func(w *world, pushing http.RoundTripper) {
		w.Helper()
		n := 0
		w.archived(answered(func(request string) {
			if request == "GET /"+w.legacy+"/_changes" {
				if n++; n == nth {
					w.clean(w.rotateOver(pushing))
				}
			}
		}))
		if n < nth {
			w.Errorf("the archiver looked at the feed %d times", n)
		}
	}
}

// answered is told of each request that was answered.
type answered func(request string)

func (f answered) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	f(req.Method + " " + req.URL.Path)
	return res, err
}

// rotateOver is rotate through a transport.
func (w *world) rotateOver(transport http.RoundTripper) *run.Report {
	w.Helper()
	report := &run.Report{}
	err := w.rotator(w.client(transport)).Run(w.Context(), run.Run{ID: 1, Actor: "test", Report: report})
	if err != nil {
		w.Fatal(err)
	}
	return report
}

// An order that was carried, closed, archived and dropped is not brought back by
// a reading of the legacy database that begins at the start again.
func TestClosedOrdersAreNotCarriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	yesterday := w.today().Add(-1)
	w.put(w.legacy, "open", order("r1", "open"))
	w.rotated(run.Scope{BusinessDay: yesterday})
	w.put(w.dayDB(r1, yesterday), "open", order("r1", "closed"))
	w.archived(nil)
	w.rotated(run.Scope{})
	w.leaveDay(r1, yesterday)
	w.put(w.legacy, "still", order("r1", "open"))
	if _, err := w.pool.Exec(t.Context(), `update legacy_copies set since = '0', completed_at = null`); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	w.wantAbsent("open", w.dayDB(r1, w.today()))
	w.wantLeaves("still", w.dayDB(r1, w.today()))
}

// leaveDay makes a DRAINING day ARCHIVED, as the guard does.
func (w *world) leaveDay(r daydb.Restaurant, day daydb.Day) {
	w.Helper()
	w.tx(func(tx pgx.Tx) error {
		d, err := daydb.LoadForUpdate(w.Context(), tx, w.dayDB(r, day))
		if err != nil {
			return err
		}
		_, err = tx.Exec(w.Context(), `
			insert into guard_evaluations
			  (day_database_id, token, as_of, lock1_green, lock2_green, lock3_green, eligible, evidence, couch_state)
			values ($1, $2, current_date, true, true, false, false, '{}', '{}')`, d.ID, d.Token)
		if err != nil {
			return err
		}
		_, err = daydb.Move(w.Context(), tx, d, daydb.Archive, daydb.Mark{Actor: "test", Token: d.Token}, nil)
		return err
	})
}
