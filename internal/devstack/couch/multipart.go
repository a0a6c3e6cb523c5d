package couch

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// putMultipart stores a document whose attachments follow it in the request.
// Like a single attachment it is judged before they are received.
func (q *request) putMultipart(id, contentType string) error {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" {
		return badRequest("multipart/related without boundary")
	}
	parts := multipart.NewReader(q.r.Body, params["boundary"])
	first, err := parts.NextRawPart()
	if err != nil {
		return badRequest("multipart/related without a document")
	}
	raw, err := io.ReadAll(first)
	if err != nil {
		return badRequest("multipart/related ends early")
	}
	obj, err := jsontext.Canonical(nil, raw)
	if err != nil {
		return err
	}
	e, follows, err := parseDoc(obj)
	if err != nil {
		return err
	}
	e.ID = id
	if err := q.takeRevFromRequest(e); err != nil {
		return err
	}
	if err := q.prepare(e); err != nil {
		return err
	}
	replicated := q.query.Get("new_edits") == "false"
	if replicated && len(e.Revs) == 0 {
		return badRequest("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
	}
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		if replicated {
			return tx.PrecheckReplicated(e, q.check(tx))
		}
		return tx.Precheck(e, q.check(tx))
	})
	if err != nil {
		return err
	}
	if err := q.receiveFollowing(e, follows, parts); err != nil {
		return err
	}
	if !replicated {
		return q.writeUnchecked(e)
	}
	if err := q.dir.Update(q.db, func(tx *store.Tx) error { return tx.Replicate(e, nil) }); err != nil {
		return err
	}
	return q.written(e, e.Revs[0])
}

func (q *request) receiveFollowing(e *store.Edit, follows []string, parts *multipart.Reader) error {
	for _, name := range follows {
		// Parts come in the order of the stubs. A name, where one is given,
		// decides.
		part, err := parts.NextRawPart()
		if err != nil {
			return badRequest("an attachment of multipart/related is missing")
		}
		if given := part.FileName(); given != "" {
			name = given
		}
		i := slices.IndexFunc(e.Atts, func(a store.AttachmentEdit) bool { return a.Name == name })
		if i < 0 {
			return badRequest("multipart/related has an unknown attachment")
		}
		a := &e.Atts[i]
		encoded, announced := a.Gzip, a.Length
		if encoded {
			announced = a.Stored
		}
		if err := q.receive(a, part, encoded); err != nil {
			return err
		}
		received := a.Length
		if encoded {
			received = a.Stored
		}
		switch {
		case received > announced:
			return badRequest("attachment longer than expected")
		case received < announced:
			return badRequest("attachment shorter than expected")
		}
	}
	if _, err := parts.NextRawPart(); !errors.Is(err, io.EOF) {
		return badRequest("multipart/related does not end with its attachments")
	}
	return nil
}

// sendMultipartRelated answers with a document and its attachments.
func (q *request) sendMultipartRelated(doc []byte, atts []store.Attachment) error {
	boundary := randomHex(16)
	q.w.Header().Set("Content-Type", `multipart/related; boundary="`+boundary+`"`)
	q.w.WriteHeader(http.StatusOK)
	if err := q.writeRelated(boundary, doc, atts); err != nil {
		return q.abortUnless(false, err)
	}
	return nil
}

func (q *request) writeRelated(boundary string, doc []byte, atts []store.Attachment) error {
	if _, err := io.WriteString(q.w, "--"+boundary+"\r\nContent-Type: application/json\r\n\r\n"+string(doc)); err != nil {
		return err
	}
	for _, a := range atts {
		header := "\r\n--" + boundary + "\r\nContent-Disposition: attachment; filename=" + string(jsontext.AppendString(nil, a.Name)) +
			"\r\nContent-Type: " + a.Type
		if a.Gzip {
			header += "\r\nContent-Encoding: gzip"
		}
		if _, err := io.WriteString(q.w, header+"\r\n\r\n"); err != nil {
			return err
		}
		if err := q.copyContent(q.w, a, false); err != nil {
			return err
		}
	}
	_, err := io.WriteString(q.w, "\r\n--"+boundary+"--")
	return err
}

// sendMultipartMixed answers open_revs: one part per revision, which is
// multipart/related itself where the revision has attachments.
func (q *request) sendMultipartMixed(revs []openRev) error {
	outer := randomHex(16)
	q.w.Header().Set("Content-Type", `multipart/mixed; boundary="`+outer+`"`)
	q.w.WriteHeader(http.StatusOK)
	if err := q.writeMixed(outer, revs); err != nil {
		return q.abortUnless(false, err)
	}
	return nil
}

func (q *request) writeMixed(outer string, revs []openRev) error {
	if _, err := io.WriteString(q.w, "--"+outer); err != nil {
		return err
	}
	for _, r := range revs {
		var err error
		switch {
		case r.doc == nil:
			_, err = io.WriteString(q.w, "\r\nContent-Type: application/json; error=\"true\"\r\n\r\n"+missingRev(r.rev))
		case len(r.atts) == 0:
			_, err = io.WriteString(q.w, "\r\nContent-Type: application/json\r\n\r\n"+string(r.doc))
		default:
			inner := randomHex(16)
			_, err = io.WriteString(q.w, "\r\nContent-Type: multipart/related; boundary=\""+inner+"\"\r\n\r\n")
			if err == nil {
				err = q.writeRelated(inner, r.doc, r.atts)
			}
		}
		if err == nil {
			_, err = io.WriteString(q.w, "\r\n--"+outer)
		}
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(q.w, "--")
	return err
}

func missingRev(rev revtree.Rev) string {
	return string(append(appendRev([]byte(`{"missing":"`), rev), `"}`...))
}
