package pg_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// TestCommitWhoseAnswerIsLost cuts the connection at the COMMIT, before or after the server has carried it out. Nobody
// on this side can tell which, and the error has to say so.
func TestCommitWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault pgtest.CommitFault
		rows  int
	}{
		"carried out":   {fault: pgtest.CommitUnanswered, rows: 1},
		"never arrived": {fault: pgtest.CommitFails, rows: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := oneConnection(t)
			proxy, through := pgtest.NewProxy(t, direct.Config().ConnString())
			pool := pgtest.Open(t, through)
			proxy.OnCommit(func(int64) pgtest.CommitFault { return c.fault })
			err := pg.WithTx(t.Context(), pool, func(tx pgx.Tx) error { return insert(t.Context(), tx) })
			if !errors.Is(err, pg.ErrOutcomeUnknown) || !errors.Is(err, pg.ErrUnavailable) {
				t.Errorf("WithTx: %v, want ErrOutcomeUnknown and ErrUnavailable", err)
			}
			if n := count(t, direct); n != c.rows {
				t.Errorf("%d rows, want %d", n, c.rows)
			}
		})
	}
}
