package hosted_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	postgresttest "github.com/rollingd/rollingd/test/postgrest"
)

// world is a hosted database of its own, the clients over one transport, and a pool of its owner's, by which a test puts
// rows into states that would take hours.
type world struct {
	*testing.T
	pool      *pgxpool.Pool
	dsn       string
	transport hosted.Transport
	queue     *hosted.Queue
	fence     *hosted.Fence
	outbox    *hosted.Outbox
	snapshots *hosted.Snapshots
	nodes     *hosted.Nodes
}

// eachTransport runs the test over every transport, side by side.
func eachTransport(t *testing.T, test func(w *world)) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, dsn string, pool *pgxpool.Pool) hosted.Transport{
		"postgres":  openDirect,
		"pgbouncer": openPooled,
		"postgrest": openPostgREST,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := hostedDSN(t)
			pool := pgtest.Open(t, dsn)
			test(newWorld(t, dsn, pool, open(t, dsn, pool)))
		})
	}
}

// direct is a world over the plain transport, for what does not depend on it.
func direct(t *testing.T) *world {
	t.Parallel()
	dsn := hostedDSN(t)
	pool := pgtest.Open(t, dsn)
	return newWorld(t, dsn, pool, hosted.NewPostgres(pool))
}

func newWorld(t *testing.T, dsn string, pool *pgxpool.Pool, transport hosted.Transport) *world {
	return &world{
		T:         t,
		dsn:       dsn,
		pool:      pool,
		transport: transport,
		queue:     hosted.NewQueue(transport),
		fence:     hosted.NewFence(transport),
		outbox:    hosted.NewOutbox(transport),
		snapshots: hosted.NewSnapshots(transport),
		nodes:     hosted.NewNodes(transport),
	}
}

func openDirect(_ *testing.T, _ string, pool *pgxpool.Pool) hosted.Transport {
	return hosted.NewPostgres(pool)
}

func openPooled(t *testing.T, dsn string, _ *pgxpool.Pool) hosted.Transport {
	pool, err := pg.Open(t.Context(), pooledDSN(t, dsn), pg.Options{TransactionPooler: true, MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return hosted.NewPostgres(pool)
}

func openPostgREST(t *testing.T, _ string, pool *pgxpool.Pool) hosted.Transport {
	server := httptest.NewServer(postgresttest.New(pool))
	t.Cleanup(server.Close)
	transport, err := hosted.NewPostgREST(server.URL, postgresttest.SecretKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.Close)
	return transport
}

var createRoles sync.Once

// hostedDSN is a migrated database in a cluster that has Supabase's roles.
func hostedDSN(t *testing.T) string {
	t.Helper()
	dsn := pgtest.HostedDSN(t)
	createRoles.Do(func() { ensureRoles(t, dsn) })
	// The copy is of a template that may be older than the roles.
	execOn(t, dsn, `select public.continuity_lock_down()`)
	return dsn
}

// ensureRoles makes the roles of a cluster as Supabase does.
func ensureRoles(t *testing.T, dsn string) {
	t.Helper()
	for _, sql := range []string{
		`create role anon nologin noinherit`,
		`create role authenticated nologin noinherit`,
		`create role service_role nologin noinherit bypassrls`,
	} {
		execOn(t, dsn, `
			do $$ begin
			  `+sql+`;
			exception when duplicate_object or unique_violation then null;
			end $$`)
	}
}

func execOn(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// exec runs SQL as the owner.
func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

// scan reads one value as the owner.
func scan[T any](w *world, sql string, args ...any) T {
	w.Helper()
	var value T
	if err := w.pool.QueryRow(w.Context(), sql, args...).Scan(&value); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return value
}

// must fails the test on an error.
func must[T any](w *world) func(T, error) T {
	return func(value T, err error) T {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
		return value
	}
}

// wantErr fails the test unless the error is the expected one.
func (w *world) wantErr(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("the error is %v, want %v", err, want)
	}
}

// wantStale fails the test unless the error is a StaleEpochError with that epoch.
func (w *world) wantStale(err error, current continuity.Epoch) {
	w.Helper()
	stale := (*continuity.StaleEpochError)(nil)
	if !errors.As(err, &stale) || stale.Current != current {
		w.Fatalf("the error is %v, want the epoch %d", err, current)
	}
}

// openQueue brings the fence of a new database to QUEUE(2).
func (w *world) openQueue() {
	w.Helper()
	if state := must[hosted.FenceState](w)(w.fence.Open(w.Context(), 1, "test", "edge-1")); state.Mode != continuity.Queue || state.Epoch != 2 {
		w.Fatalf("after Open the fence is %+v", state)
	}
}

// openDrain brings the fence of a new database to CATCHUP(2) with term 1.
func (w *world) openDrain() {
	w.Helper()
	w.openQueue()
	must[hosted.FenceState](w)(w.fence.BeginCatchup(w.Context(), 2, 1))
}

// order is a command for an order.
func order(key, aggregate string) continuity.Command {
	return continuity.Command{
		CommandID:      uuid.New(),
		IdempotencyKey: key,
		CommandType:    "order.create",
		AggregateType:  "order",
		AggregateID:    aggregate,
		Payload:        json.RawMessage(`{"key": "` + key + `"}`),
	}
}

func (w *world) enqueue(c continuity.Command) continuity.Receipt {
	w.Helper()
	return must[continuity.Receipt](w)(w.queue.Enqueue(w.Context(), c, 0))
}

func (w *world) claim(limit int) []continuity.Claim {
	w.Helper()
	return must[[]continuity.Claim](w)(w.queue.Claim(w.Context(), hosted.ClaimOptions{Worker: "worker", Limit: limit, Lease: time.Minute}))
}

// claimOne claims the only command that is to be had.
func (w *world) claimOne() continuity.Claim {
	w.Helper()
	claims := w.claim(100)
	if len(claims) != 1 {
		w.Fatalf("%d commands are claimed, want 1: %+v", len(claims), claims)
	}
	return claims[0]
}

func (w *world) ack(c continuity.Claim) {
	w.Helper()
	if err := w.queue.Ack(w.Context(), c.CommandID, c.Token); err != nil {
		w.Fatal(err)
	}
}

func (w *world) find(key string) hosted.QueuedCommand {
	w.Helper()
	return must[hosted.QueuedCommand](w)(w.queue.Find(w.Context(), key))
}

// expire ends the lease of a claim, as time would.
func (w *world) expire(c continuity.Claim) {
	w.Helper()
	w.exec(`update continuity_commands set claimed_until = now() - interval '1 second' where command_id = $1`, c.CommandID)
}

// awaken ends the wait of all commands, as time would.
func (w *world) awaken() {
	w.Helper()
	w.exec(`update continuity_commands set available_at = now() where status = 'pending'`)
}

// waiting returns once that many sessions of the database wait for an advisory lock.
func (w *world) waiting(n int) {
	w.Helper()
	w.waitingFor("advisory", n)
}

// waitingFor is waiting for another kind of lock.
func (w *world) waitingFor(lock string, n int) {
	w.Helper()
	start := time.Now()
	for scan[int](w, `
		select count(*)
		from pg_stat_activity
		where datname = current_database()
		  and wait_event_type = 'Lock'
		  and wait_event = $1`, lock) != n {
		if time.Since(start) > 30*time.Second {
			w.Fatalf("there are never %d sessions that wait for the lock %s", n, lock)
		}
	}
}

// begin opens a transaction in which a test makes calls that are not yet committed. Whoever waits for it does so with
// patience.
func (w *world) begin() pgx.Tx {
	w.Helper()
	w.patient()
	return w.beginImpatient()
}

// patient has calls wait for each other's locks for long: the machine may be slow.
func (w *world) patient() {
	w.Helper()
	w.exec(`
		do $$
		declare
		  f regprocedure;
		begin
		  for f in select oid from pg_proc where proname like 'continuity\_%' and prosecdef loop
		    execute format('alter function %s set lock_timeout = %L', f, '30s');
		  end loop;
		end $$`)
}

// beginImpatient is begin with the time limits as they are.
func (w *world) beginImpatient() pgx.Tx {
	w.Helper()
	tx := must[pgx.Tx](w)(w.pool.Begin(w.Context()))
	w.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(w.Context())) })
	return tx
}
