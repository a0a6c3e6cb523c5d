package rotation_test

import (
	"context"
	"slices"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/run"
)

// forgetful leaves one document out of what _bulk_get of the legacy database says.
type forgetful struct {
	*couch.Client
	legacy, id string
}

func (f forgetful) Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error) {
	revisions, err := f.Client.Revisions(ctx, db, refs, history)
	if db == f.legacy && history {
		revisions = slices.DeleteFunc(revisions, func(r couch.Revision) bool { return r.ID == f.id })
	}
	return revisions, err
}

// A document that CouchDB passes over in its answer has not arrived: it is
// reported, and copied by the next run.
func TestUnansweredDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	w.put(w.legacy, "a", product("r1"))
	w.put(w.legacy, "b", product("r1"))
	report := &run.Report{}
	err := w.rotator(forgetful{w.couch, w.legacy, "a"}).Run(t.Context(), run.Run{Actor: "test", Report: report})
	if err != nil {
		t.Fatal(err)
	}
	w.wantFailure(report, r1, "warm", `document "a"`)
	w.wantLeaves("b", w.core(r1))
	if w.flags("acme").DeviceRouted {
		t.Error("routed without a document of the catalogue")
	}
	w.rotated(run.Scope{})
	w.wantLeaves("a", w.core(r1))
}
