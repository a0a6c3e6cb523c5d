// Package revtree holds the revisions of one document: a forest of edits in
// which every replica, given the same edits in any order, finds the same
// winner. It knows nothing of bodies or files; a node carries an opaque
// reference to whatever the store keeps for it.
package revtree

import (
	"cmp"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
)

// ErrBadRev reports text that is not "<generation>-<id>".
var ErrBadRev = errors.New("Invalid rev format") //nolint:staticcheck // The text CouchDB answers with.

// Rev is one revision. ID holds raw bytes: 16 of them stand for 32
// hexadecimal digits, any other length is the text a client chose.
type Rev struct {
	Gen int
	ID  string
}

// ParseRev reads "<generation>-<id>". An id of 32 hexadecimal digits is the
// same revision in either case; any other id is kept as it is.
func ParseRev(s string) (Rev, error) {
	gen, id, ok := strings.Cut(s, "-")
	n, err := strconv.Atoi(gen)
	if !ok || err != nil || n < 0 {
		return Rev{}, ErrBadRev
	}
	return Rev{Gen: n, ID: ParseID(id)}, nil
}

// ParseID reads the part of a revision behind the dash.
func ParseID(id string) string {
	if len(id) == 32 {
		if raw, err := hex.DecodeString(id); err == nil {
			return string(raw)
		}
	}
	return id
}

// IDString returns the part of the revision behind the dash.
func (r Rev) IDString() string {
	if len(r.ID) == 16 {
		return hex.EncodeToString([]byte(r.ID))
	}
	return r.ID
}

func (r Rev) String() string { return strconv.Itoa(r.Gen) + "-" + r.IDString() }

// Compare orders revisions by generation, then by the bytes of their ids.
func (r Rev) Compare(o Rev) int {
	return cmp.Or(cmp.Compare(r.Gen, o.Gen), cmp.Compare(r.ID, o.ID))
}
