package couch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// Doc returns a document exactly as CouchDB sends it: the winning revision, or
// the given one when rev is not empty, a deletion included. ErrNotFound for a
// document that is absent, or deleted when no revision was asked for.
func (c *Client) Doc(ctx context.Context, db, id, rev string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	target := docPath(db, id)
	if rev != "" {
		target += "?rev=" + url.QueryEscape(rev)
	}
	raw, err := c.read(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(raw, "\r\n"), nil
}

// Conflicts returns the live losing leaves of a document that is not deleted.
func (c *Client) Conflicts(ctx context.Context, db, id string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	raw, err := c.read(ctx, http.MethodGet, docPath(db, id)+"?conflicts=true", nil)
	if err != nil {
		return nil, err
	}
	var revs []string
	for _, rev := range gjson.GetBytes(raw, "_conflicts").Array() {
		revs = append(revs, rev.String())
	}
	return revs, nil
}

// Put writes a document that encodes to JSON, with its _rev in it unless it is
// new. ErrConflict when another revision is there.
func (c *Client) Put(ctx context.Context, db, id string, doc any) error {
	return c.doJSON(ctx, http.MethodPut, docPath(db, id), doc, nil)
}

// DeleteDoc deletes a revision of a document.
func (c *Client) DeleteDoc(ctx context.Context, db, id, rev string) error {
	return c.doJSON(ctx, http.MethodDelete, docPath(db, id)+"?rev="+url.QueryEscape(rev), nil, nil)
}

// Ref names a revision of a document; an empty Rev means the winning one, or
// all leaves where the call says so.
type Ref struct {
	ID  string `json:"id"`
	Rev string `json:"rev,omitempty"`
}

// Revision is a revision as _bulk_get returns it. Body is nil when CouchDB does
// not have it, and Error then says why.
type Revision struct {
	Ref
	Body  []byte
	Error string
}

// Deleted reports whether the revision is a deletion.
func (r Revision) Deleted() bool { return gjson.GetBytes(r.Body, "_deleted").Bool() }

// Unanswered returns an ErrUnavailable for a revision that CouchDB did not give
// although it may well have it: a shard was too slow. Within an answer that is a
// success it is an error like any other, and no proof of absence.
func (r Revision) Unanswered() error {
	if r.Body != nil || strings.HasPrefix(r.Error, "not_found") {
		return nil
	}
	return fmt.Errorf("%w: revision %q of %q: %s", ErrUnavailable, r.Rev, r.ID, r.Error)
}

// Revisions returns revisions with their bodies; an empty Rev in refs asks for
// every leaf. The answer is a success even when single revisions were not given:
// see Unanswered. With history each body holds _revisions and its attachments
// inline, ready to be inserted elsewhere under the same revision.
func (c *Client) Revisions(ctx context.Context, db string, refs []Ref, history bool) ([]Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	target := path(db) + "/_bulk_get"
	if history {
		target += "?revs=true&attachments=true"
	}
	raw, err := c.read(ctx, http.MethodPost, target, map[string]any{"docs": refs})
	if err != nil {
		return nil, err
	}
	// gjson, since bodies may nest deeper than encoding/json reads.
	results := gjson.GetBytes(raw, "results")
	if !results.IsArray() {
		return nil, fmt.Errorf("%w: _bulk_get of %s has no results", ErrUnavailable, db)
	}
	var revisions []Revision
	results.ForEach(func(_, result gjson.Result) bool {
		result.Get("docs").ForEach(func(_, doc gjson.Result) bool {
			r := Revision{Ref: Ref{ID: result.Get("id").String()}}
			if ok := doc.Get("ok"); ok.Exists() {
				r.Body = []byte(ok.Raw)
				r.Rev = ok.Get("_rev").String()
			} else {
				r.Rev = doc.Get("error.rev").String()
				r.Error = doc.Get("error.error").String() + " " + doc.Get("error.reason").String()
			}
			revisions = append(revisions, r)
			return true
		})
		return true
	})
	return revisions, nil
}

// Refusal is a document that an insert did not take.
type Refusal struct {
	ID     string `json:"id"`
	Rev    string `json:"rev"`
	Error  string `json:"error"`
	Reason string `json:"reason"`
}

// Insert writes documents under the revisions that they hold, as replication
// does; a revision that is there already is no error. The answer is a success
// even when single documents were refused: read the refusals.
func (c *Client) Insert(ctx context.Context, db string, docs [][]byte) ([]Refusal, error) {
	size := len(`{"new_edits":false,"docs":[]}`)
	for _, doc := range docs {
		size += len(doc) + 1
	}
	body := make([]byte, 0, size)
	body = append(body, `{"new_edits":false,"docs":[`...)
	body = append(body, bytes.Join(docs, []byte(","))...)
	body = append(body, `]}`...)
	var refusals []Refusal
	if err := c.doJSON(ctx, http.MethodPost, path(db)+"/_bulk_docs", body, &refusals); err != nil {
		return nil, err
	}
	return refusals, nil
}

// uploadTimeout bounds one insert of any size.
const uploadTimeout = 15 * time.Minute

// InsertStream is Insert of one document that need not be held in memory, such
// as one with its attachments inline.
func (c *Client) InsertStream(ctx context.Context, db string, doc io.Reader) ([]Refusal, error) {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	body := io.MultiReader(strings.NewReader(`{"new_edits":false,"docs":[`), doc, strings.NewReader(`]}`))
	raw, err := c.read(ctx, http.MethodPost, path(db)+"/_bulk_docs", body)
	if err != nil {
		return nil, err
	}
	var refusals []Refusal
	if err := json.Unmarshal(raw, &refusals); err != nil {
		return nil, fmt.Errorf("%w: answer of _bulk_docs is not the JSON it should be", ErrUnavailable)
	}
	return refusals, nil
}

// Missing returns, of the given revisions of each document, those that the
// database does not have.
func (c *Client) Missing(ctx context.Context, db string, revs map[string][]string) (map[string][]string, error) {
	var diff map[string]struct {
		Missing []string `json:"missing"`
	}
	if err := c.doJSON(ctx, http.MethodPost, path(db)+"/_revs_diff", revs, &diff); err != nil {
		return nil, err
	}
	missing := make(map[string][]string, len(diff))
	for id, d := range diff {
		missing[id] = d.Missing
	}
	return missing, nil
}

// Attachment opens the decoded bytes of an attachment. Close it.
func (c *Client) Attachment(ctx context.Context, db, id, rev, name string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := newStallWatch(c.stall, cancel)
	// Without Accept-Encoding, CouchDB unpacks what it stores compressed.
	target := docPath(db, id) + path(name) + "?rev=" + url.QueryEscape(rev)
	res, err := c.send(ctx, http.MethodGet, target, nil)
	if err != nil {
		watch.stop()
		cancel(nil)
		return nil, err
	}
	return &stream{Reader: watch.reader(res.Body), watch: watch, cancel: cancel, body: res.Body}, nil
}

type stream struct {
	io.Reader
	watch  *stallWatch
	cancel context.CancelCauseFunc
	body   io.Closer
}

func (s *stream) Close() error {
	s.watch.stop()
	s.cancel(nil)
	return s.body.Close()
}

// DesignDoc is a design document that only validates.
type DesignDoc struct {
	ID       string `json:"_id"`
	Rev      string `json:"_rev,omitempty"`
	Language string `json:"language"`
	Validate string `json:"validate_doc_update"`
}

// PutDesign makes sure that a design document with this validation is there,
// whatever was there before.
func (c *Client) PutDesign(ctx context.Context, db, id, validate string) error {
	want := DesignDoc{ID: id, Language: "javascript", Validate: validate}
	raw, err := c.Doc(ctx, db, id, "")
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return err
	default:
		var have DesignDoc
		if json.Unmarshal(raw, &have) == nil && have.Validate == validate && have.Language == want.Language {
			return nil
		}
		want.Rev = gjson.GetBytes(raw, "_rev").String()
	}
	return c.Put(ctx, db, id, want)
}

// DropDesign makes sure that a design document is not there.
func (c *Client) DropDesign(ctx context.Context, db, id string) error {
	raw, err := c.Doc(ctx, db, id, "")
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.DeleteDoc(ctx, db, id, gjson.GetBytes(raw, "_rev").String())
}
