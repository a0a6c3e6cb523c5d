package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/archive"
	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

// Evaluation is one look at a day: the three locks and what they were judged by.
type Evaluation struct {
	ID          int64     `json:"-"`
	At          time.Time `json:"-"`
	ConfirmedAt time.Time `json:"-"`
	AsOf        daydb.Day `json:"-"`
	Lock1       Lock      `json:"lock1"`
	Lock2       Lock2     `json:"lock2"`
	Lock3       Lock3     `json:"lock3"`
	Eligible    bool      `json:"-"`
	// Documents and Archived are counts of live documents and deletions.
	Documents int64 `json:"documents"`
	Archived  int64 `json:"archived"`

	// Seen is what CouchDB said at the time.
	Seen archive.State `json:"-"`
}

// seen is what CouchDB says of a day's database, with the sequence that it was
// read to. If it says the same again, and nothing is pending, nothing has
// changed.
func seen(d daydb.DayDB, info couch.Info, since couch.Seq) archive.State {
	return archive.State{
		DocCount:          info.DocCount,
		DocDelCount:       info.DocDelCount,
		PurgeSeq:          info.PurgeSeq,
		InstanceStartTime: info.InstanceStartTime,
		Since:             since,
		Generation:        d.Generation.String(),
	}
}

// stamp puts the time of the evaluation on its locks.
func (e *Evaluation) stamp() {
	e.Lock1.EvaluatedAt, e.Lock2.EvaluatedAt, e.Lock3.EvaluatedAt = e.ConfirmedAt, e.ConfirmedAt, e.ConfirmedAt
}

// latest returns the last evaluation of a day, or nil if there is none.
func latest(ctx context.Context, db daydb.Querier, dayID int64) (*Evaluation, error) {
	all, err := latestOf(ctx, db, []int64{dayID})
	return all[dayID], err
}

// latestOf returns the last evaluation of each day that has one.
func latestOf(ctx context.Context, db daydb.Querier, dayIDs []int64) (map[int64]*Evaluation, error) {
	rows, err := db.Query(ctx, `
		select distinct on (day_database_id)
		  day_database_id,
		  id,
		  at,
		  confirmed_at,
		  as_of,
		  eligible,
		  evidence,
		  couch_state
		from guard_evaluations
		where day_database_id = any($1)
		order by day_database_id, id desc`, dayIDs)
	if err != nil {
		return nil, fmt.Errorf("last evaluations: %w", err)
	}
	all := make(map[int64]*Evaluation)
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var (
			e                    Evaluation
			dayID                int64
			evidence, couchState []byte
		)
		err := row.Scan(&dayID, &e.ID, &e.At, &e.ConfirmedAt, &e.AsOf, &e.Eligible, &evidence, &couchState)
		if err != nil {
			return struct{}{}, err
		}
		if err := errors.Join(json.Unmarshal(evidence, &e), json.Unmarshal(couchState, &e.Seen)); err != nil {
			return struct{}{}, err
		}
		e.stamp()
		all[dayID] = &e
		return struct{}{}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("last evaluations: %w", err)
	}
	return all, nil
}

// record stores an evaluation and returns it with its id and time.
func record(ctx context.Context, tx pgx.Tx, d daydb.DayDB, e Evaluation, m daydb.Mark) (Evaluation, error) {
	evidence, err := json.Marshal(e)
	if err != nil {
		return Evaluation{}, fmt.Errorf("evidence: %w", err)
	}
	couchState, err := json.Marshal(e.Seen)
	if err != nil {
		return Evaluation{}, fmt.Errorf("evidence: %w", err)
	}
	err = tx.QueryRow(ctx, `
		insert into guard_evaluations (
		  day_database_id,
		  run_id,
		  token,
		  as_of,
		  lock1_green,
		  lock2_green,
		  lock3_green,
		  eligible,
		  evidence,
		  couch_state)
		values (@day, nullif(@run::bigint, 0), @token, @as_of, @lock1, @lock2, @lock3, @eligible, @evidence, @seen)
		returning id, at, confirmed_at`,
		pgx.NamedArgs{
			"day":      d.ID,
			"run":      m.RunID,
			"token":    m.Token,
			"as_of":    e.AsOf,
			"lock1":    e.Lock1.Green,
			"lock2":    e.Lock2.Green,
			"lock3":    e.Lock3.Green,
			"eligible": e.Eligible,
			"evidence": evidence,
			"seen":     couchState,
		}).Scan(&e.ID, &e.At, &e.ConfirmedAt)
	if err != nil {
		return Evaluation{}, fmt.Errorf("store evaluation: %w", err)
	}
	e.stamp()
	return e, nil
}

// confirm notes that days were found as their last evaluations had left them.
func confirm(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, evaluationIDs []int64) error {
	var n int64
	err := db.QueryRow(ctx, `
		with confirmed as (
		  update guard_evaluations set confirmed_at = now() where id = any($1) returning 1)
		select count(*) from confirmed`, evaluationIDs).Scan(&n)
	if err != nil {
		return fmt.Errorf("confirm evaluations: %w", err)
	}
	return nil
}
