package hosted_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestNothingReadsTheWholeQueue: the statistics of a queue say that nothing waits, until an outage fills it faster than
// they are renewed. Plans that trusted them read it from end to end for each command: 5,000 were enough for no claim to
// end within its time limit, and acks got slower with every one that waited.
func TestNothingReadsTheWholeQueue(t *testing.T) {
	const waiting, limit = 1000, 50
	for _, tt := range []struct {
		table, fill, claim string
		// settle are calls with the id and the token of a claim.
		settle []string
	}{
		{
			table: "continuity_commands",
			fill: `
				insert into continuity_commands
				  (command_id, idempotency_key, command_type, aggregate_type, aggregate_id, payload, payload_hash, epoch, status, settled_at)
				select gen_random_uuid(), $1 || n, 'order.create', 'order', $1 || n, '{}', '', 2, $1, case when $1 = 'acked' then now() end
				from generate_series(1, $2) n`,
			claim: `continuity_claim_commands('worker', $1, 60, null, null)`,
			settle: []string{
				`continuity_extend_claim($1, $2, 60)`,
				`continuity_ack_command($1, $2)`,
				`continuity_fail_command($1, $2, 'a reason', false)`,
				`continuity_snooze_command($1, $2, 1)`,
				`continuity_ack_commands(jsonb_build_array(jsonb_build_object('commandId', $1::uuid, 'claimToken', $2::bigint)))`,
			},
		},
		{
			table: "continuity_outbox",
			fill: `
				insert into continuity_outbox
				  (event_id, event_type, aggregate_type, aggregate_id, payload, payload_hash, epoch, status, settled_at)
				select gen_random_uuid(), 'order.created', 'order', $1 || n, '{}', '', 2, replace($1, 'acked', 'delivered'),
				  case when $1 = 'acked' then now() end
				from generate_series(1, $2) n`,
			claim: `continuity_claim_events('worker', $1, 60)`,
			settle: []string{
				`continuity_ack_event($1, $2)`,
				`continuity_fail_event($1, $2, 'a reason', false)`,
			},
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
			read := func() (rows int) {
				err := tx.QueryRow(t.Context(), `
					select seq_tup_read + idx_tup_fetch
					from pg_stat_xact_user_tables
					where relname = $1`, tt.table).Scan(&rows)
				if err != nil {
					t.Fatal(err)
				}
				return rows
			}
			call := func(function string, most int, args ...any) (answer []byte) {
				before := read()
				if err := tx.QueryRow(t.Context(), `select `+function, args...).Scan(&answer); err != nil {
					t.Fatalf("%s: %v", function, err)
				}
				if rows := read() - before; rows > most {
					t.Errorf("%s has read %d rows while %d wait", function, rows, waiting)
				}
				return answer
			}
			var claims []struct {
				CommandID, EventID string
				ClaimToken         int64
			}
			if err := json.Unmarshal(call(tt.claim, 10*limit, limit), &claims); err != nil || len(claims) != limit {
				t.Fatalf("%d are claimed: %v", len(claims), err)
			}
			for i, function := range tt.settle {
				call(function, 5, claims[i].CommandID+claims[i].EventID, claims[i].ClaimToken)
			}
		})
	}
}

// TestASessionKeepsItsPlan: that of a queue of a few does for a full one.
func TestASessionKeepsItsPlan(t *testing.T) {
	const full = 5000
	for _, function := range []string{
		`continuity_enqueue(gen_random_uuid(), gen_random_uuid()::text, 'order.create', 'order', 'o', '{}', null, null, null)`,
		`continuity_ack_commands(jsonb_build_array(jsonb_build_object('commandId', gen_random_uuid(), 'claimToken', 1)))`,
	} {
		t.Run(function, func(t *testing.T) {
			w := direct(t)
			w.openDrain()
			w.exec(`alter table continuity_commands set (autovacuum_enabled = false)`)
			for i := range 3 { // Of none at all, Postgres thinks more.
				w.enqueue(order(fmt.Sprint("first ", i), "first"))
			}
			w.exec(`analyze continuity_commands`)
			conn := must[*pgxpool.Conn](w)(w.pool.Acquire(t.Context()))
			defer conn.Release()
			call := func() {
				if _, err := conn.Exec(t.Context(), `select `+function); err != nil {
					t.Fatal(err)
				}
			}
			for range 6 { // From then on it is the same plan for all parameters.
				call()
			}
			w.exec(`
				insert into continuity_commands
				  (command_id, idempotency_key, command_type, aggregate_type, aggregate_id, payload, payload_hash, epoch)
				select gen_random_uuid(), n, 'order.create', 'order', n, '{}', '', 2
				from generate_series(1, $1) n`, full)
			// Of the session alone, and within one transaction: what others have read is told at times of their own.
			tx := must[pgx.Tx](w)(conn.Begin(t.Context()))
			defer func() { _ = tx.Rollback(t.Context()) }() // The test ends here.
			read := func() (rows int) {
				err := tx.QueryRow(t.Context(), `
					select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'continuity_commands'`).Scan(&rows)
				if err != nil {
					t.Fatal(err)
				}
				return rows
			}
			before := read()
			call()
			if rows := read() - before; rows > 10 {
				t.Errorf("it has read %d rows", rows)
			}
		})
	}
}

// TestStatsReadNoTable: edges ask for them every few seconds, and what is settled stays for weeks.
func TestStatsReadNoTable(t *testing.T) {
	w := direct(t)
	w.openDrain()
	w.enqueue(order("k", "o"))
	w.exec(`analyze continuity_commands, continuity_outbox`)
	tx := must[pgx.Tx](w)(w.pool.Begin(t.Context()))
	defer func() { _ = tx.Rollback(t.Context()) }() // The test ends here.
	if _, err := tx.Exec(t.Context(), `select continuity_queue_stats()`); err != nil {
		t.Fatal(err)
	}
	var read int
	err := tx.QueryRow(t.Context(), `
		select coalesce(sum(seq_scan), 0)
		from pg_stat_xact_user_tables
		where relname in ('continuity_commands', 'continuity_outbox')`).Scan(&read)
	if err != nil || read != 0 {
		t.Errorf("%d tables were read from end to end: %v", read, err)
	}
}
