package archive_test

import (
	"net/http"
	"testing"

	"github.com/tidwall/gjson"
)

// end returns the sequence at the end of a feed.
func (w *world) end(db string) string {
	w.t.Helper()
	return gjson.GetBytes(w.do(http.MethodGet, "/"+db+"/_changes", ""), "last_seq").String()
}

// TestLegacyRestoredFromABackup finds what was written to a legacy database after
// its files were put back: behind the checkpoint, where nothing is pending.
func TestLegacyRestoredFromABackup(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.put(db, legacyDoc("before", "acme", "centro", ""))
	w.legacyRun()
	// As if the archive had read on, and the files were those of now.
	w.put(db, legacyDoc("hidden", "acme", "centro", ""))
	w.exec(`update archive_checkpoints set since = $1`, w.end(db))
	w.legacyRun()
	w.expect("before hidden", `select string_agg(convert_from(doc_id, 'UTF8'), ' ' order by doc_id) from archived_docs`)

	// The witness is good from then on, and costs one request.
	seen := &recorder{}
	w.connect(seen)
	if c := w.legacyRun().Counters(); c["quiet"] != 1 {
		t.Errorf("without news: %v", c)
	}
	if len(seen.requests) != 3 {
		t.Errorf("requests without news: %v", seen.requests)
	}
	w.put(db, legacyDoc("new", "acme", "centro", ""))
	if c := w.legacyRun().Counters(); c["documents"] != 1 {
		t.Errorf("with news: %v", c)
	}

	// A crash between the checkpoint and the witness.
	w.do(http.MethodPut, "/"+db+"/_local/rollingd_archive", `{"since":"1-x"}`)
	w.legacyRun()
	w.expect("3", `select count(*) from archived_docs`)
	if c := w.legacyRun().Counters(); c["quiet"] != 1 {
		t.Errorf("after the witness was mended: %v", c)
	}
}
