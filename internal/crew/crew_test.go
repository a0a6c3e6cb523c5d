package crew

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
	"github.com/rollingd/rollingd/internal/run"
	"github.com/rollingd/rollingd/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a primary's database with a job named night.
type world struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Parallel()
	dsn := pgtest.DSN(t)
	w := &world{T: t, dsn: dsn, pool: pgtest.Open(t, dsn)}
	if _, err := pg.Migrate(t.Context(), w.pool, migrations.Hosted()); err != nil {
		t.Fatal(err)
	}
	return w
}

const (
	// lease is one that a machine can stall in for a while, without a claim that is
	// lost by it. Whoever waits for its end has the test end it.
	lease = 15 * time.Second
	// patience bounds what a test waits for.
	patience = time.Minute
)

// replica is a crew with connections of its own.
type replica struct {
	*Crew
	pool *pgxpool.Pool
}

func (w *world) replica(name string, workers int, do run.Unit) *replica {
	w.Helper()
	pool, err := pg.Open(w.Context(), w.dsn, pg.Options{})
	if err != nil {
		w.Fatal(err)
	}
	r := &replica{pool: pool, Crew: New(Options{
		Pool:    pool,
		Name:    name,
		Units:   map[string]run.Unit{"night": do},
		Workers: workers,
		Lease:   lease,
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(),
	})}
	if err := r.Start(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = r.Stop(ctx)
		pool.Close()
	})
	return r
}

// begin enters a run that is under way.
func (w *world) begin() run.Run {
	w.Helper()
	r := run.Run{Actor: "test", Zone: "America/Santiago", Report: &run.Report{}}
	err := w.pool.QueryRow(w.Context(), `
		with ended as (update cron_runs set state = 'succeeded', finished_at = now() where state = 'running')
		insert into cron_runs (cron, trigger, actor, token)
		values ('night' || (select count(*) from cron_runs), 'manual', 'test', 1)
		returning id`).Scan(&r.ID)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) share(c *replica, r run.Run, keys ...string) run.Result {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	if err := c.Share("night")(ctx, r, keys); err != nil {
		w.Error(err) // Not Fatal: some share in another goroutine.
	}
	return r.Report.Result()
}

// expire ends the leases of all claims, as time would.
func (w *world) expire() {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), `
		update public.continuity_commands
		set claimed_until = now() - interval '1 second'
		where status = 'claimed'`)
	if err != nil {
		w.Fatal(err)
	}
}

// one returns the only value of a query.
func one[T any](w *world, sql string, args ...any) (value T) {
	w.Helper()
	if err := w.pool.QueryRow(w.Context(), sql, args...).Scan(&value); err != nil {
		w.Fatal(err)
	}
	return value
}

func keysOf(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("db-%02d", i))
	}
	return keys
}

// TestReplicasShareANight has two replicas meet in one run.
func TestReplicasShareANight(t *testing.T) {
	w := newWorld(t)
	var (
		mu   sync.Mutex
		by   = make(map[string]int)
		seen = make(map[string]int)
	)
	both := make(chan struct{})
	do := func(name string) run.Unit {
		return func(ctx context.Context, r run.Run, key string) {
			mu.Lock()
			by[name]++
			seen[key]++
			if len(by) == 2 && by[name] == 1 {
				close(both)
			}
			mu.Unlock()
			select {
			case <-both: // Nobody goes on alone.
			case <-ctx.Done():
			}
			r.Report.Add("documents", 2)
			r.Report.Reach(key)
			if key == "db-03" {
				r.Report.Fail(run.Failure{DBName: key, Step: "archive", Error: "moved"})
			}
		}
	}
	a, b := w.replica("a", 1, do("a")), w.replica("b", 1, do("b"))
	got := w.share(a, w.begin(), keysOf(20)...)
	slices.Sort(got.Reached)
	if got.Counters["documents"] != 40 || !slices.Equal(got.Reached, keysOf(20)) || len(got.Failures) != 1 {
		t.Errorf("the report says %+v", got)
	}
	if slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("units were done more than once: %v", seen)
	}
	for _, c := range []*replica{a, b} { // An ack follows the result.
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := one[int](w, `select count(*) from public.continuity_commands where status <> 'acked'`); n != 0 {
		t.Errorf("%d commands are not acknowledged", n)
	}
}

// TestDeadReplica has a replica vanish in the middle of a unit: another does it
// again, and what the dead one still does counts for nothing.
func TestDeadReplica(t *testing.T) {
	w := newWorld(t)
	var dying *replica
	began, resumed, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	dying = w.replica("dying", 1, func(_ context.Context, r run.Run, _ string) {
		defer close(ended)
		dying.pool.Close() // Nothing of it reaches the database any more.
		close(began)
		<-resumed
		r.Report.Add("documents", 1000)
	})
	handed := make(chan run.Result)
	r := w.begin()
	lead := w.replica("lead", 1, func(_ context.Context, r run.Run, _ string) { r.Report.Add("documents", 1) })
	// The lead takes nothing until the other has begun.
	lead.slots <- struct{}{}
	go func() { handed <- w.share(lead, r, "db") }()
	<-began
	w.expire()
	<-lead.slots
	lead.look()
	got := <-handed
	close(resumed)
	<-ended
	if got.Counters["documents"] != 1 {
		t.Errorf("the report says %+v", got)
	}
	if attempts := one[int](w, `select attempts from public.continuity_commands`); attempts != 1 {
		t.Errorf("the command counts %d failed attempts", attempts)
	}
}

// TestPoison is a database that kills whoever takes it, for the last time.
func TestPoison(t *testing.T) {
	w := newWorld(t)
	var killer *replica
	began := make(chan struct{})
	killer = w.replica("killer", 1, func(ctx context.Context, _ run.Run, _ string) {
		killer.pool.Close()
		close(began)
		<-ctx.Done()
	})
	lead := w.replica("lead", 1, func(_ context.Context, r run.Run, key string) { r.Report.Reach(key) })
	lead.slots <- struct{}{}
	r := w.begin()
	if err := lead.enqueue(t.Context(), "night", r, []string{"poison"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), `update public.continuity_commands set attempts = max_attempts - 1`); err != nil {
		t.Fatal(err)
	}
	killer.look()
	<-began
	w.expire()
	<-lead.slots
	got := w.share(lead, r, "poison", "healthy")
	if !slices.Equal(got.Reached, []string{"healthy"}) || len(got.Failures) != 1 || got.Failures[0].DBName != "poison" || got.Failures[0].Step != "work" {
		t.Fatalf("the report says %+v", got)
	}
	// The next night tries it again: a dead unit holds nothing back.
	if got := w.share(lead, w.begin(), "poison"); !slices.Equal(got.Reached, []string{"poison"}) {
		t.Errorf("the next night says %+v", got)
	}
}

// TestPanicIsAFailure checks that a unit that panics is not tried again tonight.
func TestPanicIsAFailure(t *testing.T) {
	w := newWorld(t)
	c := w.replica("a", 2, func(_ context.Context, _ run.Run, key string) {
		if key == "bad" {
			panic("out of luck")
		}
	})
	got := w.share(c, w.begin(), "bad", "good")
	if len(got.Failures) != 1 || got.Failures[0].DBName != "bad" || !strings.Contains(got.Failures[0].Error, "out of luck") {
		t.Errorf("the report says %+v", got)
	}
}

// TestOneAtATimeForEachDatabase has two jobs at one database.
func TestOneAtATimeForEachDatabase(t *testing.T) {
	w := newWorld(t)
	var (
		mu      sync.Mutex
		running bool
		order   []int64
	)
	c := w.replica("a", 4, func(_ context.Context, r run.Run, _ string) {
		mu.Lock()
		if running {
			t.Error("two units of one database at a time")
		}
		running = true
		order = append(order, r.ID)
		mu.Unlock()
		defer func() {
			mu.Lock()
			running = false
			mu.Unlock()
		}()
		var n int
		_ = w.pool.QueryRow(context.Background(), `select count(*) from pg_class`).Scan(&n)
	})
	first, second := w.begin(), w.begin()
	if _, err := w.pool.Exec(t.Context(), `alter table cron_runs disable trigger cron_runs_final;
		update cron_runs set state = 'running', finished_at = null`); err != nil {
		t.Fatal(err)
	}
	c.slots <- struct{}{} // Whoever is woken finds fewer slots than units, and both units in the queue.
	if err := c.enqueue(t.Context(), "night", first, []string{"db"}); err != nil {
		t.Fatal(err)
	}
	if err := c.enqueue(t.Context(), "night", second, []string{"db"}); err != nil {
		t.Fatal(err)
	}
	<-c.slots
	w.share(c, first, "db")
	w.share(c, second, "db")
	if !slices.Equal(order, []int64{first.ID, second.ID}) {
		t.Errorf("the order is %v", order)
	}
}

// TestUnitsOfAnEndedRunAreLeftOut checks that nobody works for a run that was
// interrupted.
func TestUnitsOfAnEndedRunAreLeftOut(t *testing.T) {
	w := newWorld(t)
	var done sync.Map
	c := w.replica("a", 1, func(_ context.Context, r run.Run, key string) { done.Store(fmt.Sprint(r.ID, key), true) })
	old := w.begin()
	now := w.begin() // Ends the other one.
	if err := c.enqueue(t.Context(), "night", old, keysOf(3)); err != nil {
		t.Fatal(err)
	}
	w.share(c, now, keysOf(3)...)
	done.Range(func(unit, _ any) bool {
		if strings.HasPrefix(unit.(string), fmt.Sprint(old.ID)) {
			t.Errorf("%v was done", unit)
		}
		return true
	})
}

// TestStopGivesBack checks that a replica that stops leaves its unit to another
// at once, and that no attempt is counted.
func TestStopGivesBack(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	leaving := w.replica("leaving", 1, func(ctx context.Context, _ run.Run, _ string) {
		close(began)
		<-ctx.Done()
	})
	lead := w.replica("lead", 1, func(_ context.Context, r run.Run, key string) { r.Report.Reach(key) })
	lead.slots <- struct{}{}
	r := w.begin()
	got := make(chan run.Result)
	go func() { got <- w.share(lead, r, "db") }()
	<-began
	if err := leaving.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := one[string](w, `select status || attempts from public.continuity_commands`); status != "pending0" {
		t.Errorf("the command is %s", status)
	}
	<-lead.slots
	lead.look()
	if got := <-got; !slices.Equal(got.Reached, []string{"db"}) {
		t.Errorf("the report says %+v", got)
	}
}

// TestShareEndsWithItsRun checks that a run that is stopped waits for nobody.
func TestShareEndsWithItsRun(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	c := w.replica("a", 1, func(ctx context.Context, _ run.Run, _ string) {
		close(began)
		<-ctx.Done()
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	go func() {
		<-began
		cancel(stopped)
	}()
	if err := c.Share("night")(ctx, w.begin(), []string{"db"}); !errors.Is(err, stopped) {
		t.Errorf("the run ended with %v", err)
	}
}

// TestSettledUnitsArePurged checks that what nobody needs any more goes, and what
// a run still waits for does not.
func TestSettledUnitsArePurged(t *testing.T) {
	w := newWorld(t)
	c := w.replica("a", 2, func(_ context.Context, r run.Run, key string) { r.Report.Reach(key) })
	w.share(c, w.begin(), keysOf(3)...)
	if _, err := w.pool.Exec(t.Context(), `
		update public.continuity_commands set settled_at = settled_at - interval '15 days' where aggregate_id <> 'db-00';
		update public.continuity_commands set status = 'dead' where aggregate_id = 'db-01'`); err != nil {
		t.Fatal(err)
	}
	w.share(c, w.begin(), "db-03")
	if left := one[string](w, `select string_agg(aggregate_id, ' ' order by aggregate_id) from public.continuity_commands`); left != "db-00 db-03" {
		t.Errorf("the queue keeps %s", left)
	}
}

// TestUnitEndsWithItsRun checks that a unit that hangs keeps its database from no
// later night: it ends when its run has ended.
func TestUnitEndsWithItsRun(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	c := w.replica("a", 1, func(ctx context.Context, r run.Run, key string) {
		if r.Zone == "" {
			r.Report.Reach(key)
			return
		}
		close(began)
		<-ctx.Done()
	})
	if err := c.enqueue(t.Context(), "night", w.begin(), []string{"db"}); err != nil {
		t.Fatal(err)
	}
	<-began
	next := w.begin() // Ends the other one.
	next.Zone = ""
	if got := w.share(c, next, "db"); !slices.Equal(got.Reached, []string{"db"}) {
		t.Errorf("the next night says %+v", got)
	}
	if n := one[int](w, `select count(*) from public.continuity_commands where attempts > 0`); n != 0 {
		t.Errorf("%d commands count a failed attempt", n)
	}
}

// TestConnectionLost takes the connections away from a run that waits: it goes on
// waiting, and no result is lost.
func TestConnectionLost(t *testing.T) {
	w := newWorld(t)
	const ofTheRun = ` from pg_stat_activity where datname = current_database() and application_name = 'lost'`
	before := make(chan struct{})
	w.replica("a", 2, func(ctx context.Context, r run.Run, key string) {
		r.Report.Reach(key)
		if key == "first" {
			close(before)
			return
		}
		<-before
		var pid int
		var err error
		for err == nil && pid == 0 { // Until it has handed out both.
			err = w.pool.QueryRow(ctx, `select coalesce(max(pid), 0)`+ofTheRun+` and query like '%runId%'`).Scan(&pid)
		}
		if err == nil {
			_, err = w.pool.Exec(ctx, `select pg_terminate_backend($1)`, pid)
		}
		for again := false; err == nil && !again; { // Until it has another connection.
			err = w.pool.QueryRow(ctx, `select exists (select`+ofTheRun+` and pid <> $1)`, pid).Scan(&again)
		}
		if err != nil {
			t.Error(err)
		}
	})
	pool, err := pg.Open(t.Context(), w.dsn, pg.Options{ApplicationName: "lost", MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	lead := New(Options{Pool: pool, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	r := w.begin()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := lead.Share("night")(ctx, r, []string{"first", "second"}); err != nil {
		t.Error(err)
	}
	if got := r.Report.Result(); len(got.Reached) != 2 || len(got.Failures) != 0 {
		t.Errorf("the report says %+v", got)
	}
}

// TestOlderReplica has a replica that does not know the job: it leaves the unit to
// another, and no attempt is counted.
func TestOlderReplica(t *testing.T) {
	w := newWorld(t)
	older := w.replica("older", 1, nil)
	newer := w.replica("newer", 1, func(_ context.Context, r run.Run, key string) { r.Report.Reach(key) })
	newer.slots <- struct{}{}
	r := w.begin()
	if err := newer.enqueue(t.Context(), "night", r, []string{"db"}); err != nil {
		t.Fatal(err)
	}
	for claimed := false; !claimed; older.look() {
		claimed = one[bool](w, `select claim_token is not null and status = 'pending' from public.continuity_commands`)
	}
	if n := one[int](w, `select attempts from public.continuity_commands`); n != 0 {
		t.Errorf("%d attempts were counted", n)
	}
	if err := older.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), `update public.continuity_commands set available_at = null`); err != nil {
		t.Fatal(err)
	}
	<-newer.slots
	newer.look()
	if got := w.share(newer, r, "db"); !slices.Equal(got.Reached, []string{"db"}) {
		t.Errorf("the report says %+v", got)
	}
}

// TestQueueAwayForAMoment has Postgres end the statement that hands out the units,
// as on a machine that is busy: they are handed out once.
func TestQueueAwayForAMoment(t *testing.T) {
	w := newWorld(t)
	lead := w.replica("lead", 1, func(_ context.Context, r run.Run, key string) { r.Report.Reach(key) })
	_, err := w.pool.Exec(t.Context(), `
		create sequence enqueued;
		create function fail_twice() returns trigger language plpgsql as $$
		begin
		  if nextval('public.enqueued') <= 2 then
		    raise exception 'canceling statement due to statement timeout' using errcode = '57014';
		  end if;
		  return new;
		end $$;
		create trigger fail_twice before insert on public.continuity_commands for each row execute function fail_twice()`)
	if err != nil {
		t.Fatal(err)
	}
	got := w.share(lead, w.begin(), "first", "second")
	if slices.Sort(got.Reached); !slices.Equal(got.Reached, []string{"first", "second"}) {
		t.Errorf("the report says %+v", got)
	}
}
