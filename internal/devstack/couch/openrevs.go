package couch

import (
	"errors"
	"net/http"
	"slices"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

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
