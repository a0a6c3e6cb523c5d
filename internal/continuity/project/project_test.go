package project

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestProject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.name(north, yesterday)
	w.apply(north, "order.create", "o1", `{"total":9007199254740993,"price":1.50,"_secret":1,"status":"x","lines":[{"product":"ñandú"}]}`)
	if r := w.run(); r.Written != 1 || r.Waiting != 0 {
		t.Errorf("%+v", r)
	}
	w.expect(db, "order:o1", "type order companyId acme restaurantId north orderId o1 status pending continuity.version 1 businessDay "+yesterday+
		" total 9007199254740993 price 1.5 lines.0.product ñandú")
	w.apply(north, "order.confirm_payment", "o1", `{"transactionId":"t1","amount":"12.30","method":"pix"}`)
	w.run()
	w.expect(db, "order:o1", "status paid continuity.version 2 paymentId t1 total 9007199254740993")
	w.expect(db, "payment:t1", "type payment companyId acme restaurantId north paymentId t1 orderId o1 status approved amount 12.3 method pix businessDay "+yesterday)
	w.status("o1", "preparing")
	w.status("o1", "delivered")
	if r := w.run(); r.Written != 1 {
		t.Errorf("%+v", r)
	}
	w.expect(db, "order:o1", "status closed continuity.version 4 continuity.status delivered")
	rev := gjson.GetBytes(w.doc(db, "order:o1"), "_rev").String()
	w.exec(`update orders set projected_version = 0`)
	w.run()
	if again := gjson.GetBytes(w.doc(db, "order:o1"), "_rev").String(); again != rev {
		t.Error("a document that is there was written again")
	}
	if r := w.run(); r != (Result{}) {
		t.Errorf("nothing to do: %+v", r)
	}
}

// TestDayMoves rotates between an order's creation and its end, and between the
// binding and the write.
func TestDayMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, now := w.name(north, yesterday), w.name(north, today)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	rotated := false
	moving := hooked{Client: w.couch, before: func(string, string) {
		if !rotated {
			rotated = true
			w.rotate(north)
		}
	}}
	if _, err := w.projector(moving, w.pool).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.apply(north, "order.create", "o2", `{"total":1}`)
	w.status("o1", "paid")
	w.run()
	w.expect(old, "order:o1", "status paid businessDay "+yesterday)
	w.expect(now, "order:o2", "status pending businessDay "+today)
	w.absent(now, "order:o1")
	w.absent(old, "order:o2")
}

// TestSealedDay has an order be refunded when its day is sealed, being sealed or
// gone: it goes into the ACTIVE day, and says where it comes from.
func TestSealedDay(t *testing.T) {
	t.Parallel()
	for _, state := range []daydb.State{daydb.Archived, daydb.Droppable, daydb.Dropped} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old, now := w.name(north, yesterday), w.name(north, today)
			w.apply(north, "order.create", "o1", `{"total":1}`)
			w.status("o1", "paid")
			w.run()
			w.rotate(north)
			w.seal(old)
			w.set(old, state)
			if state == daydb.Dropped {
				if err := w.couch.Delete(t.Context(), old); err != nil {
					t.Fatal(err)
				}
			}
			w.status("o1", "refunded")
			r := w.run()
			if state == daydb.Archived {
				// The seal has begun, and the ledger does not say so yet.
				if r.Written != 0 || r.Waiting != 1 {
					t.Errorf("while it is being sealed: %+v", r)
				}
				w.absent(now, "order:o1")
				w.set(old, daydb.Droppable)
				r = w.run()
			}
			if r.Written != 1 || r.Waiting != 0 {
				t.Errorf("%+v", r)
			}
			w.expect(now, "order:o1", "status refunded total 1 businessDay "+today+" originDay "+yesterday)
			if state != daydb.Dropped {
				w.expect(old, "order:o1", "status paid")
			}
		})
	}
}

// TestSealedBehindTheWrite has a write succeed without an answer, and the day be
// sealed before the next run: the document is not written into a second day.
func TestSealedBehindTheWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, now := w.name(north, yesterday), w.name(north, today)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	lost := w.client(&faulty{decide: func(_ int64, req *http.Request) broken {
		if req.Method == http.MethodPut {
			return unanswered
		}
		return passes
	}})
	if _, err := w.projector(lost, w.pool).RunOnce(t.Context()); !errors.Is(err, couch.ErrUnavailable) {
		t.Fatal(err)
	}
	w.rotate(north)
	w.seal(old)
	w.set(old, daydb.Droppable)
	if r := w.run(); r.Written != 1 {
		t.Errorf("%+v", r)
	}
	w.expect(old, "order:o1", "status pending")
	w.absent(now, "order:o1")
}

// TestTillsWriteToo has a till change the document between reading and writing,
// and end it before the primary does.
func TestTillsWriteToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.name(north, yesterday)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	w.run()
	edits := 0
	edit := func(status string) func(string, string) {
		return func(db, id string) {
			if edits++; edits > 2 {
				return
			}
			rev := gjson.GetBytes(w.doc(db, id), "_rev").String()
			err := w.couch.Put(t.Context(), db, id, map[string]any{
				"_rev": rev, "type": "order", "status": status, "table": 7, "edits": edits,
				"_attachments": map[string]any{"a": map[string]any{"content_type": "text/plain", "data": "YQ=="}},
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	w.status("o1", "paid")
	if _, err := w.projector(hooked{w.couch, edit("pending")}, w.pool).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expect(db, "order:o1", "status paid table 7 edits 2 continuity.version 2 _attachments.a.stub true")
	edits = 1
	w.status("o1", "preparing")
	if _, err := w.projector(hooked{w.couch, edit("closed")}, w.pool).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expect(db, "order:o1", "status closed continuity.version 3 continuity.status preparing")
	w.status("o1", "refunded")
	w.run()
	w.expect(db, "order:o1", "status refunded")
}

// TestOthersGoOn has a restaurant without an ACTIVE day, and one whose database is
// not its own.
func TestOthersGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(south, "order.create", "s1", `{"total":1}`)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	if r := w.run(); r.Written != 1 || r.Waiting != 1 {
		t.Errorf("%+v", r)
	}
	d := w.day(south, yesterday, daydb.Active)
	w.exec(`begin; set local session_replication_role = replica; update day_databases set generation = gen_random_uuid() where id = ` + fmt.Sprint(d.ID) + `; commit`)
	w.status("o1", "paid")
	if r, err := w.whole().RunOnce(t.Context()); !errors.Is(err, errForeign) || r.Written != 1 || r.Waiting != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	w.absent(d.Name, "order:s1")
	w.expect(w.name(north, yesterday), "order:o1", "status paid")
}

// TestNoDay has a restaurant that has no day databases, and may have years of
// orders: none of them is touched with every run, and they appear in its first
// day.
func TestNoDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(south, "order.create", "s1", `{"total":1}`)
	w.apply(south, "order.create", "s2", `{"total":1}`)
	for range 2 {
		if r := w.run(); r.Written != 0 || r.Waiting != 2 {
			t.Errorf("%+v", r)
		}
	}
	var touched int
	if err := w.pool.QueryRow(t.Context(), `select count(*) from orders where xmax <> 0`).Scan(&touched); err != nil {
		t.Fatal(err)
	}
	if touched != 0 {
		t.Errorf("%d orders were locked that can be written nowhere", touched)
	}
	w.day(south, today, daydb.Active)
	if r := w.run(); r.Written != 2 || r.Waiting != 0 {
		t.Errorf("%+v", r)
	}
}

// TestPaused has a projector stop before a write, past its lease, while another
// writes a later version: the earlier one changes nothing.
func TestPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.name(north, yesterday)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	paused := hooked{Client: w.couch, before: func(string, string) {
		w.exec(`update leases set expires_at = now() - interval '1 second'`)
		w.status("o1", "paid")
		w.run()
	}}
	once := false
	before := paused.before
	paused.before = func(db, id string) {
		if !once {
			once = true
			before(db, id)
		}
	}
	if _, err := w.projector(paused, w.pool).RunOnce(t.Context()); !errors.Is(err, fence.ErrLost) {
		t.Errorf("%v", err)
	}
	w.expect(db, "order:o1", "status paid continuity.version 2")
}

// checkWorld checks what TestFaults leads to, however it came about.
func (w *world) checkWorld() {
	w.Helper()
	old, now := w.name(north, yesterday), w.name(north, today)
	w.expect(old, "order:o1", "status paid continuity.version 2")
	w.expect(now, "order:o2", "status pending continuity.version 1")
	w.expect(now, "order:o3", "status refunded originDay 20261128")
	w.expect(now, "payment:t1", "status approved")
	w.absent(now, "order:o1")
	w.absent(old, "order:o2")
	w.absent(old, "order:o3")
	w.absent(old, "payment:t1")
	var left int
	err := w.pool.QueryRow(w.Context(), `select (select count(*) from orders where projected_version < version) + (select count(*) from payments where projected_version < version)`).Scan(&left)
	if err != nil || left != 0 {
		w.Errorf("%d are not marked, %v", left, err)
	}
}

// prepare has an order whose day is draining, one that is new, and one whose day
// is sealed.
func (w *world) prepare() {
	w.Helper()
	const before = "20261128"
	w.set(w.name(north, yesterday), daydb.Prewarmed)
	w.day(north, before, daydb.Active)
	w.apply(north, "order.create", "o3", `{"total":1}`)
	w.status("o3", "paid")
	w.run()
	w.seal(w.name(north, before))
	w.set(w.name(north, before), daydb.Droppable)
	w.set(w.name(north, yesterday), daydb.Active)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	w.run()
	w.rotate(north)
	w.apply(north, "order.confirm_payment", "o1", `{"transactionId":"t1"}`)
	w.apply(north, "order.create", "o2", `{"total":1}`)
	w.status("o3", "refunded")
}

// TestFaults breaks each request, and each COMMIT.
func TestFaults(t *testing.T) {
	t.Parallel()
	couchURL := couchtest.New(t)
	counting := &faulty{decide: func(int64, *http.Request) broken { return passes }}
	first := worldOn(t, pgtest.New(t), couchURL)
	first.prepare()
	if _, err := first.projector(first.client(counting), first.pool).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.checkWorld()
	t.Logf("%d requests", counting.n.Load())
	for name, how := range map[string]broken{"failed": fails, "unanswered": unanswered, "500": answers500} {
		for n := int64(1); n <= counting.n.Load(); n++ {
			t.Run(fmt.Sprintf("%s/%02d", name, n), func(t *testing.T) {
				t.Parallel()
				w := worldOn(t, pgtest.New(t), couchURL)
				w.prepare()
				c := w.client(&faulty{decide: func(i int64, _ *http.Request) broken {
					if i == n {
						return how
					}
					return passes
				}})
				if _, err := w.projector(c, w.pool).RunOnce(t.Context()); err == nil {
					t.Error("nothing was broken")
				}
				w.run()
				w.checkWorld()
			})
		}
	}
	const commits = 12
	for name, fault := range map[string]pgtest.CommitFault{"rolled back": pgtest.CommitFails, "uncertain": pgtest.CommitUnanswered} {
		for n := int64(1); n <= commits; n++ {
			t.Run(fmt.Sprintf("%s/%02d", name, n), func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.DSN(t)
				proxy, through := pgtest.NewProxy(t, dsn)
				w := worldOn(t, pgtest.Open(t, dsn), couchURL)
				w.prepare()
				proxy.OnCommit(func(i int64) pgtest.CommitFault {
					if i == n {
						return fault
					}
					return pgtest.CommitPasses
				})
				_, _ = w.projector(w.couch, pgtest.Open(t, through)).RunOnce(t.Context())
				if proxy.Commits() >= commits {
					t.Errorf("%d commits, more than are broken", proxy.Commits())
				}
				w.run()
				w.checkWorld()
			})
		}
	}
}

// TestFirstDay takes over what is open, and what ends from then on, and not the
// years before it.
func TestFirstDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	advance := func(id string) {
		for _, status := range []string{"paid", "preparing", "delivered"} {
			w.status(id, status)
		}
	}
	for _, id := range []string{"old", "open", "late"} {
		w.apply(south, "order.create", id, `{"total":1}`)
	}
	advance("old")
	w.day(south, today, daydb.Prewarmed)
	advance("late")
	w.set(w.name(south, today), daydb.Active)
	db := w.name(south, today)
	if r := w.run(); r.Written != 2 || r.Waiting != 0 {
		t.Errorf("%+v", r)
	}
	w.expect(db, "order:open", "status pending")
	w.expect(db, "order:late", "status closed")
	w.absent(db, "order:old")
	w.status("old", "refunded")
	if r := w.run(); r.Written != 1 {
		t.Errorf("%+v", r)
	}
	w.expect(db, "order:old", "status refunded")
}
