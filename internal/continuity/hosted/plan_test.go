package hosted_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestClaimDoesNotReadTheWholeQueue: the statistics of a queue say that nothing waits, until an outage fills it faster
// than they are renewed. A claim that trusted them read the queue once for each command in it, and 5,000 were enough for
// no claim to end within its time limit.
func TestClaimDoesNotReadTheWholeQueue(t *testing.T) {
	const waiting, limit = 1000, 50
	for _, tt := range []struct {
		table, fill, claim string
	}{
		{
			table: "continuity_commands",
			fill: `
				insert into continuity_commands
				  (command_id, idempotency_key, command_type, aggregate_type, aggregate_id, payload, payload_hash, epoch, status, settled_at)
				select gen_random_uuid(), $1 || n, 'order.create', 'order', $1 || n, '{}', '', 2, $1, case when $1 = 'acked' then now() end
				from generate_series(1, $2) n`,
			claim: `select continuity_claim_commands('worker', $1, 60, null, null)`,
		},
		{
			table: "continuity_outbox",
			fill: `
				insert into continuity_outbox
				  (event_id, event_type, aggregate_type, aggregate_id, payload, payload_hash, epoch, status, settled_at)
				select gen_random_uuid(), 'order.created', 'order', $1 || n, '{}', '', 2, replace($1, 'acked', 'delivered'),
				  case when $1 = 'acked' then now() end
				from generate_series(1, $2) n`,
			claim: `select continuity_claim_events('worker', $1, 60)`,
		},
	} {
		t.Run(tt.table, func(t *testing.T) {
			w := direct(t)
			w.openDrain()
			w.exec(`alter table ` + tt.table + ` set (autovacuum_enabled = false)`)
			w.exec(tt.fill, "acked", 5*waiting)
			w.exec(`analyze ` + tt.table)
			w.exec(tt.fill, "pending", waiting)

			tx := must[pgx.Tx](w)(w.pool.Begin(t.Context()))
			defer func() { _ = tx.Rollback(t.Context()) }() // The test ends here.
			var claimed, before, after int
			read := `select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = $1`
			err := errors.Join(
				tx.QueryRow(t.Context(), read, tt.table).Scan(&before),
				tx.QueryRow(t.Context(), `select jsonb_array_length((`+tt.claim+`))`, limit).Scan(&claimed),
				tx.QueryRow(t.Context(), read, tt.table).Scan(&after))
			if err != nil {
				t.Fatal(err)
			}
			if claimed != limit || after-before > 10*limit {
				t.Errorf("%d rows were read to claim %d of %d", after-before, claimed, waiting)
			}
		})
	}
}
