package couch

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// viewFromQuery reads the parameters that say what to show of a document.
func (q *request) viewFromQuery() (view, error) {
	v := view{
		revs:             q.flag("revs"),
		revsInfo:         q.flag("revs_info"),
		conflicts:        q.flag("conflicts"),
		deletedConflicts: q.flag("deleted_conflicts"),
		localSeq:         q.flag("local_seq"),
		attachments:      q.flag("attachments"),
		encodingInfo:     q.flag("att_encoding_info"),
	}
	if q.flag("meta") {
		v.revsInfo, v.conflicts, v.deletedConflicts = true, true, true
	}
	if since := q.query.Get("atts_since"); since != "" {
		revs, err := parseRevArray(since)
		if err != nil {
			return v, err
		}
		v.attsSince, v.attachments = revs, true
	}
	return v, nil
}

func (q *request) getDoc(id string) error {
	v, err := q.viewFromQuery()
	if err != nil {
		return err
	}
	if q.query.Has("open_revs") {
		return q.openRevs(id, v)
	}
	multipart := v.attachments && q.accepts("multipart/related")
	var out []byte
	var shown store.Doc
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		r, err := tx.Record(id)
		if err != nil {
			return err
		}
		i, err := q.chooseRev(r)
		if err != nil {
			return err
		}
		if shown, err = tx.Load(r, i); err != nil {
			return err
		}
		if multipart && len(shown.Atts) > 0 {
			v.follows, v.encodingInfo = true, true
		}
		shown.Atts = slices.DeleteFunc(shown.Atts, func(a store.Attachment) bool {
			return a.RevPos <= v.sinceGeneration(r.Tree.Path(i))
		})
		out, err = appendDoc(nil, tx, r, i, v)
		return err
	})
	if err != nil {
		return err
	}
	if v.follows {
		return q.sendMultipartRelated(out, shown.Atts)
	}
	if !v.revsInfo && !v.conflicts && !v.deletedConflicts && !v.localSeq {
		etag := `"` + shown.Rev.String() + `"`
		q.w.Header().Set("ETag", etag)
		if q.r.Header.Get("If-None-Match") == etag {
			q.w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	return q.json(http.StatusOK, out)
}

// chooseRev finds the revision that ?rev= names, else the winner if it is
// live.
func (q *request) chooseRev(r *store.Record) (int, error) {
	text := q.query.Get("rev")
	if text == "" || q.flag("latest") {
		winner := r.Tree.Winner()
		if r.Tree[winner].Deleted {
			return 0, errDeleted
		}
		return winner, nil
	}
	rev, err := revtree.ParseRev(text)
	if err != nil {
		return 0, err
	}
	i := r.Tree.Find(rev)
	if i < 0 {
		return 0, errMissing
	}
	return i, nil
}

func (q *request) accepts(contentType string) bool {
	return slices.ContainsFunc(q.r.Header.Values("Accept"), func(accept string) bool {
		return accept == "" || strings.Contains(accept, contentType) || strings.Contains(accept, "*/*")
	}) || len(q.r.Header.Values("Accept")) == 0
}

func (q *request) putDoc(id string) error {
	contentType := q.r.Header.Get("Content-Type")
	if strings.HasPrefix(contentType, "multipart/related") {
		return q.putMultipart(id, contentType)
	}
	obj, err := q.readJSON()
	if err != nil {
		return err
	}
	e, _, err := parseDoc(obj)
	if err != nil {
		return err
	}
	return q.writeDoc(id, e)
}

// postDoc creates a document under its own id or under a new one.
func (q *request) postDoc() error {
	obj, err := q.readJSONObject()
	if err != nil {
		return err
	}
	e, _, err := parseDoc(obj)
	if err != nil {
		return err
	}
	if e.ID == "" {
		e.ID = randomHex(16)
	}
	return q.writeDoc(e.ID, e)
}

func (q *request) deleteDoc(id string) error {
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		r, err := tx.Record(id)
		if err == nil && !r.Live() {
			err = errDeleted
		}
		return err
	})
	if err != nil {
		return err
	}
	return q.writeDoc(id, &store.Edit{Deleted: true})
}

// writeDoc stores one edit and answers with its revision.
func (q *request) writeDoc(id string, e *store.Edit) error {
	// CouchDB judges the size before it adds the id of the path.
	if err := q.checkSize(e); err != nil {
		return err
	}
	e.ID = id
	if err := q.prepare(e); err != nil {
		return err
	}
	if err := q.takeRevFromRequest(e); err != nil {
		return err
	}
	replicated := q.query.Get("new_edits") == "false"
	if replicated && len(e.Revs) == 0 {
		return badRequest("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
	}
	var rev revtree.Rev
	err := q.dir.Update(q.db, func(tx *store.Tx) (err error) {
		if replicated {
			rev = e.Revs[0]
			return tx.Replicate(e, q.check(tx))
		}
		rev, err = tx.Put(e, q.check(tx))
		return err
	})
	if err != nil {
		return err
	}
	return q.written(e, rev)
}

func (q *request) written(e *store.Edit, rev revtree.Rev) error {
	q.w.Header().Set("Location", "http://"+q.r.Host+"/"+url.QueryEscape(q.db)+"/"+url.QueryEscape(e.ID))
	q.w.Header().Set("ETag", `"`+rev.String()+`"`)
	status := http.StatusCreated
	if e.Deleted {
		status = http.StatusOK
	}
	return q.json(status, appendWritten(nil, e.ID, rev))
}

func appendWritten(dst []byte, id string, rev revtree.Rev) []byte {
	dst = append(dst, `{"ok":true,"id":`...)
	dst = jsontext.AppendString(dst, id)
	dst = append(dst, `,"rev":"`...)
	return append(appendRev(dst, rev), `"}`...)
}

// takeRevFromRequest adds the revision of ?rev= or If-Match to an edit.
func (q *request) takeRevFromRequest(e *store.Edit) error {
	given := q.query.Get("rev")
	if header := strings.Trim(q.r.Header.Get("If-Match"), `"`); header != "" {
		if given != "" && given != header {
			return badRequest("Document rev and etag have different values")
		}
		given = header
	}
	if given == "" {
		return nil
	}
	rev, err := revtree.ParseRev(given)
	if err != nil {
		return err
	}
	if len(e.Revs) > 0 && e.Revs[0] != rev {
		return badRequest("Document rev from request body and query string have different values")
	}
	if len(e.Revs) == 0 {
		e.Revs = []revtree.Rev{rev}
	}
	return nil
}

// prepare does what every edit needs before it is stored, wherever it came
// from.
func (q *request) prepare(e *store.Edit) error {
	if q.db == usersDB {
		e.Body = q.withHashedPassword(e.Body)
	}
	if strings.HasPrefix(e.ID, store.DesignPrefix) {
		if f := jsontext.Get(asObject(e.Body), "validate_doc_update"); f != nil && !jsontext.IsString(f) {
			return &httpError{http.StatusBadRequest, "invalid_design_doc", "`validate_doc_update` field must have string type"}
		}
	}
	return q.checkSize(e)
}
