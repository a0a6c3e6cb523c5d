package archive_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/run"
)

// TestMonthsAhead has this month and the next before there is a document of them,
// by a run in earnest.
func TestMonthsAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const partitions = `
		select count(*)
		from pg_inherits
		where inhparent = 'archived_docs'::regclass
		  and inhrelid::regclass::text in (
		    'archived_docs_' || to_char(now(), 'YYYYMM'),
		    'archived_docs_' || to_char(now() + interval '1 month', 'YYYYMM'))`
	if err := w.Run(t.Context(), run.Run{Actor: "test", DryRun: true, Report: &run.Report{}}); err != nil {
		t.Fatal(err)
	}
	w.expect("0", partitions)
	w.run(run.Scope{})
	w.expect("2", partitions)
}

// TestMonthWhileSomebodyReads: a comparison holds the lock that a new month needs.
// The database waits for the next run, and nothing fails.
func TestMonthWhileSomebodyReads(t *testing.T) {
	t.Parallel()
	w, db := legacyWorld(t)
	w.run(run.Scope{})
	w.put(db, legacyDoc("old", "acme", "centro", `,"businessDay":"20200101"`))
	w.exec(`alter role current_user in database ` + pgx.Identifier{w.scalar(`select current_database()`)}.Sanitize() + ` set lock_timeout = '200ms'`)
	w.pool.Reset()
	err := pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `select from archived_docs_other`); err != nil {
			return err
		}
		if c := w.legacyRun().Counters(); c["busy"] != 1 {
			t.Errorf("while it is read: %v", c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := w.legacyRun().Counters(); c["documents"] != 1 {
		t.Errorf("afterwards: %v", c)
	}
}
