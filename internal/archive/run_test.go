package archive_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/run"
)

// recorder counts requests by database.
type recorder struct {
	mu       sync.Mutex
	requests []string
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.mu.Unlock()
	return http.DefaultTransport.RoundTrip(req)
}

// TestQuietDatabasesCostTwoRequests looks at a day without news.
func TestQuietDatabasesCostTwoRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`)
	first := w.run(run.Scope{})
	if first.Counters()["documents"] != 1 || len(first.Failures()) > 0 {
		t.Fatalf("the first run: %v %v", first.Counters(), first.Failures())
	}
	seen := &recorder{}
	w.connect(seen)
	leases, written := `select coalesce(max(token), 0) from leases`, `
		select string_agg(xmin::text, ' ') from (select xmin from archive_checkpoints union all select xmin from archived_docs) x`
	token, rows := w.scalar(leases), w.scalar(written)
	report := w.run(run.Scope{})
	if report.Counters()["quiet"] != 1 || len(report.Failures()) > 0 {
		t.Errorf("the second run: %v %v", report.Counters(), report.Failures())
	}
	of := 0
	for _, r := range seen.requests {
		if strings.Contains(r, d.Name) {
			of++
		}
	}
	if of != 2 {
		t.Errorf("%d requests: %v", of, seen.requests)
	}
	w.expect(token, leases)
	w.expect(rows, written)

	w.put(d.Name, `{"_id":"b","type":"order","status":"closed"}`)
	if report := w.run(run.Scope{}); report.Counters()["documents"] != 1 {
		t.Errorf("news: %v", report.Counters())
	}
}

// TestOneFailureStopsNobody archives the others.
func TestOneFailureStopsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var days []daydb.DayDB
	for _, id := range []string{"a", "b", "c", "d"} {
		d := w.newDayOf(daydb.Restaurant{CompanyID: "acme", RestaurantID: id}, "20261130")
		w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`)
		days = append(days, d)
	}
	w.do(http.MethodDelete, "/"+days[1].Name, "")
	w.do(http.MethodDelete, "/"+days[2].Name, "")
	w.create(days[2].Name, "11111111-1111-1111-1111-111111111111")
	lease := must(w.leases.Acquire(t.Context(), archive.LeaseName(days[3].Name)))(t)
	report := w.run(run.Scope{})
	failed := make(map[string]string)
	for _, f := range report.Failures() {
		failed[f.DBName] = f.Error
		if f.Step != "archive" || f.CompanyID != "acme" || f.RestaurantID == "" {
			t.Errorf("failure %+v", f)
		}
	}
	if len(failed) != 2 || !strings.Contains(failed[days[1].Name], "not found") || !strings.Contains(failed[days[2].Name], archive.ErrIncarnation.Error()) {
		t.Errorf("failures: %v", failed)
	}
	// The legacy database, which there is not, is one.
	if c := report.Counters(); c["databases"] != 5 || c["documents"] != 1 || c["busy"] != 1 {
		t.Errorf("counters: %v", c)
	}
	_ = w.leases.Release(t.Context(), lease)
	if c := w.run(run.Scope{CompanyID: "acme", RestaurantID: "d"}).Counters(); c["databases"] != 2 || c["documents"] != 1 {
		t.Errorf("in scope: %v", c)
	}
	if c := w.run(run.Scope{CompanyID: "other"}).Counters(); c["databases"] != 0 {
		t.Errorf("out of scope: %v", c)
	}
}

// TestDryRunWritesNothing counts what would be archived.
func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`, `{"_id":"b","type":"order","status":"open"}`)
	legacyDB := "tables-" + w.env
	w.do(http.MethodPut, "/"+legacyDB+"?q=1", "")
	w.put(legacyDB, `{"_id":"l","type":"order","status":"closed","companyId":"acme","restaurantId":"centro"}`)
	written := `select (select count(*) from archive_checkpoints) + (select count(*) from archived_docs) + (select count(*) from archive_blockers)`
	report := &run.Report{}
	if err := w.Run(t.Context(), run.Run{DryRun: true, Report: report}); err != nil {
		t.Fatal(err)
	}
	if c := report.Counters(); c["documents"] != 2 || len(report.Failures()) > 0 {
		t.Errorf("the dry run: %v %v", c, report.Failures())
	}
	w.expect("0", written)
	w.run(run.Scope{})
	w.expect("5", written)
}

// TestStaleHolderChangesNothing lets a lease pass on while a batch is read.
func TestStaleHolderChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.putMany(d.Name, 0, 10)
	stale := must(w.leases.Acquire(t.Context(), archive.LeaseName(d.Name)))(t)
	w.expireLeases()
	if _, err := w.CatchUp(t.Context(), d, stale); !errors.Is(err, fence.ErrLost) {
		t.Errorf("with a lease that has ended: %v", err)
	}
	w.expect("0", `select count(*) from archive_checkpoints`)

	// The successor works while the stale holder has the feed in its hands.
	stale = must(w.leases.Acquire(t.Context(), archive.LeaseName(d.Name)))(t)
	successor := w.Archiver
	var once sync.Once
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		res, err := http.DefaultTransport.RoundTrip(req)
		if req.URL.Query().Get("include_docs") != "" {
			once.Do(func() {
				w.expireLeases()
				lease := must(w.leases.Acquire(context.WithoutCancel(t.Context()), archive.LeaseName(d.Name)))(t)
				if _, err := successor.CatchUp(context.WithoutCancel(t.Context()), d, lease); err != nil {
					t.Errorf("the successor: %v", err)
				}
				w.put(d.Name, `{"_id":"later","type":"order","status":"closed"}`)
			})
		}
		return res, err
	}))
	if _, err := w.CatchUp(t.Context(), d, stale); !errors.Is(err, fence.ErrLost) {
		t.Errorf("with a lease that has passed on: %v", err)
	}
	w.expect("10", `select count(*) from archived_docs`)
	w.expect("1", `select count(distinct xmin::text) from archived_docs`)
}

// expireLeases lets all leases end, as if their holders had been paused.
func (w *world) expireLeases() {
	w.t.Helper()
	w.exec(`update leases set expires_at = now() - interval '1 second'`)
}

// TestMonthsAreCreatedOnce lets archivers race for the partitions of months.
func TestMonthsAreCreatedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var days []daydb.DayDB
	for i := range 6 {
		d := w.newDayOf(daydb.Restaurant{CompanyID: "acme", RestaurantID: fmt.Sprintf("r%d", i)}, []string{"20260630", "20260701", "21000101"}[i%3])
		w.put(d.Name, `{"_id":"a","type":"order","status":"closed"}`)
		days = append(days, d)
	}
	var all sync.WaitGroup
	for _, d := range days {
		other := archive.New(archive.Options{Pool: w.pool, Couch: w.couch, Leases: w.leases})
		all.Go(func() {
			err := w.leases.Hold(t.Context(), archive.LeaseName(d.Name), func(ctx context.Context, lease fence.Lease) error {
				_, err := other.CatchUp(ctx, d, lease)
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", d.Name, err)
			}
		})
	}
	all.Wait()
	w.expect("archived_docs_202606 2, archived_docs_202607 2, archived_docs_other 2", `
		select string_agg(part || ' ' || n, ', ' order by part)
		from (select tableoid::regclass::text as part, count(*)::text as n from archived_docs group by 1) x`)
	for _, d := range days {
		w.checkEqual(d, w.catchUp(d))
	}
}
