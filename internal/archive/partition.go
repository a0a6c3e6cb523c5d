package archive

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
)

// Days outside these years lie in archived_docs_other: a wrong clock or a typing
// error must not make a partition for itself.
const (
	firstPartitionedMonth = "200001"
	lastPartitionedMonth  = "209912"
)

// monthOf returns YYYYMM of a day.
func monthOf(day daydb.Day) string { return day.String()[:len("YYYYMM")] }

// ensureMonths makes sure that there is a partition for each of the days.
func (a *Archiver) ensureMonths(ctx context.Context, entries []*entry) error {
	var last daydb.Day
	for _, e := range entries {
		if e.day == last {
			continue
		}
		last = e.day
		month := monthOf(e.day)
		if _, there := a.months.Load(month); there || month < firstPartitionedMonth || month > lastPartitionedMonth {
			continue
		}
		if err := a.createMonth(ctx, month); err != nil {
			return fmt.Errorf("partition %s: %w", month, err)
		}
		a.months.Store(month, struct{}{})
	}
	return nil
}

// monthsAhead makes sure of this month and the next before there are documents of
// them: a new month needs a lock on archived_docs_other for a moment, for which a
// comparison that runs may let it wait in vain. A failure is no more than a delay,
// since whoever has such documents tries again.
func (a *Archiver) monthsAhead(ctx context.Context) {
	var months []string
	err := a.pool.QueryRow(ctx, `
		select array[to_char(now(), 'YYYYMM'), to_char(now() + interval '1 month', 'YYYYMM')]`).Scan(&months)
	for _, month := range months {
		if _, there := a.months.Load(month); there {
			continue
		}
		if err = a.createMonth(ctx, month); err != nil {
			break
		}
		a.months.Store(month, struct{}{})
	}
	if err != nil {
		a.log.WarnContext(ctx, "partitions were not made ahead", "error", err)
	}
}

// lockNotAvailable is Postgres' verdict when a lock was waited for in vain.
const lockNotAvailable = "55P03"

// createMonth creates a partition unless it is there. One at a time, so that two
// replicas do not both try. The table is made on its own and then attached:
// "partition of" would shut out everybody who reads or writes any month.
func (a *Archiver) createMonth(ctx context.Context, month string) error {
	table := "archived_docs_" + month
	return pg.WithTx(ctx, a.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('partitions of archived_docs'))`); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, `select to_regclass($1) is not null`, table).Scan(&there); err != nil || there {
			return err
		}
		_, err := tx.Exec(ctx, fmt.Sprintf(`
			create table %[1]s (like archived_docs including defaults including constraints);
			alter table archived_docs attach partition %[1]s
			  for values from ('%[2]s01') to ((date '%[2]s01' + interval '1 month')::date)`, table, month))
		return err
	})
}
