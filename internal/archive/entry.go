package archive

import (
	"bytes"
	"crypto/sha256"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// The codes of blockers: why a document keeps its day from being archived whole.
const (
	codeNonTerminal = "non_terminal"
	codeCoreType    = "core_type"
	codeNoType      = "no_type"
	codeConflict    = "conflict"
)

// entry is a changed document and what the archive makes of it.
type entry struct {
	id   string
	hash [sha256.Size]byte
	// rev is the winning revision, losing the other leaves.
	rev     string
	losing  []string
	deleted bool
	// body is the winning revision exactly as CouchDB sent it; it lies in the
	// arena of the batch.
	body    []byte
	bodySHA [sha256.Size]byte

	// archived entries become rows; the others only have blockers.
	archived bool
	blockers []blocker
	// docType is a dynamic type or empty, status what the document holds.
	docType string
	status  string
	owner   daydb.Restaurant
	// day is zero as long as the day of a legacy document is not known.
	day daydb.Day
	// movedFrom is the day under which the archive has the document so far, when
	// that is another.
	movedFrom daydb.Day

	leaves      []leaf
	attachments []int64
	// refusal is why the document goes to the rejects.
	refusal error
}

// leaf is a losing leaf that is deleted.
type leaf struct {
	rev         string
	body        []byte
	sha         [sha256.Size]byte
	attachments []int64
}

type blocker struct {
	code    string
	docType string
	status  string
}

// classifier fills an entry from its body, and reports whether the archive is
// concerned with the document at all.
type classifier func(e *entry) bool

// isDesign reports whether an id is a design document's: those are ours or an
// operator's, and never archived.
func isDesign(id string) bool { return strings.HasPrefix(id, "_design/") }

// newEntry takes over a row of the feed; body must stay valid as long as the entry.
func newEntry(c *couch.Change, body []byte) entry {
	e := entry{
		id:      c.ID,
		hash:    sha256.Sum256([]byte(c.ID)),
		rev:     c.Revs[0],
		deleted: c.Deleted,
		body:    body,
		bodySHA: sha256.Sum256(body),
	}
	if len(c.Revs) > 1 {
		e.losing = append(e.losing, c.Revs[1:]...)
	}
	return e
}

// dayClassifier classifies the documents of a day database: what is finished is
// archived, every deletion is, and all else blocks the day.
func dayClassifier(day daydb.DayDB) classifier {
	return func(e *entry) bool {
		e.owner, e.day = day.Restaurant, day.BusinessDay
		code := e.readType()
		switch {
		case e.deleted:
			e.archived = true
		case code == "":
			e.archived = true
		default:
			e.blockers = append(e.blockers, blocker{code: code, docType: e.docType, status: e.status})
		}
		return true
	}
}

// readType reads type and status, and returns the code of what keeps the
// document from being finished, or nothing. Only fields of the top level count.
func (e *entry) readType() string {
	docType := gjson.GetBytes(e.body, "type")
	if docType.Type != gjson.String || docType.Str == "" {
		return codeNoType
	}
	e.docType = docType.Str
	if status := gjson.GetBytes(e.body, "status"); status.Type == gjson.String {
		e.status = status.Str
	}
	switch {
	case !contracts.IsDynamic(e.docType):
		return codeCoreType
	case !contracts.IsTerminal(e.docType, e.status):
		return codeNonTerminal
	default:
		return ""
	}
}

var attachmentsKey = []byte(`"_attachments":{`)

// hasStubs reports whether a body may name attachments; the search is for the
// many that do not.
func hasStubs(body []byte) bool { return bytes.Contains(body, attachmentsKey) }

// stub is an attachment as a document names it.
type stub struct {
	name        string
	contentType string
	digest      string
}

// stubs returns the attachments that a body names.
func stubs(body []byte) []stub {
	if !hasStubs(body) {
		return nil
	}
	var all []stub
	gjson.GetBytes(body, "_attachments").ForEach(func(name, s gjson.Result) bool {
		all = append(all, stub{
			name:        name.String(),
			contentType: s.Get("content_type").String(),
			digest:      s.Get("digest").String(),
		})
		return true
	})
	return all
}
