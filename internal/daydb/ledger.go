// Package daydb is the ledger of day databases: business days, states, the
// transition table, and one row for each restaurant and day, for ever.
package daydb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotFound is returned when the ledger has no such day database.
	ErrNotFound = errors.New("no such day database")
	// ErrStale is returned when a row has moved on since it was read, or has
	// seen a higher fencing token: somebody else owns the work now.
	ErrStale = errors.New("stale: another run has moved on")
)

// Restaurant names one restaurant of one company.
type Restaurant struct {
	CompanyID    string `json:"companyId"`
	RestaurantID string `json:"restaurantId"`
}

func (r Restaurant) String() string { return r.CompanyID + "/" + r.RestaurantID }

// Proof is the result of the last complete comparison of a day database with
// the archive, byte by byte.
type Proof struct {
	SHA256    []byte
	Documents int64
	At        time.Time
	// State is what CouchDB said of the database when the proof was taken.
	State json.RawMessage
}

// DayDB is a row of the ledger.
type DayDB struct {
	ID int64
	Restaurant
	BusinessDay Day
	Name        string
	State       State
	Since       time.Time
	Token       int64

	// Generation is the marker in the database's _security, chosen before the
	// database is created.
	Generation uuid.UUID
	// InstanceStartTime is CouchDB's creation time, in seconds, as it states it;
	// nil until the database was created and secured.
	InstanceStartTime *string

	Hold *Hold

	SealStartedAt  *time.Time
	SealedAt       *time.Time
	Proof          *Proof
	DropIntendedAt *time.Time
	DroppedAt      *time.Time
}

// Querier is what reading needs: a pool or a transaction.
type Querier interface {
	rowQuerier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const columns = `
  id,
  company_id,
  restaurant_id,
  business_day,
  db_name,
  state,
  state_since,
  fencing_token,
  generation,
  instance_start_time,
  hold_reason,
  hold_by,
  hold_since,
  seal_started_at,
  sealed_at,
  proof_sha256,
  proof_documents,
  proof_at,
  proof_state,
  drop_intended_at,
  dropped_at`

func scan(row pgx.CollectableRow) (DayDB, error) {
	var (
		d              DayDB
		reason, by     *string
		since, proofAt *time.Time
		proofSHA       []byte
		proofDocs      *int64
		proofState     []byte
	)
	err := row.Scan(&d.ID, &d.CompanyID, &d.RestaurantID, &d.BusinessDay, &d.Name, &d.State, &d.Since,
		&d.Token, &d.Generation, &d.InstanceStartTime, &reason, &by, &since,
		&d.SealStartedAt, &d.SealedAt, &proofSHA, &proofDocs, &proofAt, &proofState,
		&d.DropIntendedAt, &d.DroppedAt)
	if err != nil {
		return DayDB{}, err
	}
	if reason != nil {
		d.Hold = &Hold{Reason: *reason, Actor: *by, Since: *since}
	}
	if proofSHA != nil {
		d.Proof = &Proof{SHA256: proofSHA, Documents: *proofDocs, At: *proofAt, State: proofState}
	}
	return d, nil
}

// Load returns the day database with this physical name, or ErrNotFound.
func Load(ctx context.Context, db Querier, name string) (DayDB, error) {
	return one(ctx, db, `where db_name = $1`, name)
}

// LoadForUpdate is Load with the row locked until the transaction ends.
func LoadForUpdate(ctx context.Context, tx pgx.Tx, name string) (DayDB, error) {
	return one(ctx, tx, `where db_name = $1 for update`, name)
}

func one(ctx context.Context, db Querier, where string, args ...any) (DayDB, error) {
	rows, err := db.Query(ctx, `select `+columns+` from day_databases `+where, args...)
	if err != nil {
		return DayDB{}, fmt.Errorf("load day database: %w", err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return DayDB{}, ErrNotFound
	}
	if err != nil {
		return DayDB{}, fmt.Errorf("load day database: %w", err)
	}
	return d, nil
}

// Filter selects rows of the ledger; zero fields select all.
type Filter struct {
	CompanyID    string
	RestaurantID string
	BusinessDay  Day
	States       []State
	// AfterID continues a listing behind the row with this id; Limit bounds it,
	// 0 is no bound.
	AfterID int64
	Limit   int
}

// List returns the rows that the filter selects, in the order of their ids.
func List(ctx context.Context, db Querier, f Filter) ([]DayDB, error) {
	states := make([]string, len(f.States))
	for i, s := range f.States {
		states[i] = string(s)
	}
	rows, err := db.Query(ctx, `select `+columns+` from day_databases
		where (@company = '' or company_id = @company)
		  and (@restaurant = '' or restaurant_id = @restaurant)
		  and (@day::date is null or business_day = @day)
		  and (cardinality(@states::text[]) = 0 or state = any(@states))
		  and id > @after
		order by id
		limit nullif(@limit::int, 0)`,
		pgx.NamedArgs{
			"company":    f.CompanyID,
			"restaurant": f.RestaurantID,
			"day":        f.BusinessDay,
			"states":     states,
			"after":      f.AfterID,
			"limit":      f.Limit,
		})
	if err != nil {
		return nil, fmt.Errorf("list day databases: %w", err)
	}
	days, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list day databases: %w", err)
	}
	return days, nil
}

// StatesOf returns the states of those of the names that are in the ledger. The
// ledger grows for ever, the databases that exist do not: whoever compares the
// two asks for the ones that exist.
func StatesOf(ctx context.Context, db Querier, names []string) (map[string]State, error) {
	rows, err := db.Query(ctx, `select db_name, state from day_databases where db_name = any($1)`, names)
	if err != nil {
		return nil, fmt.Errorf("states of day databases: %w", err)
	}
	states := make(map[string]State, len(names))
	var (
		name  string
		state State
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &state}, func() error {
		states[name] = state
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("states of day databases: %w", err)
	}
	return states, nil
}

// Mark says who writes to the ledger: it stands in the history, and its token
// fences the row.
type Mark struct {
	Actor string
	// RunID is the cron run, 0 for none.
	RunID int64
	Token int64
}

// Insert enters a new day, PREWARMED, before its database is created. The name
// of a day is entered once, for ever: entering it again returns the row that is
// there.
func Insert(ctx context.Context, tx pgx.Tx, r Restaurant, day Day, name string, m Mark) (DayDB, error) {
	var id int64
	err := tx.QueryRow(ctx, `
		insert into day_databases (company_id, restaurant_id, business_day, db_name, fencing_token)
		values (@company, @restaurant, @day, @name, @token)
		on conflict on constraint day_databases_day_key do nothing
		returning id`,
		pgx.NamedArgs{
			"company":    r.CompanyID,
			"restaurant": r.RestaurantID,
			"day":        day,
			"name":       name,
			"token":      m.Token,
		}).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Load(ctx, tx, name)
	}
	if err != nil {
		return DayDB{}, fmt.Errorf("enter %s: %w", name, translate(err))
	}
	if err := writeHistory(ctx, tx, id, nil, Prewarmed, Prewarm, m, nil); err != nil {
		return DayDB{}, err
	}
	return Load(ctx, tx, name)
}

// Move fires an event on a day that the transaction has locked: it checks the
// transition table, then writes the row and its line in the history. It returns
// the row as it is afterwards; ErrIllegalMove or ErrStale when the move is
// refused.
func Move(ctx context.Context, tx pgx.Tx, d DayDB, event Event, m Mark, evidence any) (DayDB, error) {
	to, err := Next(d.State, event)
	if err != nil {
		return DayDB{}, fmt.Errorf("%s: %w", d.Name, err)
	}
	tag, err := tx.Exec(ctx, `
		update day_databases set
		  state = @to,
		  state_since = now(),
		  fencing_token = @token,
		  activated_at = case when @to = 'ACTIVE' then now() else activated_at end,
		  drained_at = case when @to = 'DRAINING' then now() else drained_at end,
		  archived_at = case when @to = 'ARCHIVED' then now() else archived_at end,
		  droppable_at = case when @to = 'DROPPABLE' then now() else droppable_at end,
		  sealed_at = case @to when 'DROPPABLE' then now() when 'DRAINING' then null else sealed_at end,
		  dropped_at = case when @to = 'DROPPED' then now() else dropped_at end
		where id = @id and state = @from and fencing_token <= @token`,
		pgx.NamedArgs{"to": to, "token": m.Token, "id": d.ID, "from": d.State})
	if err != nil {
		return DayDB{}, fmt.Errorf("%s %s: %w", event, d.Name, translate(err))
	}
	if tag.RowsAffected() == 0 {
		return DayDB{}, fmt.Errorf("%s %s: %w", event, d.Name, ErrStale)
	}
	if err := writeHistory(ctx, tx, d.ID, &d.State, to, event, m, evidence); err != nil {
		return DayDB{}, err
	}
	return Load(ctx, tx, d.Name)
}

// Update sets columns of a day outside a move, under its fencing token:
// assignments is a list such as `seal_started_at = now()`. ErrStale when the
// row has seen a higher token or has left the state that d holds.
func Update(ctx context.Context, tx pgx.Tx, d DayDB, token int64, assignments string, args pgx.NamedArgs) error {
	all := pgx.NamedArgs{"id": d.ID, "state": d.State, "token": token}
	for k, v := range args {
		all[k] = v
	}
	tag, err := tx.Exec(ctx, `update day_databases set `+assignments+`, fencing_token = @token
		where id = @id and state = @state and fencing_token <= @token`, all)
	if err != nil {
		return fmt.Errorf("update %s: %w", d.Name, translate(err))
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("update %s: %w", d.Name, ErrStale)
	}
	return nil
}

// The SQLSTATEs that the ledger's triggers raise.
const (
	stateStaleToken  = "RD001"
	stateIllegalMove = "RD002"
)

// translate turns the triggers' refusals into the sentinels of this package.
func translate(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case stateStaleToken:
		return fmt.Errorf("%w (%s)", ErrStale, pgErr.Message)
	case stateIllegalMove:
		return fmt.Errorf("%w (%s)", ErrIllegalMove, pgErr.Message)
	}
	return err
}
