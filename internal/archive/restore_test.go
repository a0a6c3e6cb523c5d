package archive_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/archive"
)

// TestRestoredDatabaseIsHeld restores twice, into databases that nothing drops
// and nobody but an administrator opens, secured while they are empty.
func TestRestoredDatabaseIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	if _, err := w.Restore(t.Context(), d, "too early", "tester"); !errors.Is(err, archive.ErrNotArchived) {
		t.Errorf("without an archive: %v", err)
	}
	w.putMany(d.Name, 0, 1200)
	w.catchUp(d)
	w.do(http.MethodDelete, "/"+d.Name, "")
	seen := &recorder{}
	w.connect(seen)
	for n := 1; n <= 2; n++ {
		seen.requests = nil
		restored := must(w.Restore(t.Context(), d, "audit", "tester"))(t)
		if want := fmt.Sprintf("%s_acme_centro_restored_20261130_%d", w.env, n); restored.DBName != want || restored.Documents != 1200 {
			t.Errorf("restored as %+v, not as %s", restored, want)
		}
		if _, err := contracts.ParseDBName(restored.DBName); err == nil {
			t.Errorf("%s could be taken for a day", restored.DBName)
		}
		secured := slices.Index(seen.requests, "PUT /"+restored.DBName+"/_security")
		inserted := slices.Index(seen.requests, "POST /"+restored.DBName+"/_bulk_docs")
		if secured < 0 || inserted < secured {
			t.Errorf("not secured before the first document: %v", seen.requests)
		}
		if security := string(w.do(http.MethodGet, "/"+restored.DBName+"/_security", "")); !strings.Contains(security, `"roles":["rollingd_sealed"]`) {
			t.Errorf("open to %s", security)
		}
		w.expect("restored 1200 audit tester", `
			select concat_ws(' ', state, documents, reason, actor)
			from restored_databases
			where db_name = $1 and finished_at is not null`, restored.DBName)
	}
}

// TestRestoreTakesNoOtherDatabase meets a database of somebody else under the name.
func TestRestoreTakesNoOtherDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.putMany(d.Name, 0, 3)
	w.catchUp(d)
	name := w.env + "_acme_centro_restored_20261130_1"
	w.do(http.MethodPut, "/"+name+"?q=1", "")
	w.put(name, `{"_id":"theirs"}`)
	if _, err := w.Restore(t.Context(), d, "audit", "tester"); !errors.Is(err, archive.ErrIncarnation) {
		t.Errorf("restored into another's database with %v", err)
	}
	if info := string(w.do(http.MethodGet, "/"+name, "")); !strings.Contains(info, `"doc_count":1,`) {
		t.Errorf("the other's database is now %s", info)
	}
}

// TestRestoreIsVerified damages what was inserted before it is read back.
func TestRestoreIsVerified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.putMany(d.Name, 0, 3)
	w.catchUp(d)
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		res, err := http.DefaultTransport.RoundTrip(req)
		if strings.HasSuffix(req.URL.Path, "/_bulk_docs") {
			db := strings.TrimSuffix(req.URL.Path, "/_bulk_docs")
			w.replicate(db[1:], `{"_id":"doc1","_rev":"9-a","type":"order","status":"closed","n":9}`)
		}
		return res, err
	}))
	var differs *archive.NotProvenError
	if _, err := w.Restore(t.Context(), d, "audit", "tester"); !errors.As(err, &differs) || differs.Changed.IDs[0] != "doc1" {
		t.Errorf("a restore that differs: %v", err)
	}
	w.expect("failed", `select state from restored_databases`)
}
