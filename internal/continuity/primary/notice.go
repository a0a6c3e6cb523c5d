package primary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/pg"
)

// ErrUnknownNotice is returned for a notice that is not there.
var ErrUnknownNotice = errors.New("no such notice")

// Notice tells a person of a command that came too late to change anything, or
// that leaves money to be given back.
type Notice struct {
	ID            int64           `json:"id"`
	CommandID     uuid.UUID       `json:"commandId"`
	AggregateType string          `json:"aggregateType"`
	AggregateID   string          `json:"aggregateId"`
	Code          string          `json:"code"`
	Detail        json.RawMessage `json:"detail"`
	At            time.Time       `json:"at"`
	// AcknowledgedBy and AcknowledgedAt are nil until a person has seen to it.
	AcknowledgedBy *string    `json:"acknowledgedBy"`
	AcknowledgedAt *time.Time `json:"acknowledgedAt"`
}

const noticeColumns = `
  id,
  command_id,
  aggregate_type,
  aggregate_id,
  code,
  detail,
  at,
  acknowledged_by,
  acknowledged_at`

// Notices returns up to limit of those that nobody has acknowledged, with a
// higher id than after.
func (p *Primary) Notices(ctx context.Context, after int64, limit int) ([]Notice, error) {
	rows, err := p.pool.Query(ctx, `select `+noticeColumns+` from primary_notices
		where acknowledged_at is null and id > $1
		order by id
		limit $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list notices: %w", pg.Translate(err))
	}
	notices, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Notice])
	if err != nil {
		return nil, fmt.Errorf("list notices: %w", pg.Translate(err))
	}
	return notices, nil
}

// Acknowledge notes that a person has seen to a notice. The first one's name
// stays. ErrUnknownNotice.
func (p *Primary) Acknowledge(ctx context.Context, id int64, actor string) (Notice, error) {
	rows, err := p.pool.Query(ctx, `
		update primary_notices set
		  acknowledged_by = coalesce(acknowledged_by, $2),
		  acknowledged_at = coalesce(acknowledged_at, now())
		where id = $1
		returning `+noticeColumns, id, actor)
	if err != nil {
		return Notice{}, fmt.Errorf("acknowledge a notice: %w", pg.Translate(err))
	}
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Notice])
	if errors.Is(err, pgx.ErrNoRows) {
		return Notice{}, ErrUnknownNotice
	}
	if err != nil {
		return Notice{}, fmt.Errorf("acknowledge a notice: %w", pg.Translate(err))
	}
	return n, nil
}
