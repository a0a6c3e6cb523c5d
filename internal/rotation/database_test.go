package rotation_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/run"
)

// What was deleted by hand is not created again, and nothing else suffers.
func TestDeletedByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.rotated(run.Scope{BusinessDay: w.today().Add(-1)})
	gone := w.dayDB(r1, w.today())
	if err := w.couch.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	report := w.rotate(run.Scope{})
	w.wantFailure(report, r1, "today", "not created again")
	if w.exists(gone) {
		t.Error("the database was created again")
	}
	w.check()
	w.checkRotated(w.today(), r2)
	// The former day goes on, and the next one is prepared.
	w.wantStates(r1, w.today().Add(-1).String()+" ACTIVE", w.today().String()+" PREWARMED", w.today().Add(1).String()+" PREWARMED")
	if !w.exists(w.dayDB(r1, w.today().Add(1))) {
		t.Error("tomorrow was not prepared")
	}
}

// A day that is mounted and has lost its database is not named any more.
func TestManifestNamesNoDatabaseThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.rotated(run.Scope{BusinessDay: w.today().Add(-2)})
	if err := w.couch.Delete(t.Context(), w.dayDB(r1, w.today().Add(-2))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		report := w.rotate(run.Scope{})
		w.wantFailure(report, r1, "manifest", "not created again")
		w.check()
	}
	m := w.manifest(r1)
	if len(m.Overlays) != 1 || m.Overlays[0].BusinessDay != w.today().Add(-1).String() {
		t.Errorf("overlays %v", m.Overlays)
	}
}

func TestForeignDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	marked := couch.OpenTo("somebody", uuid.New())
	unmarked := marked
	unmarked.Marker = nil
	for name, security := range map[string]couch.Security{"another marker": marked, "documents and no marker": unmarked} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, r1, r2)
			foreign := w.dayDB(r1, w.today())
			if _, err := w.couch.Create(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			if err := w.couch.PutSecurity(t.Context(), foreign, security); err != nil {
				t.Fatal(err)
			}
			w.put(foreign, "theirs", map[string]any{})
			report := w.rotate(run.Scope{})
			w.wantFailure(report, r1, "today", "not the one of the ledger")
			got, err := w.couch.Security(t.Context(), foreign)
			if err != nil || fmt.Sprint(got.Members, got.Marker) != fmt.Sprint(security.Members, security.Marker) {
				t.Errorf("security %+v, %v", got, err)
			}
			w.checkRotated(w.today(), r2)
			if w.flags("acme").DeviceRouted {
				t.Error("the company was routed although r1 has no day")
			}
		})
	}
}

// A crash between the creation and _security leaves a database that admits
// nobody, without marker and empty.
func TestUnsecuredDatabaseIsAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	for _, db := range []string{w.core(r1), w.dayDB(r1, w.today()), w.dayDB(r1, w.today().Add(1))} {
		if _, err := w.couch.Create(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1)
}

func TestSecurityIsRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.rotated(run.Scope{})
	today := w.days(r1)[0]
	if err := w.couch.PutSecurity(t.Context(), today.Name, couch.OpenTo("everybody", today.Generation)); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1)
}

// Until devices are routed the legacy database has the whole catalogue, and a
// core that was lost is filled again from the start. Afterwards it has not.
func TestCoreDeletedByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.put(w.legacy, "p1", product("r1"))
	w.rotated(run.Scope{RestaurantID: "r1"})
	w.put(w.legacy, "p2", product("r1"))
	if err := w.couch.Delete(t.Context(), w.core(r1)); err != nil {
		t.Fatal(err)
	}
	w.rotated(run.Scope{})
	w.checkRotated(w.today(), r1, r2)
	if w.rev(w.core(r1), "p1") == "" || w.rev(w.core(r1), "p2") == "" {
		t.Error("core was not warmed from the start")
	}

	if err := w.couch.Delete(t.Context(), w.core(r1)); err != nil {
		t.Fatal(err)
	}
	report := w.rotate(run.Scope{})
	w.wantFailure(report, r1, "core", "not created again")
	if w.exists(w.core(r1)) {
		t.Error("core of a routed restaurant was created again")
	}
}
