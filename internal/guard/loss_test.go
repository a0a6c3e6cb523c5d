package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
)

const (
	lossWriters = 24
	lossRounds  = 10
)

// TestNothingIsLost has 24 tills hammer a day database while it is sealed,
// archived and dropped with no time to settle. Every document that was
// acknowledged must be in the archive afterwards, in each round.
func TestNothingIsLost(t *testing.T) {
	for round := range lossRounds {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			acked, lost := hammer(t, true)
			t.Logf("%d acknowledged, %d lost", acked, lost)
			if lost > 0 {
				t.Errorf("%d of %d acknowledged documents were lost", lost, acked)
			}
			if acked == 0 {
				t.Error("nothing was acknowledged, so nothing was tested")
			}
		})
	}
}

// TestHarnessFindsLosses runs the same without a seal: the harness must notice.
func TestHarnessFindsLosses(t *testing.T) {
	for range lossRounds {
		if acked, lost := hammer(t, false); lost > 0 {
			t.Logf("without a seal: %d acknowledged, %d lost", acked, lost)
			return
		}
	}
	t.Errorf("no loss without a seal in %d rounds: the harness cannot see losses", lossRounds)
}

// hammer lets tills write in two bursts: from the moment before the seal until
// they are refused, and from the moment before the DELETE until they are
// refused or the database is gone.
func hammer(t *testing.T, sealed bool) (acked, lost int) {
	w := newWorld(t)
	d := w.draining(40)
	w.sales(d.Name, 3)
	w.nights(w.guard(parts{}), d.Name, daydb.Archived)

	base, headers := couchtest.Device(t, w.couchURL, w.r.Role())
	tills := &tills{world: w, url: base + "/" + d.Name + "/", headers: headers}
	g := w.guard(parts{couch: func(c *couch.Client) Couch {
		b := &burstingCouch{Client: c, tills: tills}
		if !sealed {
			return &unsealedCouch{burstingCouch: b}
		}
		return b
	}})
	for range 12 {
		_, _ = w.night(g) // A night that meets a moving database ends with a report.
		tills.rest()
		if w.day(d.Name).State == daydb.Dropped {
			break
		}
	}
	tills.rest()
	d = w.day(d.Name)
	if d.State != daydb.Dropped {
		t.Fatalf("the day is %s", d.State)
	}
	for id, rev := range w.acked {
		var n int
		err := w.pool.QueryRow(t.Context(), `
			select count(*)
			from archived_docs a
			join archive_checkpoints c on c.id = a.source_id
			where c.day_database_id = $1 and a.id_hash = sha256($2) and a.rev = $3`, d.ID, []byte(id), rev).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		if n != 1 {
			lost++
		}
	}
	return len(w.acked), lost
}

// tills write as devices do, with a role and through CouchDB's own checks.
type tills struct {
	world   *world
	url     string
	headers http.Header
	wait    sync.WaitGroup
	written atomic.Int64
}

// burst lets every till write until it is refused; without a seal, until each
// has written some documents. It returns when all of them are at it.
func (ts *tills) burst() {
	const each = 60
	var begun sync.WaitGroup
	for range lossWriters {
		begun.Add(1)
		ts.wait.Go(func() {
			wrote := ts.write()
			begun.Done()
			for range each {
				if !wrote {
					return
				}
				wrote = ts.write()
			}
		})
	}
	begun.Wait()
}

func (ts *tills) rest() { ts.wait.Wait() }

// write sends one finished document, and reports whether it was acknowledged.
func (ts *tills) write() bool {
	id := fmt.Sprintf("move-%d", ts.written.Add(1))
	body, err := json.Marshal(map[string]any{"type": "inventory_movement", "sku": id})
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, ts.url+id, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header = ts.headers.Clone()
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusCreated {
		return false
	}
	ts.world.ack(answer)
	return true
}

// burstingCouch sets the tills off at the two moments that matter.
type burstingCouch struct {
	*couch.Client
	tills *tills
}

func (b *burstingCouch) PutSecurity(ctx context.Context, db string, s couch.Security) error {
	if s.IsSealed() {
		b.tills.burst()
	}
	return b.Client.PutSecurity(ctx, db, s)
}

func (b *burstingCouch) Delete(ctx context.Context, db string) error {
	b.tills.burst()
	return b.Client.Delete(ctx, db)
}

// unsealedCouch leaves the seal out and says that it is there.
type unsealedCouch struct{ *burstingCouch }

func (u *unsealedCouch) PutSecurity(ctx context.Context, db string, s couch.Security) error {
	if s.IsSealed() {
		return nil
	}
	return u.burstingCouch.PutSecurity(ctx, db, s)
}

func (u *unsealedCouch) PutDesign(context.Context, string, string, string) error { return nil }

func (u *unsealedCouch) Security(ctx context.Context, db string) (couch.Security, error) {
	s, err := u.Client.Security(ctx, db)
	if err == nil && s.Marker != nil {
		s = couch.Sealed(s.Marker.Generation)
	}
	return s, err
}

func (u *unsealedCouch) Doc(context.Context, string, string, string) ([]byte, error) {
	return json.Marshal(couch.DesignDoc{ID: sealDesign, Validate: sealValidate})
}
