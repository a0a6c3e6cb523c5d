package archive_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/daydb"
)

// outcome is how a step goes wrong.
type outcome string

const (
	// failed: the step was not done.
	failed outcome = "failed"
	// lost: the step was done, its answer did not arrive.
	lost outcome = "applied but reported as failed"
	// killed: the step was done, and the process did nothing more.
	killed outcome = "killed after"
)

// faults makes one step of a run go wrong: a request to CouchDB, or a COMMIT.
type faults struct {
	mu      sync.Mutex
	commits bool
	at      int
	outcome outcome
	// kill ends the process.
	kill context.CancelFunc
	// seen counts steps; what is the step that went wrong.
	seen int
	what string
}

var errFault = errors.New("connection lost by the test")

// step counts a step and reports whether it is the one to go wrong.
func (f *faults) step(commit bool, what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if commit != f.commits {
		return false
	}
	f.seen++
	if f.seen == f.at {
		f.what = what
	}
	return f.seen == f.at
}

func (f *faults) RoundTrip(req *http.Request) (*http.Response, error) {
	if !f.step(false, req.Method+" "+req.URL.Path+"?"+req.URL.RawQuery) {
		return http.DefaultTransport.RoundTrip(req)
	}
	if f.outcome == failed {
		return nil, errFault
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if f.outcome == killed {
		f.kill()
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return nil, errFault
}

// faultyConn is a connection to Postgres whose COMMITs may go wrong.
type faultyConn struct {
	net.Conn
	faults *faults
}

func (c faultyConn) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("commit\x00")) || !c.faults.step(true, "commit") {
		return c.Conn.Write(b)
	}
	defer c.Close()
	if c.faults.outcome == failed {
		return 0, errFault
	}
	if _, err := c.Conn.Write(b); err != nil {
		return 0, err
	}
	// Postgres answers when it has committed.
	if _, err := c.Conn.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	if c.faults.outcome == killed {
		c.faults.kill()
	}
	return 0, errFault
}

// faultyPool is a pool whose connections suffer the faults.
func (w *world) faultyPool(f *faults) *pgxpool.Pool {
	w.t.Helper()
	cfg := must(pgxpool.ParseConfig(w.dsn))(w.t)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return faultyConn{conn, f}, nil
	}
	return must(pgxpool.NewWithConfig(w.t.Context(), cfg))(w.t)
}

// everyFault runs attempt with each step going wrong in each way, until no step
// is left, and recover after each.
func (w *world) everyFault(reset func(), attempt func(context.Context, *archive.Archiver) error, recover func(name string)) {
	w.t.Helper()
	for _, commits := range []bool{false, true} {
		for _, how := range []outcome{failed, lost, killed} {
			for at := 1; ; at++ {
				reset()
				ctx, kill := context.WithCancel(w.t.Context())
				f := &faults{commits: commits, at: at, outcome: how, kill: kill}
				pool := w.faultyPool(f)
				w.connect(f)
				err := attempt(ctx, w.archiver(pool))
				kill()
				pool.Close()
				w.connect(nil)
				w.expireLeases()
				if f.what == "" {
					if err != nil {
						w.t.Fatalf("without a fault: %v", err)
					}
					if at < 3 {
						w.t.Fatalf("only %d steps were seen", at-1)
					}
					break
				}
				name := fmt.Sprintf("step %d (%s) %s", at, f.what, how)
				if err == nil {
					w.t.Errorf("%s: nobody noticed", name)
				}
				recover(name)
				if w.t.Failed() {
					w.t.Fatalf("after %s, which gave: %v", name, err)
				}
			}
		}
	}
}

// faultyDay has something of everything that archiving does.
func faultyDay(w *world) daydb.DayDB {
	d := w.newDay("20261130")
	w.exec(`alter table archived_docs add constraint no_poison check (body not like '%poison%')`)
	attachment := func(n int) string {
		return fmt.Sprintf(`{"content_type":"image/png","data":%q}`, base64.StdEncoding.EncodeToString(pattern(n, false)))
	}
	w.put(d.Name,
		`{"_id":"a","type":"order","status":"closed","v":1.0}`,
		`{"_id":"open","type":"order","status":"open"}`,
		`{"_id":"gone","_deleted":true}`,
		`{"_id":"bad","type":"order","status":"closed","v":"poison"}`,
		fmt.Sprintf(`{"_id":"receipt","type":"order","status":"closed","_attachments":{"one":%s,"two":%s}}`, attachment(100), attachment(1<<20+1)))
	w.replicate(d.Name,
		`{"_id":"leaves","_rev":"1-a","type":"order","status":"closed"}`,
		`{"_id":"leaves","_rev":"3-c","_deleted":true,"n":1}`)
	return d
}

// TestArchiveSurvivesFaults breaks each step of the first archiving and of one
// that meets rows, and continues.
func TestArchiveSurvivesFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := faultyDay(w)
	wipe := func() {
		w.exec(`truncate archive_checkpoints, archived_docs, archived_leaves, archived_attachments, archived_attachment_chunks, archive_blockers, archive_rejects, leases`)
	}
	for name, reset := range map[string]func(){
		"first archiving": wipe,
		"rewound": func() {
			wipe()
			w.catchUp(d)
			w.exec(`update archive_checkpoints set since = '0'`)
			w.exec(`delete from archived_docs where doc_id in ('a', 'gone')`)
			w.exec(`update archived_docs set rev = '0-0', body_sha256 = '' where doc_id = 'receipt'`)
			w.exec(`delete from archived_attachment_chunks using archived_attachments where attachment_id = id and name = 'two'`)
			w.exec(`delete from archived_attachments where name = 'two'`)
			w.exec(`truncate leases`)
		},
	} {
		w.t.Log(name)
		w.everyFault(reset, func(ctx context.Context, a *archive.Archiver) error {
			lease := must(w.leases.Acquire(t.Context(), archive.LeaseName(d.Name)))(t)
			_, err := a.CatchUp(ctx, d, lease)
			return err
		}, func(step string) {
			pos := w.catchUp(d)
			rec := w.reconcile(d, pos)
			if rec.Missing.Count != 2 || rec.Rejected.Count != 1 || rec.Extra.Count+rec.Changed.Count+rec.Attachments.Count != 0 {
				t.Errorf("%s: reconciled as %+v", step, rec)
			}
			if found := w.blockers(pos); found["non_terminal"] != "open" || len(found) != 1 {
				t.Errorf("%s: blocked by %v", step, found)
			}
			w.expect("2", `select count(*) from archived_attachments`)
			var differs *archive.NotProvenError
			if _, err := w.Prove(t.Context(), d, pos); !errors.As(err, &differs) || differs.Missing.Count != 2 || differs.Extra.Count+differs.Changed.Count != 0 {
				t.Errorf("%s: proven with %v", step, err)
			}
		})
	}
}

// TestRestoreSurvivesFaults breaks each step of a restore and asks for it again.
func TestRestoreSurvivesFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := faultyDay(w)
	w.exec(`alter table archived_docs drop constraint no_poison`)
	w.do(http.MethodDelete, "/"+d.Name+"/open?rev="+w.rev(d.Name, "open"), "")
	w.checkEqual(d, w.catchUp(d))
	want := fmt.Sprint(len(w.changes(d.Name)))
	n := 0
	w.everyFault(func() {
		for _, name := range strings.Fields(w.scalar(`select coalesce(string_agg(db_name, ' '), '') from restored_databases`)) {
			w.request(http.MethodDelete, "/"+name, nil)
		}
		w.exec(`truncate restored_databases, leases`)
	}, func(ctx context.Context, a *archive.Archiver) error {
		_, err := a.Restore(ctx, d, "a test", "tester")
		return err
	}, func(step string) {
		n++
		restored := must(w.Restore(t.Context(), d, "a test", "tester"))(t)
		finished := w.scalar(`select string_agg(db_name || ' ' || state || ' ' || documents, ', ' order by id) from restored_databases`)
		if last := restored.DBName + " restored " + want; !strings.HasSuffix(finished, last) || strings.Contains(finished, "restoring") {
			t.Errorf("%s: %s", step, finished)
		}
		status, _ := w.request(http.MethodGet, "/"+restored.DBName+"/_security", nil)
		if status != http.StatusOK {
			t.Errorf("%s: _security answers %d", step, status)
		}
	})
	if n < 20 {
		t.Errorf("only %d faults were tried", n)
	}
}
