package daydb_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/pg"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

var r1 = daydb.Restaurant{CompanyID: "acme", RestaurantID: "r1"}

// The SQLSTATEs of the triggers.
const (
	staleToken  = "RD001"
	illegalMove = "RD002"
	immutable   = "RD003"
)

// ledger is a restaurant whose company has both flags on.
type ledger struct {
	testing.TB
	pool *pgxpool.Pool
}

func newLedger(t testing.TB) *ledger {
	t.Helper()
	l := &ledger{t, pgtest.New(t)}
	l.tx(func(tx pgx.Tx) error {
		return daydb.Register(t.Context(), tx, daydb.Registration{
			Restaurant: r1, Timezone: daydb.DefaultTimezone, LegacyDB: "tables-prod", Active: true,
		})
	})
	l.exec(`insert into company_feature_flags (company_id, rolling_db, rolling_db_drop, updated_by) values ('acme', true, true, 'test')`)
	return l
}

func (l *ledger) tx(fn func(tx pgx.Tx) error) {
	l.Helper()
	if err := pg.WithTx(l.Context(), l.pool, fn); err != nil {
		l.Fatal(err)
	}
}

func (l *ledger) exec(sql string, args ...any) {
	l.Helper()
	if _, err := l.pool.Exec(l.Context(), sql, args...); err != nil {
		l.Fatal(err)
	}
}

// refused holds that a statement fails with this SQLSTATE.
func (l *ledger) refused(code, sql string, args ...any) {
	l.Helper()
	_, err := l.pool.Exec(l.Context(), sql, args...)
	if pg.Code(err) != code {
		l.Errorf("%s: %v, want SQLSTATE %s", sql, err, code)
	}
}

func mark(token int64) daydb.Mark { return daydb.Mark{Actor: "test", RunID: 7, Token: token} }

func (l *ledger) insert(s string, token int64) daydb.DayDB {
	l.Helper()
	var d daydb.DayDB
	l.tx(func(tx pgx.Tx) (err error) {
		d, err = daydb.Insert(l.Context(), tx, r1, day(l, s), "prod_acme_r1_daily_"+s, mark(token))
		return err
	})
	return d
}

// ready gives a day all that any move asks for.
func (l *ledger) ready(d daydb.DayDB) {
	l.Helper()
	l.exec(`alter table day_databases disable trigger user`)
	l.exec(`update day_databases set
		  instance_start_time = '1', sealed_at = now(), drop_intended_at = now(),
		  proof_sha256 = '\x00', proof_documents = 0, proof_at = now(), proof_state = '{}'
		where id = $1`, d.ID)
	l.exec(`alter table day_databases enable trigger user`)
	l.evaluate(d, true, true, true, true)
}

func (l *ledger) evaluate(d daydb.DayDB, lock1, lock2, lock3, eligible bool) {
	l.Helper()
	l.exec(`insert into guard_evaluations
		  (day_database_id, token, as_of, lock1_green, lock2_green, lock3_green, eligible, evidence, couch_state)
		values ($1, 1, '2026-11-30', $2, $3, $4, $5, '{}', '{}')`, d.ID, lock1, lock2, lock3, eligible)
}

// force puts a day into a state, past the trigger.
func (l *ledger) force(d daydb.DayDB, s daydb.State) {
	l.Helper()
	l.exec(`alter table day_databases disable trigger user`)
	l.exec(`update day_databases set state = $2 where id = $1`, d.ID, s)
	l.exec(`alter table day_databases enable trigger user`)
}

// move writes a state and its line by hand, in a transaction that is undone.
func (l *ledger) move(d daydb.DayDB, to daydb.State) error {
	undo := errors.New("undo")
	err := pg.WithTx(l.Context(), l.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(l.Context(), `update day_databases set state = $2 where id = $1`, d.ID, to); err != nil {
			return err
		}
		_, err := tx.Exec(l.Context(), `insert into day_database_transitions (day_database_id, to_state, event, actor, token)
			select id, state, 'by hand', 'test', fencing_token from day_databases where id = $1`, d.ID)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(l.Context(), `set constraints all immediate`); err != nil {
			return err
		}
		return undo
	})
	if errors.Is(err, undo) {
		return nil
	}
	return err
}

// For every pair of states and every event the code and the trigger say the
// same as the table.
func TestTransitionTable(t *testing.T) {
	l := newLedger(t)
	d := l.insert("20261130", 1)
	l.ready(d)
	events := []daydb.Event{daydb.Prewarm, daydb.Activate, daydb.Drain, daydb.Archive, daydb.Seal, daydb.Drop, daydb.Reopen}
	allowed := make(map[string]bool)
	for _, from := range daydb.States() {
		for _, event := range events {
			i := slices.IndexFunc(daydb.Transitions(), func(tr daydb.Transition) bool { return tr.From == from && tr.Event == event })
			to, err := daydb.Next(from, event)
			switch {
			case i < 0 && !errors.Is(err, daydb.ErrIllegalMove):
				t.Errorf("%s %s: %s, %v, want a refusal", event, from, to, err)
			case i >= 0 && (err != nil || to != daydb.Transitions()[i].To):
				t.Errorf("%s %s: %s, %v, want %s", event, from, to, err, daydb.Transitions()[i].To)
			}
			if i >= 0 {
				allowed[fmt.Sprint(from, to)] = true
			}
		}
	}
	for _, from := range daydb.States() {
		l.force(d, from)
		for _, to := range daydb.States() {
			err := l.move(d, to)
			want := from == to || allowed[fmt.Sprint(from, to)]
			if want && err != nil || !want && pg.Code(err) != illegalMove {
				t.Errorf("trigger: %s to %s: %v, allowed %v", from, to, err, want)
			}
		}
	}
}

// Each thing that a move needs is missed when it alone is missing.
func TestMovesNeedTheirGrounds(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to daydb.State
		spoil    func(l *ledger, d daydb.DayDB)
	}{
		"ACTIVE without a database": {daydb.Prewarmed, daydb.Active, func(l *ledger, d daydb.DayDB) {
			l.spoil(d, `instance_start_time = null`)
		}},
		"ARCHIVED with lock 1 red":         {daydb.Draining, daydb.Archived, func(l *ledger, d daydb.DayDB) { l.evaluate(d, false, true, true, true) }},
		"ARCHIVED with lock 2 red":         {daydb.Draining, daydb.Archived, func(l *ledger, d daydb.DayDB) { l.evaluate(d, true, false, true, true) }},
		"DROPPABLE with lock 3 red":        {daydb.Archived, daydb.Droppable, func(l *ledger, d daydb.DayDB) { l.evaluate(d, true, true, false, true) }},
		"DROPPABLE when not eligible":      {daydb.Archived, daydb.Droppable, func(l *ledger, d daydb.DayDB) { l.evaluate(d, true, true, true, false) }},
		"DROPPABLE without a seal":         {daydb.Archived, daydb.Droppable, func(l *ledger, d daydb.DayDB) { l.spoil(d, `sealed_at = null`) }},
		"DROPPABLE with a hold":            {daydb.Archived, daydb.Droppable, func(l *ledger, d daydb.DayDB) { l.spoil(d, `hold_reason = 'tax', hold_by = 'x', hold_since = now()`) }},
		"DROPPABLE with the flag off":      {daydb.Archived, daydb.Droppable, func(l *ledger, _ daydb.DayDB) { l.exec(`update company_feature_flags set rolling_db_drop = false`) }},
		"DROPPABLE without any evaluation": {daydb.Archived, daydb.Droppable, func(l *ledger, d daydb.DayDB) { l.exec(`delete from guard_evaluations`) }},
		"DROPPED without an intention":     {daydb.Droppable, daydb.Dropped, func(l *ledger, d daydb.DayDB) { l.spoil(d, `drop_intended_at = null`) }},
		"DROPPED without a proof": {daydb.Droppable, daydb.Dropped, func(l *ledger, d daydb.DayDB) {
			l.spoil(d, `proof_sha256 = null, proof_documents = null, proof_at = null, proof_state = null`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			d := l.insert("20261130", 1)
			l.ready(d)
			l.force(d, tt.from)
			if err := l.move(d, tt.to); err != nil {
				t.Fatalf("with all it needs: %v", err)
			}
			tt.spoil(l, d)
			if err := l.move(d, tt.to); pg.Code(err) != illegalMove {
				t.Errorf("the move was not refused: %v", err)
			}
		})
	}
}

func (l *ledger) spoil(d daydb.DayDB, assignments string) {
	l.Helper()
	l.exec(`alter table day_databases disable trigger user`)
	l.exec(`update day_databases set `+assignments+` where id = $1`, d.ID)
	l.exec(`alter table day_databases enable trigger user`)
}

// What an UPDATE typed by hand cannot do.
func TestLedgerRefusesHands(t *testing.T) {
	l := newLedger(t)
	d := l.insert("20261130", 5)
	l.ready(d)
	l.refused(illegalMove, `update day_databases set state = 'DROPPED'`)
	l.refused(illegalMove, `update day_databases set state = 'ACTIVE'`) // Without its line in the history.
	l.refused(illegalMove, `insert into day_databases (company_id, restaurant_id, business_day, db_name, state, fencing_token)
		values ('acme', 'r1', '2026-12-01', 'prod_acme_r1_daily_20261201', 'ACTIVE', 9)`)
	l.refused(illegalMove, `insert into day_databases (company_id, restaurant_id, business_day, db_name, fencing_token)
		values ('acme', 'r1', '2026-12-01', 'prod_acme_r1_daily_20261201', 9)`) // The same.
	l.refused(staleToken, `update day_databases set fencing_token = 4`)
	l.refused(immutable, `delete from day_databases`)
	l.refused(immutable, `update day_databases set db_name = 'prod_acme_r1_daily_20261201', business_day = '2026-12-01'`)
	l.refused(immutable, `update day_databases set generation = gen_random_uuid()`)
	l.refused(immutable, `update day_databases set instance_start_time = '2'`)
	l.refused(immutable, `update day_databases set instance_start_time = null`)
	l.refused(immutable, `update day_database_transitions set actor = 'nobody'`)
	l.refused(immutable, `delete from day_database_transitions`)
	const checkViolation = "23514"
	l.refused(checkViolation, `insert into day_databases (company_id, restaurant_id, business_day, db_name, fencing_token)
		values ('acme', 'r1', '2026-12-01', 'prod_acme_r1_daily_20261202', 9)`)
	l.refused(checkViolation, `update day_databases set hold_reason = 'half a hold'`)
}

func TestInsertOnce(t *testing.T) {
	l := newLedger(t)
	first := l.insert("20261130", 1)
	again := l.insert("20261130", 2)
	if again.ID != first.ID || again.Generation != first.Generation || again.Token != 1 || again.State != daydb.Prewarmed {
		t.Errorf("entered again: %+v, first %+v", again, first)
	}
	lines, err := daydb.History(t.Context(), l.pool, first.ID)
	if err != nil || len(lines) != 1 || lines[0].Event != daydb.Prewarm || lines[0].From != nil || *lines[0].RunID != 7 {
		t.Errorf("history %+v, %v", lines, err)
	}
}

func TestMove(t *testing.T) {
	l := newLedger(t)
	d := l.insert("20261130", 5)
	move := func(d daydb.DayDB, event daydb.Event, token int64) (moved daydb.DayDB, err error) {
		err = pg.WithTx(t.Context(), l.pool, func(tx pgx.Tx) error {
			moved, err = daydb.Move(t.Context(), tx, d, event, mark(token), map[string]int{"n": 1})
			return err
		})
		return moved, err
	}
	if _, err := move(d, daydb.Activate, 6); !errors.Is(err, daydb.ErrIllegalMove) {
		t.Errorf("activated without a database: %v", err)
	}
	l.tx(func(tx pgx.Tx) error {
		return daydb.Update(t.Context(), tx, d, 6, `instance_start_time = @at`, pgx.NamedArgs{"at": "1"})
	})
	if _, err := move(d, daydb.Activate, 5); !errors.Is(err, daydb.ErrStale) {
		t.Errorf("activated with an older token: %v", err)
	}
	if _, err := move(d, daydb.Drop, 7); !errors.Is(err, daydb.ErrIllegalMove) {
		t.Errorf("dropped while PREWARMED: %v", err)
	}
	active, err := move(d, daydb.Activate, 7)
	if err != nil || active.State != daydb.Active || active.Token != 7 {
		t.Fatalf("%+v, %v", active, err)
	}
	if _, err := move(d, daydb.Activate, 8); !errors.Is(err, daydb.ErrStale) {
		t.Errorf("moved from a state that it has left: %v", err)
	}
	err = pg.WithTx(t.Context(), l.pool, func(tx pgx.Tx) error {
		return daydb.Update(t.Context(), tx, active, 6, `seal_started_at = now()`, nil)
	})
	if !errors.Is(err, daydb.ErrStale) {
		t.Errorf("updated with an older token: %v", err)
	}

	second := l.insert("20261201", 8)
	l.tx(func(tx pgx.Tx) error {
		return daydb.Update(t.Context(), tx, second, 8, `instance_start_time = '1'`, nil)
	})
	if _, err := move(second, daydb.Activate, 9); !pg.IsUnique(err, "day_databases_one_active") {
		t.Errorf("a second ACTIVE day: %v", err)
	}

	lines, err := daydb.History(t.Context(), l.pool, d.ID)
	if err != nil || len(lines) != 2 {
		t.Fatalf("history %+v, %v", lines, err)
	}
	last := lines[1]
	if *last.From != daydb.Prewarmed || last.To != daydb.Active || last.Token != 7 || last.Actor != "test" || string(last.Evidence) != `{"n": 1}` {
		t.Errorf("line %+v, evidence %s", last, last.Evidence)
	}
}

// A role stands in a comma-separated header, and no two restaurants share one.
func TestRole(t *testing.T) {
	seen := make(map[string]daydb.Restaurant)
	for _, r := range []daydb.Restaurant{
		{CompanyID: "a", RestaurantID: "b-c"}, {CompanyID: "a-b", RestaurantID: "c"}, {CompanyID: "a", RestaurantID: "b"},
	} {
		role := r.Role()
		if other, ok := seen[role]; ok {
			t.Errorf("%v and %v share role %s", r, other, role)
		}
		seen[role] = r
		for _, c := range role {
			if c == ',' || c <= ' ' || c > '~' {
				t.Errorf("role %q holds %q", role, c)
			}
		}
	}
}
