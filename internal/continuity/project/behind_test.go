package project

import (
	"errors"
	"testing"

	"github.com/rollingd/rollingd/internal/daydb"
)

// manifest says to tills which day it is.
func (w *world) manifest(r daydb.Restaurant, day string) {
	w.Helper()
	core := w.env + "_" + r.CompanyID + "_" + r.RestaurantID + "_core"
	if _, err := w.couch.Create(w.Context(), core); err != nil {
		w.Fatal(err)
	}
	err := w.couch.Put(w.Context(), core, "day_manifest", map[string]any{
		"type": "day_manifest", "schemaVersion": 1, "generation": 7, "updatedAt": "2026-11-30T08:00:00Z",
		"currentBusinessDay": day, "currentDayDb": "daily_" + day, "overlays": []any{},
	})
	if err != nil {
		w.Fatal(err)
	}
}

// TestLedgerBehind restores a ledger from before a rotation. An order that was in
// today's database, and is drained again, must not get into yesterday's as well.
func TestLedgerBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, now := w.name(north, yesterday), w.name(north, today)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	w.run()
	w.rotate(north)
	w.manifest(north, today)
	w.apply(north, "order.create", "o2", `{"total":1}`)
	w.run()
	w.expect(now, "order:o2", "status pending")

	w.exec(`update orders set projected_version = 0, day_database_id = null where order_id = 'o2'`)
	w.set(now, daydb.Prewarmed)
	w.set(old, daydb.Active)
	w.status("o1", "paid")
	w.status("o2", "paid")
	r, err := w.whole().RunOnce(t.Context())
	if !errors.Is(err, errLedgerBehind) {
		t.Errorf("the error is %v", err)
	}
	if r.Written != 1 || r.Waiting != 1 {
		t.Errorf("%+v", r)
	}
	w.expect(old, "order:o1", "status paid")
	w.absent(old, "order:o2")

	w.set(old, daydb.Draining)
	w.set(now, daydb.Active)
	w.run()
	w.expect(now, "order:o2", "status paid")
	w.absent(old, "order:o2")
}

// TestLostHistory restores a primary to before a direct write, which its document
// shows. The order goes on from there, and so does the document.
func TestLostHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.name(north, yesterday)
	w.apply(north, "order.create", "o1", `{"total":1}`)
	w.status("o1", "paid")
	w.apply(north, "order.cancel", "o1", `{}`)
	w.run()
	w.expect(db, "order:o1", "status cancelled continuity.version 3")

	w.exec(`begin; set local session_replication_role = replica; update orders set status = 'paid', version = 2, projected_version = 2; commit`)
	w.status("o1", "preparing")
	w.run()
	w.expect(db, "order:o1", "status preparing continuity.version 3 continuity.status preparing")
}

// TestManifestOfNoDay: a manifest that somebody typed stops nothing.
func TestManifestOfNoDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manifest(north, "20991231")
	w.apply(north, "order.create", "o1", `{"total":1}`)
	w.run()
	w.expect(w.name(north, yesterday), "order:o1", "status pending")
}
