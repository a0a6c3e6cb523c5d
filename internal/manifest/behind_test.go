package manifest_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/manifest"
)

// A manifest that names a day of ours which the ledger does not know is from a
// later time than the ledger: it is left as it is, whatever its generation. One
// that names what does not exist, or what is not ours, is a forgery.
func TestPublishNeverGoesBackBehindCouchDB(t *testing.T) {
	t.Parallel()
	marked := func(w *world, db string) { w.create(db) }
	unmarked := func(w *world, db string) {
		if _, err := w.couch.Create(w.Context(), db); err != nil {
			w.Fatal(err)
		}
		security := couch.OpenTo("pos", uuid.New())
		security.Marker = nil
		if err := w.couch.PutSecurity(w.Context(), db, security); err != nil {
			w.Fatal(err)
		}
	}
	absent := func(*world, string) {}
	for name, tc := range map[string]struct {
		create     func(w *world, db string)
		overlay    bool
		generation int64
		refused    bool
	}{
		"a later day":                            {create: marked, generation: 1, refused: true},
		"a later day, beyond the sequence":       {create: marked, generation: 900719925474099, refused: true},
		"an overlay":                             {create: marked, overlay: true, generation: 900719925474099, refused: true},
		"a day that does not exist":              {create: absent, generation: 900719925474099},
		"a day that is not ours":                 {create: unmarked, generation: 900719925474099},
		"an old generation of what is not there": {create: absent, generation: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustPublish(w.lease())
			next := w.today.Add(1)
			tc.create(w, w.day(next))
			fields := w.stored()
			fields["generation"] = tc.generation
			if tc.overlay {
				fields["overlays"] = []any{map[string]any{"businessDay": next.String(), "dbName": "daily_" + next.String()}}
			} else {
				fields["currentBusinessDay"], fields["currentDayDb"] = next.String(), "daily_"+next.String()
			}
			delete(fields, "_rev")
			w.raw(fields)
			before := fmt.Sprint(w.stored())

			_, err := w.publish(w.couch, w.lease())
			if !tc.refused {
				if err != nil {
					t.Fatal(err)
				}
				w.check()
				return
			}
			if !errors.Is(err, manifest.ErrLedgerBehind) {
				t.Errorf("published: %v", err)
			}
			if after := fmt.Sprint(w.stored()); after != before {
				t.Errorf("the manifest became %s", after)
			}
		})
	}
}
