package couch

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// parse reads a row by the fixed order in which CouchDB writes its fields:
//
//	{"seq":"…"|null,"id":"…","changes":[{"rev":"…"},…],"deleted":true,"doc":{…}}
//
// encoding/json would visit every byte of the document three times, and refuses
// nesting beyond 10,000 levels, which CouchDB takes.
func (ch *Change) parse(line []byte) error {
	ch.Seq, ch.Deleted, ch.Doc, ch.Revs = "", false, nil, ch.Revs[:0]
	r := rowReader{rest: line}

	r.expect(`{"seq":`)
	if !r.take(`null`) {
		ch.Seq = Seq(r.str())
	}
	r.expect(`,"id":`)
	ch.ID = r.str()
	r.expect(`,"changes":[`)
	for !r.failed && !r.take(`]`) {
		r.expect(`{"rev":`)
		ch.Revs = append(ch.Revs, r.str())
		r.expect(`}`)
		r.take(`,`)
	}
	if r.take(`,"deleted":true`) {
		ch.Deleted = true
	}
	if r.take(`,"doc":`) {
		ch.Doc = bytes.TrimSuffix(r.rest, []byte("}"))
		if len(ch.Doc) == len(r.rest) || len(ch.Doc) == 0 {
			r.failed = true
		}
		if bytes.Equal(ch.Doc, []byte("null")) {
			ch.Doc = nil
		}
	} else {
		r.expect(`}`)
	}
	if r.failed || len(ch.Revs) == 0 {
		return fmt.Errorf("%w: a row is not of CouchDB's form", ErrFeedBroken)
	}
	return nil
}

// rowReader consumes a row from its start; once failed it takes nothing more.
type rowReader struct {
	rest   []byte
	failed bool
}

// take consumes a literal if it comes next.
func (r *rowReader) take(literal string) bool {
	if r.failed || len(r.rest) < len(literal) || string(r.rest[:len(literal)]) != literal {
		return false
	}
	r.rest = r.rest[len(literal):]
	return true
}

func (r *rowReader) expect(literal string) {
	if !r.take(literal) {
		r.failed = true
	}
}

// str consumes a JSON string and returns it decoded.
func (r *rowReader) str() string {
	if !r.take(`"`) {
		r.failed = true
		return ""
	}
	for i := 0; i < len(r.rest); i++ {
		switch r.rest[i] {
		case '"':
			s := string(r.rest[:i])
			r.rest = r.rest[i+1:]
			return s
		case '\\':
			return r.escapedStr(i)
		}
	}
	r.failed = true
	return ""
}

// escapedStr consumes a string whose first backslash is at i.
func (r *rowReader) escapedStr(i int) string {
	for ; i < len(r.rest); i++ {
		switch r.rest[i] {
		case '\\':
			i++
		case '"':
			quoted := append([]byte{'"'}, r.rest[:i+1]...)
			r.rest = r.rest[i+1:]
			var s string
			if err := json.Unmarshal(quoted, &s); err != nil {
				r.failed = true
			}
			return s
		}
	}
	r.failed = true
	return ""
}
