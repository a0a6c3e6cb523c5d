package archive_test

import (
	"testing"

	"github.com/rollingd/rollingd/internal/run"
)

// TestCanaryLeavesTheOthersAlone archives one restaurant of a legacy database
// that others share: nothing of theirs is archived or marked deleted, and the
// run for all that follows misses nothing.
func TestCanaryLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	canary := run.Scope{CompanyID: "acme", RestaurantID: "pascua"}
	const archived = `select coalesce(string_agg(convert_from(doc_id, 'UTF8') || case when deleted then '-' else '' end, ' ' order by doc_id), '') from archived_docs`
	scoped := func() {
		t.Helper()
		if failures := w.run(canary).Failures(); len(failures) > 0 {
			t.Fatal(failures)
		}
	}

	// Before anybody was archived.
	w.put(db, legacyDoc("a1", "acme", "pascua", ""), legacyDoc("b1", "acme", "centro", ""))
	scoped()
	w.expect("a1", archived)
	w.expect("0", `select since from archive_checkpoints where db_name = $1`, db)
	w.legacyRun()
	w.expect("a1 b1", archived)

	// From the checkpoint that all share, with deletions on both sides.
	w.put(db, legacyDoc("a2", "acme", "pascua", ""), legacyDoc("b2", "acme", "centro", ""))
	for _, id := range []string{"a1", "b1"} {
		w.put(db, `{"_id":"`+id+`","_rev":"`+w.scalar(`select rev from archived_docs where doc_id = $1`, []byte(id))+`","_deleted":true}`)
	}
	before := w.scalar(`select since from archive_checkpoints where db_name = $1`, db)
	scoped()
	w.expect("a1- a2 b1", archived)
	w.expect(before, `select since from archive_checkpoints where db_name = $1`, db)
	w.legacyRun()
	w.expect("a1- a2 b1- b2", archived)
	if c := w.run(canary).Counters(); c["quiet"] != 1 {
		t.Errorf("without news: %v", c)
	}
}
