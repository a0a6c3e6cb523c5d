package archive_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/archive"
)

// TestAnotherIncarnationIsNotRead puts other databases under a day's name.
func TestAnotherIncarnationIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name, `{"_id":"a","type":"order","status":"closed","n":"first"}`)
	pos := w.catchUp(d)
	same := d
	same.InstanceStartTime = nil // A successor of the same second looks the same.
	for name, recreate := range map[string]func(){
		"another marker": func() { w.create(d.Name, uuid.NewString()) },
		"no marker":      func() { w.do(http.MethodPut, "/"+d.Name, "") },
		"no such marker": func() { w.create(d.Name, "nonsense") },
	} {
		w.do(http.MethodDelete, "/"+d.Name, "")
		recreate()
		w.put(d.Name, `{"_id":"a","type":"order","status":"closed","n":"second"}`, `{"_id":"b","type":"order","status":"closed"}`)
		if _, err := w.tryCatchUp(same); !errors.Is(err, archive.ErrIncarnation) {
			t.Errorf("%s: archived with %v", name, err)
		}
		if _, err := w.Reconcile(t.Context(), same, pos); !errors.Is(err, archive.ErrIncarnation) {
			t.Errorf("%s: reconciled with %v", name, err)
		}
		if _, err := w.Prove(t.Context(), same, pos); !errors.Is(err, archive.ErrIncarnation) {
			t.Errorf("%s: proven with %v", name, err)
		}
	}
	w.expect("1", `select count(*) from archived_docs where body like '%first%'`)
	w.expect("1", `select count(*) from archived_docs`)

	// The creation time differs although the marker was copied.
	other := d
	start := "1"
	other.InstanceStartTime = &start
	w.do(http.MethodDelete, "/"+d.Name, "")
	w.create(d.Name, d.Generation.String())
	if _, err := w.tryCatchUp(other); !errors.Is(err, archive.ErrIncarnation) {
		t.Errorf("another creation time: archived with %v", err)
	}
}

// TestSameIDInTwoDays archives one id of two databases as two rows.
func TestSameIDInTwoDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.newDay("20261130")
	w.put(first.Name, `{"_id":"a","type":"order","status":"closed","n":1}`)
	other := acme
	other.RestaurantID = "norte"
	second := w.newDayOf(other, "20261130")
	w.put(second.Name, `{"_id":"a","type":"order","status":"closed","n":2}`)
	w.checkEqual(first, w.catchUp(first))
	w.checkEqual(second, w.catchUp(second))
	w.checkEqual(first, w.catchUp(first))
}

// TestPurgeIsNoticed purges what no feed shows.
func TestPurgeIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name,
		`{"_id":"a","type":"order","status":"closed"}`,
		`{"_id":"b","type":"order","status":"closed"}`,
		`{"_id":"open","type":"order","status":"open"}`)
	before := w.catchUp(d)
	for _, id := range []string{"a", "open"} {
		w.do(http.MethodPost, "/"+d.Name+"/_purge", fmt.Sprintf(`{%q:[%q]}`, id, w.rev(d.Name, id)))
	}
	if _, err := w.Reconcile(t.Context(), d, before); !errors.Is(err, archive.ErrPurged) {
		t.Errorf("reconciled as of before the purge with %v", err)
	}
	if _, err := w.Prove(t.Context(), d, before); !errors.Is(err, archive.ErrPurged) {
		t.Errorf("proven as of before the purge with %v", err)
	}
	pos := w.catchUp(d)
	rec := w.reconcile(d, pos)
	if rec.Green() || rec.Extra.Count != 1 || rec.Extra.IDs[0] != "a" || rec.Missing.Count+rec.Changed.Count != 0 {
		t.Errorf("a purge is reconciled as %+v", rec)
	}
	if found := w.blockers(pos); len(found) > 0 {
		t.Errorf("a purged document blocks: %v", found)
	}
	var differs *archive.NotProvenError
	if _, err := w.Prove(t.Context(), d, pos); !errors.As(err, &differs) || differs.Extra.Count != 1 {
		t.Errorf("proven with %v", err)
	}
	w.expect("2", `select count(*) from archived_docs`)
}

// TestProofFindsWhatRevisionsDoNot changes bytes that no revision tells of.
func TestProofFindsWhatRevisionsDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name,
		`{"_id":"a","type":"order","status":"closed","total":100}`,
		`{"_id":"r","type":"order","status":"closed","_attachments":{"x.txt":{"content_type":"text/plain","data":"aGVsbG8="}}}`)
	w.do(http.MethodDelete, "/"+d.Name+"/a?rev="+w.rev(d.Name, "a"), "")
	w.put(d.Name, `{"_id":"b","type":"order","status":"closed","total":100}`)
	pos := w.catchUp(d)
	w.checkEqual(d, pos)
	for _, damage := range []struct{ id, sql string }{
		{"b", `update archived_docs set body = replace(body, '100', '900') where doc_id = 'b'`},
		{"a", `update archived_docs set tombstone = replace(tombstone, '}', ' }') where doc_id = 'a'`},
		{"r", `update archived_attachment_chunks set data = 'jello'`},
		{"r", `update archived_attachments set sha256 = sha256('jello')`},
		{"r", `update archived_docs set attachments = null where doc_id = 'r'`},
	} {
		tx := must(w.pool.Begin(t.Context()))(t)
		if _, err := tx.Exec(t.Context(), damage.sql); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rec := w.reconcile(d, pos); !rec.Green() {
			t.Errorf("%s: reconciled as %+v", damage.sql, rec)
		}
		var differs *archive.NotProvenError
		if _, err := w.Prove(t.Context(), d, pos); !errors.As(err, &differs) ||
			differs.Changed.Count+differs.Missing.Count != 1 || append(differs.Changed.IDs, differs.Missing.IDs...)[0] != damage.id {
			t.Errorf("%s: proven with %v", damage.sql, err)
		}
		w.exec(`truncate archived_docs, archived_attachments, archived_attachment_chunks`)
		w.exec(`update archive_checkpoints set since = '0'`)
		pos = w.catchUp(d)
		w.checkEqual(d, pos)
	}

	// A change after the position is not proven.
	w.put(d.Name, `{"_id":"late","type":"order","status":"closed"}`)
	if _, err := w.Prove(t.Context(), d, pos); !errors.Is(err, archive.ErrMoving) {
		t.Errorf("proven with %v", err)
	}
	if rec := w.reconcile(d, pos); rec.Green() || rec.Pending != 1 || rec.Missing.Count != 1 {
		t.Errorf("reconciled as %+v", rec)
	}
}
