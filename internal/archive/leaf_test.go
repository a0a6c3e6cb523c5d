package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/fence"
)

// tooSlowOnce answers the first _bulk_get as a CouchDB does whose shard took too
// long: a success that holds an error for each revision.
func tooSlowOnce() transport {
	var asked atomic.Bool
	return func(req *http.Request) (*http.Response, error) {
		if !strings.HasSuffix(req.URL.Path, "/_bulk_get") || asked.Swap(true) {
			return http.DefaultTransport.RoundTrip(req)
		}
		const each = `{"id":"o","docs":[{"error":{"id":"o","rev":"1-b","error":"timeout","reason":"The request could not be processed in a reasonable amount of time."}}]}`
		return &http.Response{
			StatusCode: http.StatusOK,
			Header:     http.Header{"Content-Type": {"application/json"}},
			Body:       io.NopCloser(bytes.NewReader(fmt.Appendf(nil, `{"results":[%s]}`, each))),
			Request:    req,
		}, nil
	}
}

// TestLeafThatWasNotAnswered: an error within an answer is no answer. The leaf is
// asked for again, be it a deletion to archive or a conflict.
func TestLeafThatWasNotAnswered(t *testing.T) {
	t.Parallel()
	for name, leaf := range map[string]string{
		"deleted": `{"_id":"o","_rev":"1-b","type":"order","status":"closed","_deleted":true}`,
		"live":    `{"_id":"o","_rev":"1-b","type":"order","status":"closed"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.newDay("20261130")
			w.replicate(d.Name, `{"_id":"o","_rev":"2-a","type":"order","status":"closed"}`, leaf)
			w.connect(tooSlowOnce())
			if _, err := w.tryCatchUp(d); !errors.Is(err, couch.ErrUnavailable) {
				t.Errorf("archived without the leaf: %v", err)
			}
			pos := w.catchUp(d)
			if name == "live" {
				if got := w.blockers(pos); got["conflict"] == "" {
					t.Errorf("the conflict is not seen: %v", got)
				}
				return
			}
			w.checkEqual(d, pos)
		})
	}
}

// TestLeafBehindTheCheckpoint: a leaf that the archive lacks although nothing is
// pending has it read again, like a document.
func TestLeafBehindTheCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.replicate(d.Name,
		`{"_id":"o","_rev":"2-a","type":"order","status":"closed"}`,
		`{"_id":"o","_rev":"1-b","type":"order","status":"closed","_deleted":true}`,
		// One that is still open has its leaf archived with it, once it is closed.
		`{"_id":"open","_rev":"2-a","type":"order","status":"open"}`,
		`{"_id":"open","_rev":"1-b","type":"order","status":"closed","_deleted":true}`)
	pos := w.catchUp(d)
	if rec := w.reconcile(d, pos); rec.Unread != 0 {
		t.Errorf("%d documents are said not to be read: %+v", rec.Unread, rec)
	}
	w.exec(`delete from archived_leaves`)
	rec := w.reconcile(d, pos)
	if rec.Unread != 1 || rec.Pending != 0 {
		t.Errorf("a leaf that is not there gives %+v", rec)
	}
	w.leased(d.Name, func(lease fence.Lease) error { return w.Rewind(t.Context(), d, pos, lease) })
	if rec := w.reconcile(d, w.catchUp(d)); rec.Unread != 0 || rec.Missing.Count != 1 {
		t.Errorf("read again, it gives %+v", rec)
	}
	w.expect("1-b", `select string_agg(rev, ' ') from archived_leaves`)
}
