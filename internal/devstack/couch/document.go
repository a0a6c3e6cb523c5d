package couch

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

func parseRevArray(text string) ([]revtree.Rev, error) {
	array, err := jsontext.Canonical(nil, []byte(text))
	if err != nil || !jsontext.IsArray(array) || !isStringArray(array) {
		return nil, badRequest("`" + text + "` is not a JSON array of revisions")
	}
	var revs []revtree.Rev
	for token := range jsontext.Elements(array) {
		rev, err := revtree.ParseRev(jsontext.Unquote(token))
		if err != nil {
			return nil, err
		}
		revs = append(revs, rev)
	}
	return revs, nil
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

// openRevs answers ?open_revs=all or a list of revisions, as a JSON array or
// as multipart/mixed.
func (q *request) openRevs(id string, v view) error {
	asked, all, err := q.openRevsParameter()
	if err != nil {
		return err
	}
	multipart := q.accepts("multipart/mixed")
	if multipart {
		v.attachments, v.follows, v.encodingInfo = true, true, true
	}
	var parts []openRev
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		parts, err = readOpenRevs(tx, id, asked, all, q.flag("latest"), v)
		return err
	})
	if err != nil {
		return err
	}
	if multipart {
		return q.sendMultipartMixed(parts)
	}
	out := []byte("[")
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		if p.doc == nil {
			out = append(out, `{"missing":"`...)
			out = append(appendRev(out, p.rev), `"}`...)
			continue
		}
		out = append(out, `{"ok":`...)
		out = append(append(out, p.doc...), '}')
	}
	return q.json(http.StatusOK, append(out, ']'))
}

func (q *request) openRevsParameter() (revs []revtree.Rev, all bool, err error) {
	text := q.query.Get("open_revs")
	if text == "all" || text == `"all"` {
		return nil, true, nil
	}
	revs, err = parseRevArray(text)
	return revs, false, err
}

// openRev is one answer of open_revs or _bulk_get; doc is nil if the revision
// is missing.
type openRev struct {
	rev  revtree.Rev
	doc  []byte
	atts []store.Attachment // whose bytes the client has not got
}

// readOpenRevs reads the leaves of a document, or the revisions that were
// asked for; with latest each is replaced by the leaves that descend from it.
func readOpenRevs(tx *store.Tx, id string, asked []revtree.Rev, all, latest bool, v view) ([]openRev, error) {
	r, err := tx.Record(id)
	if errors.Is(err, store.ErrMissing) {
		if all {
			return nil, errMissing
		}
		r = &store.Record{ID: id}
	} else if err != nil {
		return nil, err
	}
	var indices []int
	var out []openRev
	if all {
		indices = r.Tree.Leaves()
	}
	for _, rev := range asked {
		i := r.Tree.Find(rev)
		switch {
		case i < 0:
			out = append(out, openRev{rev: rev})
		case latest:
			indices = append(indices, r.Tree.LeavesOf(i)...)
		default:
			indices = append(indices, i)
		}
	}
	slices.Sort(indices)
	indices = slices.Compact(indices)
	slices.SortFunc(indices, func(a, b int) int { return r.Tree[b].Rev.Compare(r.Tree[a].Rev) })
	for _, i := range indices {
		doc, err := appendDoc(nil, tx, r, i, v)
		if errors.Is(err, store.ErrMissing) {
			out = append(out, openRev{rev: r.Tree[i].Rev})
			continue
		}
		if err != nil {
			return nil, err
		}
		loaded, err := tx.Load(r, i)
		if err != nil {
			return nil, err
		}
		since := v.sinceGeneration(r.Tree.Path(i))
		atts := slices.DeleteFunc(loaded.Atts, func(a store.Attachment) bool { return a.RevPos <= since })
		out = append(out, openRev{rev: loaded.Rev, doc: doc, atts: atts})
	}
	return out, nil
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

// localDoc serves documents that neither replicate nor conflict.
func (q *request) localDoc(id string) error {
	key := strings.TrimPrefix(id, localPrefix)
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		var out []byte
		err := q.dir.View(q.db, func(tx *store.Tx) error {
			body, rev, err := tx.Local(key)
			out = appendLocal(nil, id, rev, body)
			return err
		})
		if err != nil {
			return err
		}
		return q.json(http.StatusOK, out)
	case http.MethodPut:
		obj, err := q.readJSON()
		if err != nil {
			return err
		}
		e, _, err := parseDoc(obj)
		if err != nil {
			return err
		}
		e.ID = id
		rev, err := q.putLocal(e)
		if err != nil {
			return err
		}
		return q.written(e, rev)
	case http.MethodDelete:
		e := &store.Edit{ID: id, Deleted: true}
		rev, err := q.putLocal(e)
		if err != nil {
			return err
		}
		return q.written(e, rev)
	}
	return methodNotAllowed("DELETE,GET,HEAD,PUT")
}

func (q *request) putLocal(e *store.Edit) (rev revtree.Rev, err error) {
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		rev, err = writeLocal(tx, e)
		return err
	})
	return rev, err
}

// writeLocal stores or deletes a local document. The revision that a client
// gives is only counted on, never compared.
func writeLocal(tx *store.Tx, e *store.Edit) (revtree.Rev, error) {
	key := strings.TrimPrefix(e.ID, localPrefix)
	if e.Deleted {
		return revtree.Rev{Gen: 0, ID: "0"}, tx.DeleteLocal(key)
	}
	given := ""
	if len(e.Revs) > 0 {
		given = e.Revs[0].ID
	}
	n, err := tx.PutLocal(key, e.Body, given)
	return revtree.Rev{Gen: 0, ID: strconv.Itoa(n)}, err
}

func appendLocal(dst []byte, id string, rev int, body []byte) []byte {
	dst = append(dst, `{"_id":`...)
	dst = jsontext.AppendString(dst, id)
	dst = append(dst, `,"_rev":"0-`...)
	dst = append(strconv.AppendInt(dst, int64(rev), 10), '"')
	if len(body) > 0 {
		dst = append(dst, ',')
		dst = append(dst, body...)
	}
	return append(dst, '}')
}
