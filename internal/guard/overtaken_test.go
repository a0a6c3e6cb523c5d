package guard

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/daydb"
)

// TestSealOfAProcessThatWasOvertaken suspends a guard within its seal until
// another has taken the day over and opened it again. CouchDB knows no leases,
// so what the first one still sends on waking up is done.
func TestSealOfAProcessThatWasOvertaken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, suffix string
		// reopened: an open document has brought the day back to DRAINING.
		reopened bool
	}{
		"at _security, reopened":           {http.MethodPut, "/_security", true},
		"at the design document":           {http.MethodPut, sealDesign, false},
		"at the design document, reopened": {http.MethodPut, sealDesign, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(40)
			w.sales(d.Name, 2)
			other := w.guard(parts{})
			w.nights(other, d.Name, daydb.Archived)

			overtake := func() {
				w.loseLease(d.Name)
				w.setFlags(true, false) // No longer eligible: the seal is taken back.
				w.mustNight(other)
				if got := w.day(d.Name); got.SealStartedAt != nil {
					t.Fatalf("the other guard left the seal: %+v", got)
				}
				if tc.reopened {
					w.put(d.Name, "late", map[string]any{"type": "order", "status": "open"})
					w.mustNight(other)
					if got := w.day(d.Name).State; got != daydb.Draining {
						t.Fatalf("state %s", got)
					}
				}
			}
			suspended := false
			g := w.guard(parts{transport: &faultyTransport{decide: func(_ int64, req *http.Request) fault {
				if !suspended && req.Method == tc.method && strings.HasSuffix(req.URL.Path, tc.suffix) {
					suspended = true
					overtake()
				}
				return passes
			}}})
			_, _ = w.night(g) // It has lost its lease; what it reports does not matter.
			if !suspended {
				t.Fatal("the guard never sealed")
			}
			w.check()

			w.mustNight(other)
			w.assertOpen(d.Name)
		})
	}
}

// loseLease ends the lease of whoever works on a database, as time does.
func (w *world) loseLease(db string) {
	w.t.Helper()
	_, err := w.pool.Exec(context.Background(), `update leases set expires_at = now() where name = $1`, archive.LeaseName(db))
	if err != nil {
		w.t.Fatal(err)
	}
}

// assertOpen checks that devices can write: neither half of a seal is there.
func (w *world) assertOpen(db string) {
	w.t.Helper()
	security, err := w.couch.Security(w.t.Context(), db)
	if err != nil {
		w.t.Fatal(err)
	}
	if security.IsSealed() {
		w.t.Errorf("_security of %s still admits nobody", db)
	}
	if status, body := w.request(http.MethodGet, db+"/"+sealDesign, nil); status != http.StatusNotFound {
		w.t.Errorf("the sealing design document is still there: %d %s", status, body)
	}
}
