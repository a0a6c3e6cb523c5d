package couch_test

import (
	"net/url"
	"testing"

	"github.com/rollingd/rollingd/test/nodetest"
)

// TestPouchDB replicates with the real client, PouchDB 9.
func TestPouchDB(t *testing.T) {
	forEachTarget(t, func(t *testing.T, c target) {
		u, err := url.Parse(c.base)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(c.user, c.password)
		nodetest.Run(t, "../../../test/pouchdb", []string{"COUCH_URL=" + u.String()})
	})
}
