package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/run"
)

// report has a device say that it holds documents of a day; none is delivered.
func (w *world) report(d daydb.DayDB, device string, sequence, documents int64) {
	w.t.Helper()
	held := map[daydb.Day]int64{}
	if documents > 0 {
		held[d.BusinessDay] = documents
	}
	w.tx(func(tx pgx.Tx) error {
		return daydb.ReportUnsynced(w.t.Context(), tx, w.r, device, sequence, held)
	})
}

// TestDayWaitsForDevice takes a day through its life with a device that says,
// in one state after the other, that it has not delivered everything.
func TestDayWaitsForDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 3)
	g := w.guard(parts{})

	w.report(d, "till-3", 1, 2)
	for range 2 {
		w.mustNight(g)
		if state := w.day(d.Name).State; state != daydb.Draining {
			t.Fatalf("the day is %s, and till-3 holds documents of it", state)
		}
	}
	x, err := g.Explain(t.Context(), d.Name)
	if err != nil {
		t.Fatal(err)
	}
	if x.Locks.Lock1.Green || len(x.Locks.Lock1.Reasons) != 1 || x.Locks.Lock1.Reasons[0].Code != CodeUnsynced || x.Locks.Lock1.Reasons[0].Count != 2 {
		t.Errorf("lock 1 is %+v", x.Locks.Lock1)
	}
	said := strings.Join(x.Summary, "\n")
	for _, want := range []string{"2 documents have not left their devices", "till-3 has 2", "Device till-3 says that it still holds 2 documents of this day"} {
		if !strings.Contains(said, want) {
			t.Errorf("the summary lacks %q:\n%s", want, said)
		}
	}

	w.report(d, "till-3", 2, 0)
	w.nights(g, d.Name, daydb.Archived)

	w.report(d, "till-3", 3, 1)
	dry := w.mustNight(g, func(r *run.Run) { r.DryRun = true })
	if changes := dry.Changes(); len(changes) != 1 || changes[0].Event != daydb.Reopen {
		t.Errorf("the dry run foresees %+v", changes)
	}
	w.mustNight(g)
	if state := w.day(d.Name).State; state != daydb.Draining {
		t.Fatalf("an archived day that a device holds documents of is %s", state)
	}

	w.report(d, "till-3", 4, 0)
	w.nights(g, d.Name, daydb.Droppable)
	w.report(d, "till-3", 5, 1)
	w.mustNight(g)
	security, err := w.couch.Security(t.Context(), d.Name)
	if err != nil {
		t.Fatal(err)
	}
	if state := w.day(d.Name).State; state != daydb.Draining || security.IsSealed() {
		t.Fatalf("a sealed day that a device holds documents of is %s, sealed: %t", state, security.IsSealed())
	}
	w.put(d.Name, "late", order("closed"))

	w.report(d, "till-3", 6, 0)
	w.nights(g, d.Name, daydb.Dropped)
}

// TestDayStopsWaiting checks what ends the wait for a device that does not
// deliver.
func TestDayStopsWaiting(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, d daydb.DayDB){
		"waived": func(w *world, d daydb.DayDB) {
			w.tx(func(tx pgx.Tx) error { return daydb.Waive(w.t.Context(), tx, d, "till-3", "drowned", "ana") })
		},
		"silent": func(w *world, _ daydb.DayDB) {
			w.tx(func(tx pgx.Tx) error {
				_, err := tx.Exec(w.t.Context(), `update device_reports set reported_at = now() - interval '8 days'`)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.draining(40)
			w.sales(d.Name, 3)
			w.report(d, "till-3", 1, 2)
			g := w.guard(parts{})
			w.mustNight(g)
			end(w, d)
			w.nights(g, d.Name, daydb.Dropped)
		})
	}
}

// TestWaiverEnds checks that a waiver is for what the device holds now.
func TestWaiverEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	waive := func() error {
		return daydbTx(w, func(tx pgx.Tx) error { return daydb.Waive(t.Context(), tx, d, "till-3", "drowned", "ana") })
	}
	if err := waive(); !errors.Is(err, daydb.ErrNoReport) {
		t.Errorf("a device that has said nothing was waived: %v", err)
	}
	waited := func() []bool {
		all, err := daydb.UnsyncedOf(t.Context(), w.pool, []int64{d.ID}, w.guard(parts{}).Silence)
		if err != nil {
			t.Fatal(err)
		}
		var each []bool
		for _, u := range all[d.ID] {
			each = append(each, u.Waited)
		}
		return each
	}
	w.report(d, "till-3", 1, 2)
	if err := waive(); err != nil {
		t.Fatal(err)
	}
	w.report(d, "till-3", 2, 1)
	if got := waited(); !slices.Equal(got, []bool{false}) {
		t.Errorf("the waiver has ended before the device delivered: %v", got)
	}
	w.report(d, "till-3", 3, 0)
	w.report(d, "till-3", 4, 1)
	if got := waited(); !slices.Equal(got, []bool{true}) {
		t.Errorf("the waiver outlived what it was for: %v", got)
	}
	var stale *daydb.StaleReportError
	err := daydbTx(w, func(tx pgx.Tx) error { return daydb.ReportUnsynced(t.Context(), tx, w.r, "till-3", 4, nil) })
	if !errors.As(err, &stale) || stale.Sequence != 4 || !slices.Equal(waited(), []bool{true}) {
		t.Errorf("an older report counted: %v, %v", err, waited())
	}
}

func daydbTx(w *world, fn func(pgx.Tx) error) error {
	return pgx.BeginFunc(w.t.Context(), w.pool, fn)
}

// TestReportAtTheLastMoment has a device speak up in the middle of the seal, and
// right before the DELETE.
func TestReportAtTheLastMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 3)
	w.nights(w.guard(parts{}), d.Name, daydb.Archived)

	sequence := int64(0)
	speak := func() { sequence++; w.report(d, "till-3", sequence, 1) }
	deliver := func() { sequence++; w.report(d, "till-3", sequence, 0) }

	sealing := &speaking{sealed: speak}
	w.lastMoment(d, sealing)
	if got := w.day(d.Name); got.State != daydb.Archived || sequence != 1 {
		t.Fatalf("the day is %s after %d reports", got.State, sequence)
	}
	deliver()
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)

	dropping := &speaking{looked: func() {
		if sequence == 2 && w.day(d.Name).Proof != nil {
			speak()
		}
	}}
	w.lastMoment(d, dropping)
	if got := w.day(d.Name); got.State != daydb.Droppable || sequence != 3 {
		t.Fatalf("the day is %s after %d reports", got.State, sequence)
	}
	w.mustNight(w.guard(parts{}))
	if state := w.day(d.Name).State; state != daydb.Draining {
		t.Errorf("the day is %s", state)
	}
	w.check()
}

// lastMoment runs a night that must be refused its destructive step.
func (w *world) lastMoment(d daydb.DayDB, c *speaking) {
	w.t.Helper()
	report, err := w.night(w.guard(parts{couch: func(real *couch.Client) Couch { c.Client = real; return c }}))
	if err != nil {
		w.t.Fatal(err)
	}
	failures := report.Failures()
	if len(failures) != 1 || !strings.Contains(failures[0].Error, ErrNotPermitted.Error()) || !strings.Contains(failures[0].Error, "till-3") {
		w.t.Fatalf("the night says %+v", failures)
	}
	security, err := w.couch.Security(w.t.Context(), d.Name)
	if err != nil {
		w.t.Fatal(err)
	}
	if want := w.day(d.Name).State == daydb.Droppable; security.IsSealed() != want {
		w.t.Errorf("sealed: %t", security.IsSealed())
	}
}

// speaking is a CouchDB that lets a device speak at certain moments.
type speaking struct {
	*couch.Client
	sealed, looked func()
}

func (s *speaking) PutSecurity(ctx context.Context, db string, to couch.Security) error {
	if s.sealed != nil && to.IsSealed() {
		s.sealed()
	}
	return s.Client.PutSecurity(ctx, db, to)
}

func (s *speaking) Pending(ctx context.Context, db string, since couch.Seq) (int64, error) {
	if s.looked != nil {
		s.looked()
	}
	return s.Client.Pending(ctx, db, since)
}

// TestDayWaitsForContinuityPlane checks both that documents on their way keep a
// day open, and that an open queue, in which there may be any, stops what
// destroys and nothing else.
func TestDayWaitsForContinuityPlane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 3)
	plane := &Undelivered{Count: 2}
	g := w.guard(parts{undelivered: plane})
	w.mustNight(g)
	x, err := g.Explain(t.Context(), d.Name)
	if err != nil {
		t.Fatal(err)
	}
	if state := w.day(d.Name).State; state != daydb.Draining || len(x.Locks.Lock1.Reasons) != 1 || x.Locks.Lock1.Reasons[0].Code != CodeUndelivered {
		t.Fatalf("the day is %s, lock 1 %+v", state, x.Locks.Lock1)
	}

	*plane = Undelivered{QueueOpen: true}
	w.nights(g, d.Name, daydb.Archived)
	for range 2 {
		w.mustNight(g)
	}
	if x, err = g.Explain(t.Context(), d.Name); err != nil {
		t.Fatal(err)
	}
	if state := w.day(d.Name).State; state != daydb.Archived || !strings.Contains(x.Next.Because, "queue is open") {
		t.Fatalf("with the queue open the day is %s: %+v", state, x.Next)
	}

	*plane = Undelivered{}
	w.nights(g, d.Name, daydb.Droppable)
	*plane = Undelivered{QueueOpen: true}
	for range 2 {
		w.mustNight(g)
	}
	if state := w.day(d.Name).State; state != daydb.Droppable {
		t.Fatalf("with the queue open a sealed day is %s", state)
	}
	*plane = Undelivered{}
	w.nights(g, d.Name, daydb.Dropped)
}

// TestUnsealPauses checks that nobody is let in right after the sealing design
// document was deleted: CouchDB may still have it cached.
func TestUnsealPauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 1)
	w.nights(w.guard(parts{}), d.Name, daydb.Droppable)
	w.report(d, "till-3", 1, 1)
	const pause = 200 * time.Millisecond
	lifted := &lifting{}
	w.mustNight(w.guard(parts{unsealPause: pause, couch: func(real *couch.Client) Couch { lifted.Client = real; return lifted }}))
	if state := w.day(d.Name).State; state != daydb.Draining || lifted.after < pause {
		t.Errorf("the day is %s, and was opened %s after its design document was deleted", state, lifted.after)
	}
}

// lifting measures the time between the two halves of lifting a seal.
type lifting struct {
	*couch.Client
	dropped time.Time
	after   time.Duration
}

func (l *lifting) DropDesign(ctx context.Context, db, id string) error {
	err := l.Client.DropDesign(ctx, db, id)
	l.dropped = time.Now()
	return err
}

func (l *lifting) PutSecurity(ctx context.Context, db string, to couch.Security) error {
	if !to.IsSealed() {
		l.after = time.Since(l.dropped)
	}
	return l.Client.PutSecurity(ctx, db, to)
}
