package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/cron"
	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg"
)

// TestProblems: an error is known however often it was wrapped, and one that is not known keeps its text to itself.
func TestProblems(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{&cron.RunningError{Cron: "archive", RunID: 7}, http.StatusConflict, "running"},
		{&cron.PausedError{Cron: "archive"}, http.StatusConflict, "paused"},
		{&cron.ScopeError{Field: "companyId", Reason: "unknown"}, http.StatusUnprocessableEntity, "scope_refused"},
		{cron.ErrStopped, http.StatusServiceUnavailable, "stopping"},
		{fence.ErrLost, http.StatusServiceUnavailable, "lease_lost"},
		{&fence.HeldError{Name: "db/x"}, http.StatusConflict, "lease_held"},
		{daydb.ErrStale, http.StatusConflict, "stale"},
		{archive.ErrNotArchived, http.StatusConflict, "not_archived"},
		{couch.ErrUnavailable, http.StatusServiceUnavailable, "couchdb_unavailable"},
		{pg.ErrUnavailable, http.StatusServiceUnavailable, "postgres_unavailable"},
		{fmt.Errorf("%w: secret", pg.ErrUnavailable), http.StatusServiceUnavailable, "postgres_unavailable"},
		{&pgconn.PgError{Code: "57P01", Message: "secret"}, http.StatusServiceUnavailable, "postgres_unavailable"},
		{fmt.Errorf("%w: %w", couch.ErrUnavailable, &net.OpError{Op: "dial", Err: errors.New("refused")}), http.StatusServiceUnavailable, "couchdb_unavailable"},
		{&net.OpError{Op: "dial", Err: errors.New("secret")}, http.StatusServiceUnavailable, "postgres_unavailable"},
		{fmt.Errorf("%w: %w", pg.ErrOutcomeUnknown, pg.ErrUnavailable), http.StatusServiceUnavailable, "outcome_unknown"},
		{fmt.Errorf("%w: secret", pg.ErrOutcomeUnknown), http.StatusServiceUnavailable, "outcome_unknown"},
		{fmt.Errorf("%w: secret", continuity.ErrUnavailable), http.StatusServiceUnavailable, "hosted_unavailable"},
		{fmt.Errorf("%w: secret", continuity.ErrOutcomeUnknown), http.StatusServiceUnavailable, "outcome_unknown"},
		{context.DeadlineExceeded, http.StatusGatewayTimeout, "timeout"},
		{&pgconn.PgError{Code: "55P03", Message: "secret"}, http.StatusServiceUnavailable, "busy"},
		{errors.New("secret"), http.StatusInternalServerError, "internal"},
	} {
		p := problemOf(fmt.Errorf("set hold: %w", fmt.Errorf("load: %w", c.err)))
		if p.Status != c.status || p.Code != c.code || p.Detail == "" || p.Title == "" || strings.Contains(p.Detail, "secret") {
			t.Errorf("%v is %+v", c.err, p)
		}
		if c.code == "running" && p.RunID != 7 {
			t.Errorf("the run in the way is %d", p.RunID)
		}
	}
}
