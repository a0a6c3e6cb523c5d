package rotation_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/run"
)

// end returns the sequence at the end of the legacy database's feed.
func (w *world) end() couch.Seq {
	w.Helper()
	feed, err := w.couch.Changes(w.Context(), w.legacy, couch.ChangesOptions{Since: couch.SeqStart})
	if err != nil {
		w.Fatal(err)
	}
	defer feed.Close()
	for feed.Next() {
		continue
	}
	if err := feed.Err(); err != nil {
		w.Fatal(err)
	}
	end, _ := feed.End()
	return end
}

// What was written to a legacy database after its files were put back to an older
// state is behind every checkpoint. Open documents are carried, finished ones
// archived, the catalogue brought up to date: also for restaurants that the run
// which noticed it was not about.
func TestLegacyRestoredFromABackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1, r2)
	w.put(w.legacy, "old", order("r2", "closed"))
	w.rotated(run.Scope{})
	w.archived(nil)
	w.rotated(run.Scope{})
	w.put(w.legacy, "open", order("r2", "open"))
	w.put(w.legacy, "closed", order("r2", "closed"))
	w.put(w.legacy, "product", product("r2"))
	// As if everything had been copied, and the files were those of now.
	for _, sql := range []string{
		`update legacy_copies set since = $1`,
		`update archive_checkpoints set since = $1`,
	} {
		if _, err := w.pool.Exec(t.Context(), sql, w.end()); err != nil {
			t.Fatal(err)
		}
	}
	dry := &run.Report{}
	if err := w.rotator(w.couch).Run(t.Context(), run.Run{Actor: "test", DryRun: true, Report: dry}); err != nil {
		t.Fatal(err)
	}
	w.clean(dry)
	if c := dry.Counters(); c["carried_documents"] != 1 || c["warmed_documents"] != 1 {
		t.Errorf("a dry run sees %v", c)
	}

	w.rotated(run.Scope{CompanyID: "acme", RestaurantID: "r1"})
	w.rotated(run.Scope{})
	w.archived(nil)
	today := w.dayDB(r2, w.today())
	w.wantLeaves("open", today)
	w.wantLeaves("product", w.core(r2))
	w.wantAbsent("closed", today)
	w.wantAbsent("old", today)
	for _, id := range []string{"closed", "old"} {
		if len(w.rows(id)) != 1 {
			t.Errorf("%s is not in the archive", id)
		}
	}
	b := &breaker{}
	w.clean(w.runBroken(b, run.Scope{}))
	for _, request := range b.requests {
		if request == "PUT /"+w.legacy+"/_local/rollingd_copies" {
			t.Error("the witness is written although nothing has changed")
		}
	}
}
