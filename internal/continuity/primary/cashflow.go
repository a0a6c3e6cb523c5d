package primary

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// recordCashflow takes {companyId, restaurantId, kind: income|expense, amount};
// everything else in it is kept. An entry never changes.
func recordCashflow(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var body struct {
		tenant
		Kind   string `json:"kind"`
		Amount amount `json:"amount"`
	}
	if err := c.decode(cashflowAggregate, &body); err != nil {
		return effect{}, err
	}
	if err := body.validate(); err != nil {
		return effect{}, err
	}
	if body.Kind != "income" && body.Kind != "expense" || body.Amount == "" {
		return effect{}, fmt.Errorf("%w: kind is income or expense, and an amount is needed", continuity.ErrInvalid)
	}
	if err := c.expected(0); err != nil {
		return effect{}, err
	}
	_, err := tx.Exec(ctx, `
		insert into cashflow_entries (entry_id, company_id, restaurant_id, kind, amount, details)
		values (@id, @company, @restaurant, @kind, @amount::text::numeric, @details)`,
		pgx.NamedArgs{
			"id": c.AggregateID, "company": body.CompanyID, "restaurant": body.RestaurantID,
			"kind": body.Kind, "amount": body.Amount.sql(), "details": c.payload,
		})
	if pg.IsUnique(err, "cashflow_entries_pkey") {
		return effect{}, fmt.Errorf("cashflow entry %q: %w", c.AggregateID, ErrExists)
	}
	if err != nil {
		return effect{}, err
	}
	return effect{
		kind:   applied,
		result: map[string]any{"entryId": c.AggregateID},
		events: []event{{
			kind:          "cashflow.recorded",
			aggregateType: cashflowAggregate,
			aggregateID:   c.AggregateID,
			companyID:     body.CompanyID,
			restaurantID:  body.RestaurantID,
			facts:         map[string]any{"entryId": c.AggregateID, "kind": body.Kind, "amount": body.Amount},
		}},
	}, nil
}
