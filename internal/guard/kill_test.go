package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
)

// child is a second process of the test binary that runs the guard for one
// night and signals itself at a request to CouchDB.
type child struct {
	DSN, CouchURL, Env, CompanyID string
	// At counts the requests; Before or after the request is sent.
	At     int64
	Before bool
	// Signal is SIGKILL or SIGSTOP.
	Signal syscall.Signal
}

const childVariable = "ROLLINGD_GUARD_TEST_CHILD"

// childOr runs the child's night in a child process, and the tests otherwise.
func childOr(m *testing.M, tests func(*testing.M)) {
	setting := os.Getenv(childVariable)
	if setting == "" {
		tests(m)
		return
	}
	var c child
	if err := json.Unmarshal([]byte(setting), &c); err != nil {
		panic(err)
	}
	if err := c.night(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (c child) night() error {
	ctx := context.Background()
	pool, err := pg.Open(ctx, c.DSN, pg.Options{})
	if err != nil {
		return err
	}
	transport := &signallingTransport{child: c}
	client, err := couch.New(couch.Options{URL: c.CouchURL, Transport: transport})
	if err != nil {
		return err
	}
	// On no machine does it end by itself before the child has come to its signal.
	leases := fence.New(pool, "child", time.Minute)
	log := slog.New(slog.DiscardHandler)
	g := New(Options{
		Pool: pool, Couch: client, Leases: leases, Log: log, Env: c.Env, TTLDays: 30, Workers: 1,
		Archive: archive.New(archive.Options{Pool: pool, Couch: client, Leases: leases, Log: log, Env: c.Env, Workers: 1}),
	})
	g.deleteWithin = patience
	r := run.Run{Actor: "child", Report: &run.Report{}, Scope: run.Scope{CompanyID: c.CompanyID}}
	if err := g.Run(ctx, r); err != nil {
		return err
	}
	fmt.Printf("requests=%d failures=%v\n", transport.n, r.Report.Failures())
	return nil
}

type signallingTransport struct {
	child
	n int64
}

func (s *signallingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	s.n++
	hit := s.n == s.At
	if hit && s.Before {
		signalled(s.Signal)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if hit && !s.Before {
		signalled(s.Signal)
	}
	return res, err
}

// signalled returns when the process goes on after a SIGSTOP, and never after a SIGKILL. The kernel may let this thread
// run on for a moment, perhaps into a transaction.
func signalled(s syscall.Signal) {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	_ = syscall.Kill(os.Getpid(), s)
	<-resumed
}

func (w *world) child(c child) *exec.Cmd {
	w.t.Helper()
	c.DSN, c.CouchURL, c.Env, c.CompanyID = w.dsn, w.couchURL, w.env, w.r.CompanyID
	setting, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(setting))
	cmd.Stderr = os.Stderr
	return cmd
}

// TestKilled kills a real process with SIGKILL at both sides of every request
// of the nights that archive, seal and drop a day. The next night of another
// process must find a world in which nothing is lost, and bring it to its end.
func TestKilled(t *testing.T) {
	shared := newStores(t)
	for _, night := range []struct {
		name  string
		state daydb.State // in which the night begins
	}{{"archive", daydb.Draining}, {"seal", daydb.Archived}, {"drop", daydb.Droppable}} {
		prepare := func(t *testing.T) (*world, daydb.DayDB) {
			w := shared.world(t)
			d := w.draining(40)
			w.sales(d.Name, 3)
			w.nights(w.guard(parts{}), d.Name, night.state)
			return w, d
		}
		w, d := prepare(t)
		out, err := w.child(child{}).Output()
		if err != nil {
			t.Fatal(err)
		}
		var requests int64
		if _, err := fmt.Sscanf(string(out), "requests=%d", &requests); err != nil || requests < 5 {
			t.Fatalf("the child says %q", out)
		}
		if state := w.day(d.Name).State; state == night.state || !strings.Contains(string(out), "failures=[]") {
			t.Fatalf("a night without a kill left the day %s: %s", state, out)
		}
		for n := int64(1); n <= requests; n++ {
			if pgtest.LeftOut(n) {
				continue
			}
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%02d/before=%v", night.name, n, before), func(t *testing.T) {
					t.Parallel()
					w, d := prepare(t)
					out, err := w.child(child{At: n, Before: before, Signal: syscall.SIGKILL}).Output()
					var made int64
					if _, scanned := fmt.Sscanf(string(out), "requests=%d", &made); err == nil && (scanned != nil || made >= n) {
						t.Fatalf("the child lived: %s", out)
					}
					w.loseLease(d.Name)
					w.check()
					w.nights(w.guard(parts{}), d.Name, daydb.Dropped)
				})
			}
		}
	}
}

// TestPausedPastItsLease stops a real process with SIGSTOP at each request of
// the night that drops a day, lets its lease pass, lets another process set the
// world right, and resumes it: it must change nothing.
func TestPausedPastItsLease(t *testing.T) {
	const requests = 12 // The last one before its end is the DELETE itself, see TestKilled.
	shared := newStores(t)
	for n := int64(1); n <= requests; n++ {
		if pgtest.LeftOut(n) {
			continue
		}
		t.Run(fmt.Sprintf("%02d", n), func(t *testing.T) {
			t.Parallel()
			w := shared.world(t)
			d := w.draining(40)
			w.sales(d.Name, 3)
			whole := w.guard(parts{})
			w.nights(whole, d.Name, daydb.Droppable)

			cmd := w.child(child{At: n, Before: false, Signal: syscall.SIGSTOP})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			waitStopped(t, cmd.Process.Pid)
			w.loseLease(d.Name)
			w.setFlags(true, false)
			if d := w.day(d.Name); d.DropIntendedAt == nil {
				// Nothing was decided yet: with the flag off the day must stay.
				w.mustNight(whole)
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				if after := w.day(d.Name); after.State != daydb.Droppable || after.DropIntendedAt != nil {
					t.Errorf("the resumed process left the day %s, intended %v", after.State, after.DropIntendedAt)
				}
				if _, err := w.couch.Info(t.Context(), d.Name); err != nil {
					t.Errorf("the resumed process deleted the database: %v", err)
				}
			} else {
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
			}
			w.check()
		})
	}
}

// waitStopped waits until the kernel says that a child is stopped.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if !status.Stopped() {
		t.Fatalf("the child ended (%v) before it was stopped", status)
	}
}
