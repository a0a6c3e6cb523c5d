package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
)

// cutBody ends a body after n bytes as a lost connection does.
func cutBody(body io.ReadCloser, n int64) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, n), broken{}), body}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// onFeed changes the answer to a feed with documents.
func onFeed(change func(*http.Response)) transport {
	return func(req *http.Request) (*http.Response, error) {
		res, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && strings.HasSuffix(req.URL.Path, "/_changes") && req.URL.Query().Get("limit") == "" {
			change(res)
		}
		return res, err
	}
}

func (w *world) putMany(db string, from, n int) {
	w.t.Helper()
	docs := make([]string, 0, n)
	for i := range n {
		docs = append(docs, fmt.Sprintf(`{"_id":"doc%d","type":"order","status":"closed","n":%d}`, from+i, i))
	}
	w.put(db, docs...)
}

// TestBrokenFeed breaks the feed within the third batch: two are committed, and
// the next run continues behind them.
func TestBrokenFeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	const docs = 5500
	w.putMany(d.Name, 0, docs)
	feed := w.do(http.MethodGet, "/"+d.Name+"/_changes?include_docs=true&style=all_docs&seq_interval=1000", "")
	w.connect(onFeed(func(res *http.Response) { res.Body = cutBody(res.Body, int64(len(feed)*9/10)) }))
	if _, err := w.tryCatchUp(d); !errors.Is(err, couch.ErrFeedBroken) {
		t.Fatalf("a feed that broke off gives %v", err)
	}
	w.expect("true", `select count(*) >= 4000 and count(*) < $1 from archived_docs`, docs)
	checkpoint := w.scalar(`select since from archive_checkpoints`)
	var since string
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		if q := req.URL.Query(); strings.HasSuffix(req.URL.Path, "/_changes") && q.Get("limit") == "" {
			since = q.Get("since")
		}
		return http.DefaultTransport.RoundTrip(req)
	}))
	pos := w.catchUp(d)
	if since != checkpoint || since == string(couch.SeqStart) {
		t.Errorf("continued from %.20s instead of %.20s", since, checkpoint)
	}
	w.checkEqual(d, pos)
}

// TestRepeatedRows has each row of the feed twice, within a batch or in
// different ones: the last wins.
func TestRepeatedRows(t *testing.T) {
	t.Parallel()
	for _, docs := range []int{10, 2100} {
		t.Run(fmt.Sprint(docs), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			d := w.newDay("20261130")
			w.putMany(d.Name, 0, docs)
			w.connect(onFeed(func(res *http.Response) {
				raw, _ := io.ReadAll(res.Body)
				head, rest, _ := bytes.Cut(raw, []byte("\n"))
				rows, end, _ := bytes.Cut(rest, []byte("\n],"))
				stale := bytes.ReplaceAll(rows, []byte(`"closed"`), []byte(`"cancelled"`))
				twice := bytes.Join([][]byte{head, []byte("\n"), stale, []byte(",\n"), rows, []byte("\n],"), end}, nil)
				res.Body = io.NopCloser(bytes.NewReader(twice))
			}))
			pos := w.catchUp(d)
			w.connect(nil)
			w.checkEqual(d, pos)
		})
	}
}

// TestRewoundFeed sends again what is archived: it is not written again.
func TestRewoundFeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	w.putMany(d.Name, 0, 10)
	w.catchUp(d)
	w.connect(transport(func(req *http.Request) (*http.Response, error) {
		if q := req.URL.Query(); q.Has("since") && q.Get("limit") == "" {
			q.Set("since", "0")
			req.URL.RawQuery = q.Encode()
		}
		return http.DefaultTransport.RoundTrip(req)
	}))
	rows := w.scalar(`select string_agg(xmin::text || ctid::text, ' ' order by doc_id) from archived_docs`)
	w.put(d.Name, `{"_id":"new","type":"order","status":"closed"}`)
	w.checkEqual(d, w.catchUp(d))
	w.expect(rows, `select string_agg(xmin::text || ctid::text, ' ' order by doc_id) from archived_docs where doc_id <> 'new'`)
}

// TestLargeDocuments bounds batches by bytes: the checkpoint waits for the next
// sequence, the rows do not.
func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.newDay("20261130")
	for i := range 4 {
		w.put(d.Name, fmt.Sprintf(`{"_id":"doc%d","type":"order","status":"closed","v":"%s"}`, i, strings.Repeat("v", 7_900_000)))
	}
	w.checkEqual(d, w.catchUp(d))
}
