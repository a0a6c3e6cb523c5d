package daydb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Line is one line of a day's history.
type Line struct {
	From     *State          `json:"from"`
	To       State           `json:"to"`
	Event    Event           `json:"event"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	RunID    *int64          `json:"runId"`
	Token    int64           `json:"token"`
	Evidence json.RawMessage `json:"evidence"`
}

// History returns the moves of a day, oldest first.
func History(ctx context.Context, db Querier, id int64) ([]Line, error) {
	rows, err := db.Query(ctx, `
		select from_state, to_state, event, at, actor, run_id, token, evidence
		from day_database_transitions
		where day_database_id = $1
		order by id`, id)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Line, error) {
		var l Line
		err := row.Scan(&l.From, &l.To, &l.Event, &l.At, &l.Actor, &l.RunID, &l.Token, &l.Evidence)
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return lines, nil
}

// Note adds a line to the history of a day that does not move: something was
// decided or done that the next look must know of.
func Note(ctx context.Context, tx pgx.Tx, d DayDB, event Event, m Mark, evidence any) error {
	return writeHistory(ctx, tx, d.ID, &d.State, d.State, event, m, evidence)
}

func writeHistory(ctx context.Context, tx pgx.Tx, id int64, from *State, to State, event Event, m Mark, evidence any) error {
	if evidence == nil {
		evidence = struct{}{}
	}
	text, err := json.Marshal(evidence)
	if err != nil {
		return fmt.Errorf("evidence of %s: %w", event, err)
	}
	_, err = tx.Exec(ctx, `
		insert into day_database_transitions
		  (day_database_id, from_state, to_state, event, actor, run_id, token, evidence)
		values (@id, @from, @to, @event, @actor, nullif(@run::bigint, 0), @token, @evidence)`,
		pgx.NamedArgs{
			"id":       id,
			"from":     from,
			"to":       to,
			"event":    event,
			"actor":    m.Actor,
			"run":      m.RunID,
			"token":    m.Token,
			"evidence": text,
		})
	if err != nil {
		return fmt.Errorf("history of %s: %w", event, err)
	}
	return nil
}
