package archive_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestRejectHoldsNobodyUp archives all documents of a batch but those that
// Postgres refuses.
func TestRejectHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.exec(`alter table archived_docs add constraint no_poison check (body not like '%poison%')`)
	var docs []string
	for i := range 100 {
		docs = append(docs, fmt.Sprintf(`{"_id":"doc%d","type":"order","status":"closed"}`, i))
	}
	docs = append(docs,
		`{"_id":"p1","type":"order","status":"closed","v":"poison","n":9007199254740993}`,
		`{"_id":"p2","type":"order","status":"closed","v":"poison"}`,
		`{"_id":"p3\u0000","type":"order","status":"closed","v":"poison"}`)
	w.put(d.Name, docs...)
	// A revision is the client's to choose, and the column for it takes no NUL.
	w.replicate(d.Name, `{"_id":"rev","_rev":"1-a\u0000b","type":"order","status":"closed"}`)

	pos := w.catchUp(d)
	w.expect("100", `select count(*) from archived_docs`)
	w.expect("23514 23514 23514 22021", `select string_agg(code, ' ' order by code desc) from archive_rejects`)
	w.expect("true", `select convert_from(bytes, 'UTF8') like '%"n":9007199254740993}' from archive_rejects where doc_id = 'p1'`)
	rec := w.reconcile(d, pos)
	if rec.Green() || rec.Rejected.Count != 4 || rec.Missing.Count != 4 || !strings.Contains(fmt.Sprint(rec.Rejected.IDs), `p3\x00`) {
		t.Errorf("rejects are reconciled as %+v", rec)
	}

	// They are tried again, as they are then.
	w.catchUp(d)
	w.expect("2", `select attempts from archive_rejects where doc_id = 'p1'`)
	w.put(d.Name, fmt.Sprintf(`{"_id":"p2","_rev":%q,"type":"order","status":"open"}`, w.rev(d.Name, "p2")))
	w.do(http.MethodDelete, "/"+d.Name+"/rev?rev=1-a%00b", "")
	pos = w.catchUp(d)
	w.expect("2", `select count(*) from archive_rejects`)
	if found := w.blockers(pos); found["non_terminal"] != "p2" {
		t.Errorf("blocked by %v", found)
	}
	w.exec(`alter table archived_docs drop constraint no_poison`)
	w.put(d.Name, fmt.Sprintf(`{"_id":"p2","_rev":%q,"type":"order","status":"closed"}`, w.rev(d.Name, "p2")))
	pos = w.catchUp(d)
	w.expect("0", `select count(*) from archive_rejects`)
	w.checkEqual(d, pos)
}

// TestAttachmentThatCannotBeHad makes its document a reject, until it can be had.
func TestAttachmentThatCannotBeHad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.put(d.Name,
		`{"_id":"bad","type":"order","status":"closed","_attachments":{"x":{"content_type":"image/png","data":"aGVsbG8="}}}`,
		`{"_id":"good","type":"order","status":"closed"}`)
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/bad/x") {
			req.URL.Path += "y"
		}
		return http.DefaultTransport.RoundTrip(req)
	}))
	pos := w.catchUp(d)
	w.expect("attachment", `select code from archive_rejects where doc_id = 'bad'`)
	w.expect("1", `select count(*) from archived_docs where doc_id = 'good'`)
	if rec := w.reconcile(d, pos); rec.Rejected.Count != 1 {
		t.Errorf("reconciled as %+v", rec)
	}
	w.connect(nil)
	w.checkEqual(d, w.catchUp(d))
	w.expect("0", `select count(*) from archive_rejects`)
}
