package app_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestReadyWantsBothSchemas: the queue of runs is the primary's, too.
func TestReadyWantsBothSchemas(t *testing.T) {
	t.Parallel()
	opts := options(t)
	a, err := app.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error("stop: ", err)
		}
	})
	if status, body := call(t, a, "GET", "/readyz", ""); status != http.StatusOK {
		t.Errorf("readyz: %d %s", status, body)
	}
	_, err = pgtest.Open(t, opts.DatabaseURL).Exec(t.Context(),
		`delete from rollingd_hosted_migrations where version_id = (select max(version_id) from rollingd_hosted_migrations)`)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := call(t, a, "GET", "/readyz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("readyz with a pending migration: %d %s", status, body)
	}
}
