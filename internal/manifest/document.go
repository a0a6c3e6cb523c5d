package manifest

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/couch"
)

// document is what core holds under the manifest's id, and whether the design
// document that protects it is as it should be.
type document struct {
	// leaves are the live revisions; more than one is a conflict.
	leaves     []couch.Revision
	generation int64
	// designed says that there is a design document, protected that it is the
	// right one.
	designed  bool
	protected bool
}

// read fetches manifest and design document in one request. ErrNotFound of
// couch means that core itself is absent.
func (p *Publisher) read(ctx context.Context, core string) (document, error) {
	revisions, err := p.couch.Revisions(ctx, core, []couch.Ref{{ID: contracts.ManifestID}, {ID: DesignID}}, false)
	if err != nil {
		return document{}, fmt.Errorf("read manifest of %s: %w", core, err)
	}
	var d document
	designs, same := 0, 0
	for _, r := range revisions {
		if err := r.Unanswered(); err != nil {
			return document{}, fmt.Errorf("read manifest of %s: %w", core, err)
		}
		if r.Body == nil || r.Deleted() {
			continue
		}
		if r.ID == DesignID {
			designs++
			if gjson.GetBytes(r.Body, "validate_doc_update").String() == Validation &&
				gjson.GetBytes(r.Body, "language").String() == "javascript" {
				same++
			}
			continue
		}
		d.leaves = append(d.leaves, r)
		if generation := gjson.GetBytes(r.Body, "generation"); generation.Type == gjson.Number {
			d.generation = max(d.generation, generation.Int())
		}
	}
	d.designed = designs > 0
	d.protected = designs > 0 && designs == same
	return d, nil
}

// says reports whether the document is whole, without conflict, and of this
// content.
func (d document) says(want contracts.DayManifest) bool {
	return len(d.leaves) == 1 && says(d.leaves[0].Body, want)
}

// longest splits the leaves into the one with the longest history and the
// others. What extends the longest wins over the others.
func (d document) longest() (top couch.Revision, others []couch.Revision) {
	best := 0
	for i, leaf := range d.leaves {
		if position(leaf.Rev) > position(d.leaves[best].Rev) {
			best = i
		}
	}
	for i, leaf := range d.leaves {
		if i == best {
			top = leaf
		} else {
			others = append(others, leaf)
		}
	}
	return top, others
}

// position is the number before the dash of a revision.
func position(rev string) int {
	number, _, _ := strings.Cut(rev, "-")
	n, _ := strconv.Atoi(number) // CouchDB takes no other form.
	return n
}
