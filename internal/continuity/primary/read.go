package primary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// ErrUnknownKey is returned for a key that nothing is to be read under.
var ErrUnknownKey = errors.New("there is nothing under this key")

// The keys of reads, which are those of snapshots too:
//
//	order:<order id>                     an order, with what it was created with
//	payment:<payment id>                 a payment
//	orders:<company id>/<restaurant id>  the open orders of a restaurant, newest first
const (
	orderKey   = "order:"
	paymentKey = "payment:"
	ordersKey  = "orders:"
)

// OrderKey is the key of an order.
func OrderKey(orderID string) string { return orderKey + orderID }

// PaymentKey is the key of a payment.
func PaymentKey(paymentID string) string { return paymentKey + paymentID }

// OrdersKey is the key of a restaurant's open orders.
func OrdersKey(companyID, restaurantID string) string {
	return ordersKey + companyID + "/" + restaurantID
}

// maxOpenOrders keeps the list within a snapshot.
const maxOpenOrders = 300

// Read returns what is under a key, as a JSON object, or ErrUnknownKey.
func (p *Primary) Read(ctx context.Context, key string) (json.RawMessage, error) {
	var (
		query string
		args  []any
	)
	if id, ok := strings.CutPrefix(key, orderKey); ok {
		query, args = readOrder, []any{id}
	} else if id, ok := strings.CutPrefix(key, paymentKey); ok {
		query, args = readPayment, []any{id}
	} else if restaurant, ok := strings.CutPrefix(key, ordersKey); ok {
		company, restaurant, _ := strings.Cut(restaurant, "/")
		query, args = readOrders, []any{company, restaurant, maxOpenOrders}
	} else {
		return nil, ErrUnknownKey
	}
	var found json.RawMessage
	err := p.pool.QueryRow(ctx, query, args...).Scan(&found)
	if errors.Is(err, pgx.ErrNoRows) || pg.Code(err) == "22021" { // bytes that are no text
		return nil, ErrUnknownKey
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", pg.Translate(err))
	}
	return found, nil
}

const readOrder = `
	select jsonb_build_object(
	  'orderId', order_id,
	  'companyId', company_id,
	  'restaurantId', restaurant_id,
	  'status', status,
	  'version', version,
	  'paymentId', payment_id,
	  'createdAt', created_at,
	  'updatedAt', updated_at,
	  'details', details)
	from orders
	where order_id = $1`

const readPayment = `
	select jsonb_build_object(
	  'paymentId', payment_id,
	  'companyId', company_id,
	  'restaurantId', restaurant_id,
	  'orderId', order_id,
	  'status', status,
	  'version', version,
	  'amount', amount,
	  'method', method,
	  'createdAt', created_at,
	  'updatedAt', updated_at)
	from payments
	where payment_id = $1`

const readOrders = `
	with open as (
	  select
	    order_id,
	    status,
	    version,
	    created_at
	  from orders
	  where (company_id, restaurant_id) = ($1, $2)
	    and status in ('pending', 'paid', 'preparing')
	  order by created_at desc, order_id
	  limit $3 + 1
	), shown as (
	  select * from open order by created_at desc, order_id limit $3
	)
	select jsonb_build_object(
	  'orders', coalesce(jsonb_agg(jsonb_build_object(
	    'orderId', order_id,
	    'status', status,
	    'version', version,
	    'createdAt', created_at) order by created_at desc, order_id), '[]'),
	  'truncated', (select count(*) > $3 from open))
	from shown`

// Health is what the primary says of itself.
type Health struct {
	// OK: commands can be applied, as far as the database goes. Whether direct
	// writes are open is the mode's affair.
	OK bool `json:"ok"`
	// LeaseToken is the epoch under which direct writes are taken, if they are.
	LeaseToken continuity.Epoch `json:"lease_token"`
	// DBLagMS is how long the database took to answer, in milliseconds.
	DBLagMS int64            `json:"db_lag_ms"`
	Epoch   continuity.Epoch `json:"epoch"`
	Mode    continuity.Mode  `json:"mode"`
	// Open: direct writes under the epoch are taken.
	Open bool `json:"open"`
	// Unconfirmed: the hosted fence was not read for longer than a reading counts.
	Unconfirmed bool `json:"unconfirmed"`
}

// Health asks the database.
func (p *Primary) Health(ctx context.Context) (Health, error) {
	start := time.Now()
	var standby bool
	if err := p.pool.QueryRow(ctx, `select pg_is_in_recovery()`).Scan(&standby); err != nil {
		return Health{}, fmt.Errorf("health: %w", pg.Translate(err))
	}
	lag := time.Since(start)
	s, err := p.State(ctx)
	if err != nil {
		return Health{}, err
	}
	return Health{
		OK:          !standby,
		LeaseToken:  s.Epoch,
		DBLagMS:     lag.Milliseconds(),
		Epoch:       s.Epoch,
		Mode:        s.Mode,
		Open:        s.Direct(p.policy),
		Unconfirmed: !s.Leased,
	}, nil
}
