package couch

import (
	"compress/gzip"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"hash"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// attachment serves /{db}/{id}/{name}.
func (q *request) attachment(id, name string) error {
	if err := checkDocID(id); err != nil {
		return err
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.getAttachment(id, name)
	case http.MethodPut:
		return q.putAttachment(id, name)
	case http.MethodDelete:
		return q.deleteAttachment(id, name)
	}
	return methodNotAllowed("DELETE,GET,HEAD,PUT")
}

func (q *request) getAttachment(id, name string) error {
	var a store.Attachment
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		r, err := tx.Record(id)
		if err != nil {
			return err
		}
		i, err := q.chooseRev(r)
		if err != nil {
			return err
		}
		doc, err := tx.Load(r, i)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(doc.Atts, func(a store.Attachment) bool { return a.Name == name })
		if n < 0 {
			return errMissingAttach
		}
		a = doc.Atts[n]
		return nil
	})
	if err != nil {
		return err
	}
	h := q.w.Header()
	etag := `"` + base64.StdEncoding.EncodeToString(a.Digest[:]) + `"`
	h.Set("ETag", etag)
	if q.r.Header.Get("If-None-Match") == etag {
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", a.Type)
	h.Set("Cache-Control", "must-revalidate")
	h.Set("Accept-Ranges", "bytes")
	length, decode := a.Length, false
	if a.Gzip {
		h.Set("Accept-Ranges", "none")
		// Content that came compressed has no known decoded length.
		if a.Length == a.Stored {
			length = -1
		}
		if strings.Contains(q.r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			length = a.Stored
		} else {
			decode = true
		}
	}
	if length >= 0 {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	q.w.WriteHeader(http.StatusOK)
	if q.r.Method == http.MethodHead {
		return nil
	}
	if err := q.copyContent(q.w, a, decode); err != nil {
		return q.abortUnless(false, err)
	}
	return nil
}

// copyContent sends an attachment chunk by chunk, so that neither memory nor
// a transaction is held while the client reads.
func (q *request) copyContent(w io.Writer, a store.Attachment, decode bool) error {
	content := &contentReader{q: q, a: a}
	if !decode {
		_, err := io.Copy(w, content)
		return err
	}
	z, err := gzip.NewReader(content)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, z)
	return err
}

type contentReader struct {
	q    *request
	a    store.Attachment
	next int
	rest []byte
}

func (c *contentReader) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		err := c.q.dir.View(c.q.db, func(tx *store.Tx) error {
			chunk, err := tx.Chunk(c.a, c.next)
			c.rest = slices.Clone(chunk)
			return err
		})
		if err != nil {
			return 0, err
		}
		if len(c.rest) == 0 {
			return 0, io.EOF
		}
		c.next++
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// putAttachment adds one attachment to a document, which it creates if there
// is none. The edit is judged before the content is received, and not again
// afterwards: what began before a validation function came still lands.
func (q *request) putAttachment(id, name string) error {
	e, err := q.attachmentEdit(id, name)
	if err != nil {
		return err
	}
	a := store.AttachmentEdit{}
	a.Name, a.Type = name, q.r.Header.Get("Content-Type")
	if a.Type == "" {
		a.Type = "application/octet-stream"
	}
	if strings.HasPrefix(name, "_") {
		return badRequest("Attachment name '" + name + "' starts with prohibited character '_'")
	}
	err = q.dir.View(q.db, func(tx *store.Tx) error { return tx.Precheck(e, q.check(tx)) })
	if err != nil {
		return err
	}
	encoded := q.r.Header.Get("Content-Encoding") == "gzip"
	if err := q.receive(&a, q.r.Body, encoded); err != nil {
		return err
	}
	e.Atts = append([]store.AttachmentEdit{a}, e.Atts...)
	return q.writeUnchecked(e)
}

func (q *request) deleteAttachment(id, name string) error {
	e, err := q.attachmentEdit(id, name)
	if err != nil {
		return err
	}
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		r, err := tx.Record(id)
		if err != nil {
			return err
		}
		i, err := q.chooseRev(r)
		if err != nil {
			return err
		}
		doc, err := tx.Load(r, i)
		if err == nil && !slices.ContainsFunc(doc.Atts, func(a store.Attachment) bool { return a.Name == name }) {
			err = errMissingAttach
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(e.Revs) == 0 {
		return errConflict
	}
	var rev revtree.Rev
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		rev, err = tx.Put(e, q.check(tx))
		return err
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, appendWritten(nil, id, rev))
}

var errMissingRev = &httpError{http.StatusConflict, "not_found", "missing_rev"}

// attachmentEdit is the edit that leaves a document as it is, but without the
// named attachment.
func (q *request) attachmentEdit(id, name string) (*store.Edit, error) {
	e := &store.Edit{ID: id}
	if err := q.takeRevFromRequest(e); err != nil {
		return nil, err
	}
	if len(e.Revs) == 0 {
		return e, nil
	}
	return e, q.dir.View(q.db, func(tx *store.Tx) error {
		r, err := tx.Record(id)
		if errors.Is(err, store.ErrMissing) {
			return errMissingRev
		}
		if err != nil {
			return err
		}
		i := r.Tree.Find(e.Revs[0])
		if i < 0 {
			return errMissingRev
		}
		doc, err := tx.Load(r, i)
		if err != nil {
			return err
		}
		e.Body = slices.Clone(doc.Body)
		for _, a := range doc.Atts {
			if a.Name != name {
				e.Atts = append(e.Atts, store.AttachmentEdit{Attachment: a, Stub: true})
			}
		}
		return nil
	})
}

// writeUnchecked stores an edit that was judged already.
func (q *request) writeUnchecked(e *store.Edit) error {
	var rev revtree.Rev
	err := q.dir.Update(q.db, func(tx *store.Tx) (err error) {
		rev, err = tx.Put(e, nil)
		return err
	})
	if err != nil {
		return err
	}
	return q.written(e, rev)
}

// receive stores content as it arrives. Compressible types are compressed on
// the way, and encoded content is kept as it is.
func (q *request) receive(a *store.AttachmentEdit, body io.Reader, encoded bool) error {
	content, err := q.dir.WriteContent(q.db)
	if err != nil {
		return err
	}
	sink := &digestingWriter{w: content, md5: md5.New()}
	a.Gzip = encoded || isCompressible(a.Type)
	switch {
	case encoded:
		_, err = io.Copy(sink, body)
	case a.Gzip:
		z, _ := gzip.NewWriterLevel(sink, compressionLevel) // The level is valid.
		if a.Length, err = io.Copy(z, body); err == nil {
			err = z.Close()
		}
	default:
		a.Length, err = io.Copy(sink, body)
	}
	if err != nil {
		return err
	}
	if err := content.Flush(); err != nil {
		return err
	}
	a.Content, a.Stored, a.Digest = content.Ref(), sink.n, [16]byte(sink.md5.Sum(nil))
	if encoded && a.Length == 0 {
		a.Length = a.Stored // As CouchDB does, which never decodes it.
	}
	return nil
}

// digestingWriter counts and hashes what it passes on.
type digestingWriter struct {
	w   io.Writer
	md5 hash.Hash
	n   int64
}

func (d *digestingWriter) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	d.md5.Write(p[:n])
	d.n += int64(n)
	return n, err
}
