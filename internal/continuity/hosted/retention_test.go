package hosted_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

// TestOldSnapshotsAreDeleted by the beginning of their keys.
func TestOldSnapshotsAreDeleted(t *testing.T) {
	eachTransport(t, func(w *world) {
		const retention = 14 * 24 * time.Hour
		for _, key := range []string{"order:old", "order:recent", "orders:acme/north", "order_:x"} {
			must[bool](w)(w.snapshots.Put(t.Context(), key, json.RawMessage(`{}`), 1))
		}
		w.exec(`update continuity_snapshots set published_at = now() - interval '15 days' where snapshot_key <> 'order:recent'`)
		for _, want := range []int{1, 0} {
			if n := must[int](w)(w.snapshots.Purge(t.Context(), "order:", retention)); n != want {
				t.Errorf("%d snapshots are purged, want %d", n, want)
			}
		}
		for _, key := range []string{"order:recent", "orders:acme/north", "order_:x"} {
			must[hosted.Snapshot](w)(w.snapshots.Read(t.Context(), key))
		}
		_, err := w.snapshots.Purge(t.Context(), "order:", retention-time.Second)
		w.wantErr(err, continuity.ErrInvalid)
		_, err = w.snapshots.Purge(t.Context(), "", retention)
		w.wantErr(err, continuity.ErrInvalid)
	})
}

// TestHeartbeatReadsNoSnapshots: there may be millions, and a heartbeat that ends
// at its time limit makes the primary look dead.
func TestHeartbeatReadsNoSnapshots(t *testing.T) {
	w := direct(t)
	w.exec(`
		insert into continuity_snapshots (snapshot_key, payload, version)
		select 'order:' || n, '{}', 1 from generate_series(1, 5000) n`)
	w.exec(`analyze continuity_snapshots`)
	tx := must[pgx.Tx](w)(w.pool.Begin(t.Context()))
	defer func() { _ = tx.Rollback(t.Context()) }() // The test ends here.
	var beat json.RawMessage
	if err := tx.QueryRow(t.Context(), `select continuity_heartbeat('primary', 'primary', 'primary', 0, 'test', null)`).Scan(&beat); err != nil {
		t.Fatal(err)
	}
	var rows int
	err := tx.QueryRow(t.Context(), `
		select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'continuity_snapshots'`).Scan(&rows)
	if err != nil {
		t.Fatal(err)
	}
	if rows > 5 {
		t.Errorf("a heartbeat has read %d snapshots", rows)
	}
}
