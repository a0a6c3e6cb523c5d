package rotation_test

import (
	"context"
	"testing"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/run"
)

// slow answers for one document of a database as a CouchDB does whose shard took
// too long: with an error within a success.
type slow struct {
	*couch.Client
	db, id string
}

func (s slow) Revisions(ctx context.Context, db string, refs []couch.Ref, history bool) ([]couch.Revision, error) {
	revisions, err := s.Client.Revisions(ctx, db, refs, history)
	for i, r := range revisions {
		if db == s.db && r.ID == s.id {
			revisions[i] = couch.Revision{Ref: couch.Ref{ID: r.ID}, Error: "timeout The request could not be processed in a reasonable amount of time."}
		}
	}
	return revisions, err
}

// TestDayThatDoesNotAnswer: a day that does not say whether it holds a document
// may hold it. Put into another day, the order would be closed there and open for
// ever in its own.
func TestDayThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, r1)
	yesterday := w.today().Add(-1)
	w.put(w.legacy, "o", order("r1", "open"))
	w.rotated(run.Scope{BusinessDay: yesterday})
	w.wantLeaves("o", w.dayDB(r1, yesterday))
	w.rotated(run.Scope{})
	late := order("r1", "closed")
	late["_rev"] = w.rev(w.legacy, "o")
	w.put(w.legacy, "o", late)

	report := &run.Report{}
	r := run.Run{Actor: "test", Report: report}
	if err := w.rotator(slow{w.couch, w.dayDB(r1, yesterday), "o"}).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	w.wantAbsent("o", w.dayDB(r1, w.today()))
	w.wantFailure(report, r1, "carry", "reasonable amount of time")
	w.rotated(run.Scope{})
	w.wantLeaves("o", w.dayDB(r1, yesterday))
	w.wantAbsent("o", w.dayDB(r1, w.today()))
}
