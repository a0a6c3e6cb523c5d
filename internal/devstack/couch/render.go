package couch

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// view says what a document is shown with beside its body.
type view struct {
	revs, revsInfo, conflicts, deletedConflicts, localSeq bool
	attachments                                           bool // bytes instead of stubs
	follows                                               bool // bytes follow in a multipart answer
	encodingInfo                                          bool
	// attsSince limits attachments to those newer than the newest of these
	// revisions that the document descends from.
	attsSince []revtree.Rev
}

// appendDoc appends the revision at index i of a record as JSON. Every answer
// shows a document through here, so that its bytes are the same everywhere.
func appendDoc(dst []byte, tx *store.Tx, r *store.Record, i int, v view) ([]byte, error) {
	doc, err := tx.Load(r, i)
	if err != nil {
		return dst, err
	}
	dst = append(dst, `{"_id":`...)
	dst = jsontext.AppendString(dst, r.ID)
	dst = append(dst, `,"_rev":"`...)
	dst = append(appendRev(dst, doc.Rev), '"')
	if len(doc.Body) > 0 {
		dst = append(dst, ',')
		dst = append(dst, doc.Body...)
	}
	if doc.Deleted {
		dst = append(dst, `,"_deleted":true`...)
	}
	if v.revs {
		dst = appendRevisions(dst, r.Tree.Path(i))
	}
	if v.revsInfo {
		dst = appendRevsInfo(dst, r.Tree, i)
	}
	if v.conflicts {
		dst = appendConflicts(dst, r.Tree, i, "_conflicts", false)
	}
	if v.deletedConflicts {
		dst = appendConflicts(dst, r.Tree, i, "_deleted_conflicts", true)
	}
	if v.localSeq {
		dst = append(dst, `,"_local_seq":`...)
		dst = strconv.AppendUint(dst, r.Seq, 10)
	}
	if dst, err = appendAttachments(dst, tx, doc, v, r.Tree.Path(i)); err != nil {
		return dst, err
	}
	return append(dst, '}'), nil
}

func appendRev(dst []byte, rev revtree.Rev) []byte {
	dst = append(strconv.AppendInt(dst, int64(rev.Gen), 10), '-')
	if len(rev.ID) == 16 {
		return append(dst, rev.IDString()...)
	}
	// A client chose this id; it may hold what JSON has to escape.
	token := jsontext.AppendString(nil, rev.ID)
	return append(dst, token[1:len(token)-1]...)
}

func appendRevisions(dst []byte, path []revtree.Rev) []byte {
	dst = append(dst, `,"_revisions":{"start":`...)
	dst = strconv.AppendInt(dst, int64(path[0].Gen), 10)
	dst = append(dst, `,"ids":[`...)
	for i, rev := range path {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsontext.AppendString(dst, rev.IDString())
	}
	return append(dst, "]}"...)
}

func appendRevsInfo(dst []byte, t revtree.Tree, i int) []byte {
	dst = append(dst, `,"_revs_info":[`...)
	for first := true; i >= 0; i, first = t[i].Parent, false {
		if !first {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"rev":"`...)
		dst = appendRev(dst, t[i].Rev)
		dst = append(dst, `","status":"`...)
		switch {
		case t[i].Body == 0:
			dst = append(dst, "missing"...)
		case t[i].Deleted:
			dst = append(dst, "deleted"...)
		default:
			dst = append(dst, "available"...)
		}
		dst = append(dst, `"}`...)
	}
	return append(dst, ']')
}

// appendConflicts lists the losing leaves that are live, or deleted. The
// winner itself is never among them, whichever revision is shown.
func appendConflicts(dst []byte, t revtree.Tree, shown int, member string, deleted bool) []byte {
	var revs []byte
	for _, leaf := range t.Leaves() {
		if leaf == shown || t[leaf].Deleted != deleted {
			continue
		}
		if revs != nil {
			revs = append(revs, ',')
		}
		revs = append(revs, '"')
		revs = append(appendRev(revs, t[leaf].Rev), '"')
	}
	if revs == nil {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, member...)
	dst = append(dst, `":[`...)
	return append(append(dst, revs...), ']')
}

func appendAttachments(dst []byte, tx *store.Tx, doc store.Doc, v view, path []revtree.Rev) ([]byte, error) {
	if len(doc.Atts) == 0 {
		return dst, nil
	}
	since := v.sinceGeneration(path)
	for n, a := range doc.Atts {
		if n == 0 {
			dst = append(dst, `,"_attachments":{`...)
		} else {
			dst = append(dst, ',')
		}
		dst = jsontext.AppendString(dst, a.Name)
		dst = append(dst, `:{"content_type":`...)
		dst = jsontext.AppendString(dst, a.Type)
		dst = append(dst, `,"revpos":`...)
		dst = strconv.AppendInt(dst, int64(a.RevPos), 10)
		dst = append(dst, `,"digest":"md5-`...)
		dst = append(base64.StdEncoding.AppendEncode(dst, a.Digest[:]), '"')
		switch {
		case v.attachments && a.RevPos > since && !v.follows:
			data, err := decodedContent(tx, a)
			if err != nil {
				return dst, err
			}
			dst = append(dst, `,"data":"`...)
			dst = append(base64.StdEncoding.AppendEncode(dst, data), '"')
		default:
			dst = append(dst, `,"length":`...)
			dst = strconv.AppendInt(dst, a.Length, 10)
			if v.follows && a.RevPos > since {
				dst = append(dst, `,"follows":true`...)
			} else {
				dst = append(dst, `,"stub":true`...)
			}
		}
		if v.encodingInfo && a.Gzip {
			dst = append(dst, `,"encoding":"gzip","encoded_length":`...)
			dst = strconv.AppendInt(dst, a.Stored, 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}'), nil
}

// appendStubs shows attachments to a validation function.
func appendStubs(dst []byte, atts []store.Attachment) []byte {
	dst, _ = appendAttachments(dst, nil, store.Doc{Atts: atts}, view{}, nil) // Stubs read nothing.
	return dst
}

// sinceGeneration is the generation up to which the client has the
// attachments of a revision with this ancestry.
func (v view) sinceGeneration(path []revtree.Rev) int {
	for _, rev := range path {
		if slices.Contains(v.attsSince, rev) {
			return rev.Gen
		}
	}
	return 0
}

// decodedContent reads an attachment as it was before it was compressed.
func decodedContent(tx *store.Tx, a store.Attachment) ([]byte, error) {
	data, err := tx.Content(a)
	if err != nil || !a.Gzip {
		return data, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, errors.New("stored attachment is not gzip")
	}
	return io.ReadAll(z)
}
