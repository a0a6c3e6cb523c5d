package primary

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
)

// paymentStatus is where a payment stands. All but pending end its life, but that
// an approved one can be given back.
type paymentStatus string

const (
	awaited  paymentStatus = "pending"
	approved paymentStatus = "approved"
	rejected paymentStatus = "rejected"
	refunded paymentStatus = "refunded"
	voided   paymentStatus = "voided"
)

// paymentMoves says where each status leads.
var paymentMoves = map[paymentStatus][]paymentStatus{
	awaited:  {approved, rejected, voided},
	approved: {refunded, voided},
	rejected: nil,
	refunded: nil,
	voided:   nil,
}

type payment struct {
	tenant
	id      string
	orderID *string
	status  paymentStatus
	version int64
	amount  amount
	method  string
	details []byte
}

type paymentResult struct {
	PaymentID string        `json:"paymentId"`
	Status    paymentStatus `json:"status"`
	Version   int64         `json:"version"`
	Notice    string        `json:"notice,omitempty"`
}

// recordPayment takes {companyId, restaurantId, status, orderId?, amount?,
// method?}; everything else in it is kept. A payment that is there already moves
// to the status, or stays where it is and a person sees that it was overtaken.
func recordPayment(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var body struct {
		tenant
		OrderID *string       `json:"orderId"`
		Status  paymentStatus `json:"status"`
		Amount  amount        `json:"amount"`
		Method  string        `json:"method"`
	}
	if err := c.decode(paymentAggregate, &body); err != nil {
		return effect{}, err
	}
	if err := body.validate(); err != nil {
		return effect{}, err
	}
	if _, ok := paymentMoves[body.Status]; !ok {
		return effect{}, fmt.Errorf("%w: there is no such status of a payment", continuity.ErrInvalid)
	}
	if body.OrderID != nil && len(*body.OrderID) > maxAggregateID {
		return effect{}, fmt.Errorf("%w: orderId has up to %d bytes", continuity.ErrInvalid, maxAggregateID)
	}
	p := payment{
		tenant: body.tenant, id: c.AggregateID, orderID: body.OrderID, status: body.Status,
		amount: body.Amount, method: body.Method, details: c.payload,
	}
	version := int64(0)
	known, err := loadPayment(ctx, tx, p.id)
	if err == nil {
		version = known.version
	} else if !errors.Is(err, ErrUnknownAggregate) {
		return effect{}, err
	}
	if err := c.expected(version); err != nil {
		return effect{}, err
	}
	return p.enter(ctx, tx)
}

func loadPayment(ctx context.Context, tx pgx.Tx, id string) (payment, error) {
	p := payment{id: id}
	err := tx.QueryRow(ctx, `
		select
		  company_id,
		  restaurant_id,
		  order_id,
		  status,
		  version
		from payments
		where payment_id = $1
		for update`, id).Scan(&p.CompanyID, &p.RestaurantID, &p.orderID, &p.status, &p.version)
	if errors.Is(err, pgx.ErrNoRows) {
		return payment{}, fmt.Errorf("payment %q: %w", id, ErrUnknownAggregate)
	}
	return p, err
}

// enter writes a payment, or moves the one that is there under its id.
func (p payment) enter(ctx context.Context, tx pgx.Tx) (effect, error) {
	p.version = 1
	entered, err := tx.Exec(ctx, `
		insert into payments (payment_id, company_id, restaurant_id, order_id, status, amount, method, details)
		values (@id, @company, @restaurant, @order, @status, @amount::text::numeric, nullif(@method, ''), @details)
		on conflict on constraint payments_pkey do nothing`,
		pgx.NamedArgs{
			"id": p.id, "company": p.CompanyID, "restaurant": p.RestaurantID, "order": p.orderID,
			"status": p.status, "amount": p.amount.sql(), "method": p.method, "details": p.details,
		})
	if err != nil {
		return effect{}, err
	}
	if entered.RowsAffected() > 0 {
		return effect{kind: applied, result: p.result(), events: []event{p.event()}}, nil
	}
	known, err := loadPayment(ctx, tx, p.id)
	if err != nil {
		return effect{}, err
	}
	if known.tenant != p.tenant || known.orderID != nil && p.orderID != nil && *known.orderID != *p.orderID {
		return effect{}, fmt.Errorf("payment %q of another order: %w", p.id, ErrExists)
	}
	return known.move(ctx, tx, p.status)
}

func (p payment) move(ctx context.Context, tx pgx.Tx, to paymentStatus) (effect, error) {
	if p.status == to {
		return effect{kind: noop, result: p.result()}, nil
	}
	if !slices.Contains(paymentMoves[p.status], to) {
		result := p.result()
		result.Notice = NoticeOvertaken
		return effect{kind: noop, result: result, notice: &notice{
			code:   NoticeOvertaken,
			detail: map[string]any{"status": p.status, "wanted": to},
		}}, nil
	}
	p.status, p.version = to, p.version+1
	_, err := tx.Exec(ctx, `
		update payments set
		  status = @status,
		  version = @version,
		  updated_at = now()
		where payment_id = @id`,
		pgx.NamedArgs{"status": p.status, "version": p.version, "id": p.id})
	if err != nil {
		return effect{}, err
	}
	return effect{kind: applied, result: p.result(), events: []event{p.event()}}, nil
}

func (p payment) result() paymentResult {
	return paymentResult{PaymentID: p.id, Status: p.status, Version: p.version}
}

func (p payment) event() event {
	facts := map[string]any{"paymentId": p.id, "status": p.status, "version": p.version}
	if p.orderID != nil {
		facts["orderId"] = *p.orderID
	}
	return event{
		kind:          "payment.recorded",
		aggregateType: paymentAggregate,
		aggregateID:   p.id,
		companyID:     p.CompanyID,
		restaurantID:  p.RestaurantID,
		facts:         facts,
	}
}
