package couch

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// ignoredMembers are special members that a client may send back and that
// mean nothing in an edit.
var ignoredMembers = map[string]bool{
	"_revs_info": true, "_local_seq": true, "_conflicts": true, "_deleted_conflicts": true,
	"_replication_id": true, "_replication_state": true, "_replication_state_time": true,
	"_replication_state_reason": true, "_replication_stats": true,
}

// parseDoc splits a document in normal form into an edit. The id is "" if the
// document has none; Revs is the history from _revisions, else the one
// revision of _rev, else empty. Attachments that follow in a multipart body
// are returned by name, in the order in which they follow.
func parseDoc(doc []byte) (e *store.Edit, follows []string, err error) {
	if !jsontext.IsObject(doc) {
		return nil, nil, badRequest("Document must be a JSON object")
	}
	e = &store.Edit{}
	hasHistory := false
	body := make([]byte, 0, len(doc))
	for m := range jsontext.Members(doc) {
		if m.Key[1] != '_' {
			body = appendMember(body, m)
			continue
		}
		switch name := jsontext.Unquote(m.Key); {
		case name == "_id":
			if !jsontext.IsString(m.Value) {
				return nil, nil, illegalDocID("Document id must be a string")
			}
			e.ID = jsontext.Unquote(m.Value)
			err = checkDocID(e.ID)
		case name == "_rev":
			if !hasHistory {
				e.Revs, err = parseRevMember(m.Value)
			}
		case name == "_revisions":
			hasHistory = true
			e.Revs, err = parseRevisions(m.Value)
		case name == "_deleted":
			e.Deleted = string(m.Value) == "true"
		case name == "_attachments":
			follows, err = parseAttachments(e, m.Value)
		case ignoredMembers[name]:
		default:
			err = docValidation("Bad special document member: " + name)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	e.Body = body
	return e, follows, nil
}

func appendMember(dst []byte, m jsontext.Member) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, m.Key...)
	dst = append(dst, ':')
	return append(dst, m.Value...)
}

// asObject puts the braces around the members of a body.
func asObject(members []byte) []byte {
	out := make([]byte, 0, len(members)+2)
	return append(append(append(out, '{'), members...), '}')
}

// checkDocID refuses ids that no document may have.
func checkDocID(id string) error {
	switch {
	case id == "":
		return illegalDocID("Document id must not be empty")
	case id[0] != '_':
		return nil
	case len(id) > len(localPrefix) && strings.HasPrefix(id, localPrefix), len(id) > len(store.DesignPrefix) && strings.HasPrefix(id, store.DesignPrefix):
		return nil
	}
	return illegalDocID("Only reserved document ids may start with underscore.")
}

func parseRevMember(value []byte) ([]revtree.Rev, error) {
	if !jsontext.IsString(value) {
		return nil, errInvalidRevsPath
	}
	rev, err := revtree.ParseRev(jsontext.Unquote(value))
	return []revtree.Rev{rev}, err
}

func parseRevisions(value []byte) ([]revtree.Rev, error) {
	start, err := strconv.Atoi(string(jsontext.Get(value, "start")))
	if err != nil {
		return nil, docValidation("_revisions.start isn't an integer.")
	}
	ids := jsontext.Get(value, "ids")
	if !jsontext.IsArray(ids) {
		return nil, docValidation("_revisions.ids isn't a array.")
	}
	var revs []revtree.Rev
	for id := range jsontext.Elements(ids) {
		if !jsontext.IsString(id) {
			return nil, docValidation("RevId isn't a string")
		}
		revs = append(revs, revtree.Rev{Gen: start - len(revs), ID: revtree.ParseID(jsontext.Unquote(id))})
	}
	// More ids than generations make no sense; CouchDB takes them.
	return revs[:min(len(revs), max(start, 0))], nil
}

// attachmentJSON is one member of _attachments.
type attachmentJSON struct {
	contentType, encoding string
	stub, follows         bool
	data                  []byte // string token, nil if absent
	revPos                int
	length, stored        int64
}

func parseAttachments(e *store.Edit, value []byte) (follows []string, err error) {
	if !jsontext.IsObject(value) {
		return nil, docValidation("Bad special document member: _attachments")
	}
	for m := range jsontext.Members(value) {
		name := jsontext.Unquote(m.Key)
		if strings.HasPrefix(name, "_") || name == "" {
			return nil, badRequest("Attachment name '" + name + "' starts with prohibited character '_'")
		}
		if !jsontext.IsObject(m.Value) {
			return nil, docValidation("Attachment " + name + " must be a JSON object")
		}
		a := parseAttachment(m.Value)
		edit := store.AttachmentEdit{Stub: a.stub}
		edit.Name, edit.Type, edit.RevPos = name, a.contentType, a.revPos
		switch {
		case a.stub:
		case a.follows:
			follows = append(follows, name)
			edit.Gzip, edit.Length, edit.Stored = a.encoding == "gzip", a.length, a.stored
		case a.data == nil:
			return nil, badRequest("Invalid attachment data for " + name)
		default:
			data, err := base64.StdEncoding.DecodeString(jsontext.Unquote(a.data))
			if err != nil {
				return nil, badRequest("Invalid attachment data for " + name)
			}
			if err := setContent(&edit, data, a.encoding == "gzip"); err != nil {
				return nil, err
			}
		}
		e.Atts = append(e.Atts, edit)
	}
	return follows, nil
}

func parseAttachment(value []byte) attachmentJSON {
	a := attachmentJSON{contentType: "application/octet-stream"}
	for m := range jsontext.Members(value) {
		switch jsontext.Unquote(m.Key) {
		case "content_type":
			if jsontext.IsString(m.Value) {
				a.contentType = jsontext.Unquote(m.Value)
			}
		case "encoding":
			if jsontext.IsString(m.Value) {
				a.encoding = jsontext.Unquote(m.Value)
			}
		case "stub":
			a.stub = string(m.Value) == "true"
		case "follows":
			a.follows = string(m.Value) == "true"
		case "data":
			if jsontext.IsString(m.Value) {
				a.data = m.Value
			}
		case "revpos":
			a.revPos, _ = strconv.Atoi(string(m.Value))
		case "length":
			a.length, _ = strconv.ParseInt(string(m.Value), 10, 64)
		case "encoded_length":
			a.stored, _ = strconv.ParseInt(string(m.Value), 10, 64)
		}
	}
	return a
}

// compressibleTypes is CouchDB's default list.
var compressibleTypes = []string{"text/", "application/javascript", "application/json", "application/xml"}

func isCompressible(contentType string) bool {
	for _, prefix := range compressibleTypes {
		if strings.HasPrefix(contentType, prefix) {
			return true
		}
	}
	return false
}

// setContent puts whole content into an edit in its stored form: compressible
// types are compressed, and the digest is of what is stored.
func setContent(a *store.AttachmentEdit, data []byte, encoded bool) error {
	a.Length = int64(len(data))
	switch {
	case encoded:
		a.Gzip = true // Its decoded length stays unknown.
	case isCompressible(a.Type):
		var compressed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&compressed, compressionLevel) // The level is valid.
		_, err := z.Write(data)
		if err := errors.Join(err, z.Close()); err != nil {
			return err
		}
		data, a.Gzip = compressed.Bytes(), true
	}
	a.Data, a.Stored, a.Digest = data, int64(len(data)), md5.Sum(data)
	if a.Data == nil {
		a.Data = []byte{}
	}
	return nil
}

const compressionLevel = 8

// checkSize refuses documents whose body is longer than CouchDB's limit.
func (s *Server) checkSize(e *store.Edit) error {
	if len(e.Body)+2 > s.config.number("couchdb", "max_document_size", 8_000_000) {
		return &httpError{http.StatusRequestEntityTooLarge, "document_too_large", e.ID}
	}
	return nil
}
