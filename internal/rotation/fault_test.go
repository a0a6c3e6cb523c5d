package rotation_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// fault is what becomes of one request.
type fault string

const (
	// failed: the request never arrives.
	failed fault = "failed"
	// unanswered: it is carried out, and its answer is lost.
	unanswered fault = "applied but reported as failed"
	// killed: it is carried out, and the process does nothing more.
	killed fault = "killed after"
)

var errBroken = errors.New("broken on purpose")

// breaker breaks the nth request, counted from 1, or the first that matches, and
// notes all of them.
type breaker struct {
	fault fault
	nth   int
	match func(request string) bool
	kill  context.CancelFunc

	mu       sync.Mutex
	requests []string
}

func (b *breaker) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	if err := req.Context().Err(); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	request := req.Method + " " + req.URL.Path
	b.requests = append(b.requests, request)
	hit := len(b.requests) == b.nth || b.match != nil && b.match(request)
	b.mu.Unlock()
	if hit && b.fault == failed {
		return nil, errBroken
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if !hit || err != nil {
		return res, err
	}
	_ = res.Body.Close()
	if b.fault == killed {
		b.kill()
	}
	return nil, errBroken
}

// runBroken runs the cron with one request broken, by itself or together with
// the process.
func (w *world) runBroken(b *breaker, scope run.Scope) *run.Report {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	b.kill = cancel
	report := &run.Report{}
	err := w.rotator(w.client(b)).Run(ctx, run.Run{ID: 1, Actor: "test", Scope: scope, Report: report})
	if err != nil && ctx.Err() == nil {
		w.Fatal(err)
	}
	// A process that died holds its leases until they end.
	if ctx.Err() != nil {
		w.expireLeases()
	}
	return report
}

func (w *world) expireLeases() {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), `update leases set expires_at = now()`); err != nil {
		w.Fatal(err)
	}
}

// stock fills the legacy database with one of each kind for a restaurant.
func (w *world) stock(r daydb.Restaurant) {
	w.Helper()
	id := r.RestaurantID
	w.put(w.legacy, "product-"+id, product(id))
	w.put(w.legacy, "product-"+id, product(id))
	w.put(w.legacy, "open-"+id, order(id, "open"))
	w.put(w.legacy, "closed-"+id, order(id, "closed"))
	doc := product(id)
	doc["_id"], doc["_rev"] = "forked-"+id, "1-a"
	w.insert(w.legacy, doc)
	doc["_rev"] = "1-b"
	w.insert(w.legacy, doc)
}

// checkStock holds that everything from stock is where it belongs, the open order
// in the database of this day, the closed one in none.
func (w *world) checkStock(r daydb.Restaurant, day daydb.Day) {
	w.Helper()
	for id, db := range map[string]string{
		"product-" + r.RestaurantID: w.core(r),
		"forked-" + r.RestaurantID:  w.core(r),
		"open-" + r.RestaurantID:    w.dayDB(r, day),
	} {
		want, got := w.leaves(w.legacy, id), w.leaves(db, id)
		if !slices.Equal(got, want) || len(want) == 0 {
			w.Errorf("%s in %s: leaves %v, want %v", id, db, got, want)
		}
	}
	w.wantAbsent("closed-"+r.RestaurantID, w.dayNames(r)...)
	if !w.flags(r.CompanyID).DeviceRouted {
		w.Error("devices are not routed")
	}
}

// Every request of a restaurant's first rotation and of a later one is broken
// in every way, alone. Nothing that must hold at any moment is violated, the
// next run of the same day continues, and the day after all is as if nothing
// had happened.
func TestEveryRequestBroken(t *testing.T) {
	scenarios := []struct {
		name   string
		before func(w *world)
		// carried is the day, counted from today, that has the stocked orders.
		carried int
	}{
		{"the first rotation", func(*world) {}, -1},
		{"a day has passed unused", func(w *world) {
			w.rotated(run.Scope{BusinessDay: w.today().Add(-4)})
			// A till has not heard of the cutover yet.
			w.put(w.legacy, "open-r1", order("r1", "closed"))
			w.put(w.legacy, "product-r1", product("r1"))
		}, -4},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			start := func(t *testing.T) *world {
				w := newWorld(t, r1)
				w.stock(r1)
				sc.before(w)
				return w
			}
			rehearsal, counter := start(t), &breaker{}
			yesterday := run.Scope{BusinessDay: rehearsal.today().Add(-1)}
			rehearsal.clean(rehearsal.runBroken(counter, yesterday))
			for _, f := range []fault{failed, unanswered, killed} {
				for nth, request := range counter.requests {
					if pgtest.LeftOut(int64(nth + 1)) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%d", f, nth+1), func(t *testing.T) {
						t.Parallel()
						w := start(t)
						w.runBroken(&breaker{fault: f, nth: nth + 1}, yesterday)
						w.check()
						w.rotated(yesterday)
						w.check()
						w.rotated(run.Scope{})
						w.checkRotated(w.today(), r1)
						w.checkStock(r1, w.today().Add(sc.carried))
						if t.Failed() {
							t.Log("broken: ", request)
						}
					})
				}
			}
		})
	}
}
