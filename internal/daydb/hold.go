package daydb

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Hold is a legal hold: while it is set nothing destructive happens.
type Hold struct {
	Reason string    `json:"reason"`
	Actor  string    `json:"actor"`
	Since  time.Time `json:"since"`
}

// SetHold puts a legal hold on a day, or changes its reason. It needs no lease:
// a hold only ever stops things.
func SetHold(ctx context.Context, tx pgx.Tx, name, reason, actor string) (DayDB, error) {
	return changeHold(ctx, tx, name, `hold_reason = @reason, hold_by = @actor, hold_since = coalesce(hold_since, now())`,
		pgx.NamedArgs{"reason": reason, "actor": actor})
}

// ClearHold lifts a legal hold; lifting none is no error.
func ClearHold(ctx context.Context, tx pgx.Tx, name string) (DayDB, error) {
	return changeHold(ctx, tx, name, `hold_reason = null, hold_by = null, hold_since = null`, pgx.NamedArgs{})
}

func changeHold(ctx context.Context, tx pgx.Tx, name, assignments string, args pgx.NamedArgs) (DayDB, error) {
	args["name"] = name
	if _, err := tx.Exec(ctx, `update day_databases set `+assignments+` where db_name = @name`, args); err != nil {
		return DayDB{}, fmt.Errorf("hold of %s: %w", name, translate(err))
	}
	return Load(ctx, tx, name)
}
