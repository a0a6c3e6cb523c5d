package app_test

import (
	"net/http"
	"testing"

	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestReadyWantsBothSchemas: the queue of runs is the primary's, too.
func TestReadyWantsBothSchemas(t *testing.T) {
	t.Parallel()
	opts := options(t)
	a := started(t, opts)
	if status, body := call(t, a, "GET", "/readyz", ""); status != http.StatusOK {
		t.Errorf("readyz: %d %s", status, body)
	}
	_, err := pgtest.Open(t, opts.DatabaseURL).Exec(t.Context(),
		`delete from rollingd_hosted_migrations where version_id = (select max(version_id) from rollingd_hosted_migrations)`)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := call(t, a, "GET", "/readyz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("readyz with a pending migration: %d %s", status, body)
	}
}
