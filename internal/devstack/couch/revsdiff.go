package couch

import (
	"net/http"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/revtree"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// revsDiff tells which of the given revisions the database lacks.
func (q *request) revsDiff() error {
	out, err := q.diffRevs(func(out []byte, id []byte, missing, ancestors []revtree.Rev) []byte {
		out = append(append(out, id...), `:{"missing":`...)
		out = appendRevs(out, missing)
		if len(ancestors) > 0 {
			out = append(out, `,"possible_ancestors":`...)
			out = appendRevs(out, ancestors)
		}
		return append(out, '}')
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, out)
}

func (q *request) missingRevs() error {
	out, err := q.diffRevs(func(out []byte, id []byte, missing, _ []revtree.Rev) []byte {
		return appendRevs(append(append(out, id...), ':'), missing)
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusOK, append(append([]byte(`{"missing_revs":`), out...), '}'))
}

// diffRevs makes an object with a member, written by show, for each document
// of which revisions are missing. Possible ancestors are the leaves of a lower
// generation than the highest missing one.
func (q *request) diffRevs(show func(out, id []byte, missing, ancestors []revtree.Rev) []byte) ([]byte, error) {
	asked, err := q.readJSONObject()
	if err != nil {
		return nil, err
	}
	out := []byte("{")
	err = q.dir.View(q.db, func(tx *store.Tx) error {
		for m := range jsontext.Members(asked) {
			if !isStringArray(m.Value) {
				return badRequest("revisions must be a list of strings")
			}
			revs, err := parseRevArray(string(m.Value))
			if err != nil {
				return err
			}
			missing, ancestors, err := missingOf(tx, jsontext.Unquote(m.Key), revs)
			if err != nil {
				return err
			}
			if len(missing) == 0 {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = show(out, m.Key, missing, ancestors)
		}
		return nil
	})
	return append(out, '}'), err
}

func missingOf(tx *store.Tx, id string, revs []revtree.Rev) (missing, ancestors []revtree.Rev, err error) {
	r, err := tx.Record(id)
	if err != nil {
		if refusal, _ := asHTTPError(err); refusal == errMissing {
			return revs, nil, nil
		}
		return nil, nil, err
	}
	highest := 0
	for _, rev := range revs {
		if r.Tree.Find(rev) < 0 {
			missing = append(missing, rev)
			highest = max(highest, rev.Gen)
		}
	}
	for _, i := range r.Tree.Leaves() {
		if r.Tree[i].Rev.Gen < highest {
			ancestors = append(ancestors, r.Tree[i].Rev)
		}
	}
	return missing, ancestors, nil
}

func appendRevs(dst []byte, revs []revtree.Rev) []byte {
	dst = append(dst, '[')
	for i, rev := range revs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(appendRev(dst, rev), '"')
	}
	return append(dst, ']')
}
