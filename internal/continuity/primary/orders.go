package primary

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/pg"
)

// order is a row of orders, locked until the transaction ends.
type order struct {
	tenant
	id        string
	status    Status
	version   int64
	paymentID *string
}

// orderResult is where an order stands after a command.
type orderResult struct {
	OrderID string `json:"orderId"`
	Status  Status `json:"status"`
	Version int64  `json:"version"`
	// Notice is the code of what a person is told, if anything.
	Notice string `json:"notice,omitempty"`
}

func (o order) result() orderResult {
	return orderResult{OrderID: o.id, Status: o.status, Version: o.version}
}

// createOrder takes a payload with companyId and restaurantId; everything else in
// it is kept as it is.
func createOrder(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var t tenant
	if err := c.decode(orderAggregate, &t); err != nil {
		return effect{}, err
	}
	if err := t.validate(); err != nil {
		return effect{}, err
	}
	if err := c.expected(0); err != nil {
		return effect{}, err
	}
	_, err := tx.Exec(ctx, `
		insert into orders (order_id, company_id, restaurant_id, details)
		values (@id, @company, @restaurant, @details)`,
		pgx.NamedArgs{"id": c.AggregateID, "company": t.CompanyID, "restaurant": t.RestaurantID, "details": c.payload})
	if pg.IsUnique(err, "orders_pkey") {
		return effect{}, fmt.Errorf("order %q: %w", c.AggregateID, ErrExists)
	}
	if err != nil {
		return effect{}, err
	}
	o := order{tenant: t, id: c.AggregateID, status: Pending, version: 1}
	return effect{kind: applied, result: o.result(), events: []event{o.event("order.created", "")}}, nil
}

func (o order) event(kind string, from Status) event {
	facts := map[string]any{"orderId": o.id, "status": o.status, "version": o.version}
	if from != "" {
		facts["from"] = from
	}
	if o.paymentID != nil {
		facts["paymentId"] = *o.paymentID
	}
	return event{
		kind:          kind,
		aggregateType: orderAggregate,
		aggregateID:   o.id,
		companyID:     o.CompanyID,
		restaurantID:  o.RestaurantID,
		facts:         facts,
	}
}

// loadOrder locks the order of the command and checks the version that the client
// saw.
func loadOrder(ctx context.Context, tx pgx.Tx, c command) (order, error) {
	o := order{id: c.AggregateID}
	err := tx.QueryRow(ctx, `
		select
		  company_id,
		  restaurant_id,
		  status,
		  version,
		  payment_id
		from orders
		where order_id = $1
		for update`, c.AggregateID).Scan(&o.CompanyID, &o.RestaurantID, &o.status, &o.version, &o.paymentID)
	if errors.Is(err, pgx.ErrNoRows) {
		return order{}, fmt.Errorf("order %q: %w", c.AggregateID, ErrUnknownAggregate)
	}
	if err != nil {
		return order{}, err
	}
	return o, c.expected(o.version)
}

// move takes the order to a status, as Judge says, and tells a person when it was
// overtaken.
func (o order) move(ctx context.Context, tx pgx.Tx, to Status, overtaken notice) (effect, error) {
	verdict, err := Judge(o.status, to)
	if err != nil {
		return effect{}, fmt.Errorf("order %q: %w", o.id, err)
	}
	if verdict == There {
		return effect{kind: noop, result: o.result()}, nil
	}
	if verdict == Overtaken {
		return o.noticed(noop, overtaken), nil
	}
	from := o.status
	o.status, o.version = to, o.version+1
	e, err := o.write(ctx, tx, o.event("order.status_changed", from))
	if err != nil {
		return effect{}, err
	}
	if to == Cancelled && from != Pending {
		n := notice{code: NoticeRefundDue, detail: map[string]any{"from": from, "paymentId": o.paymentID}}
		e.result, e.notice = o.noticed(applied, n).result, &n
	}
	return e, nil
}

// write stores what has become of the order, and tells of it.
func (o order) write(ctx context.Context, tx pgx.Tx, ev event) (effect, error) {
	_, err := tx.Exec(ctx, `
		update orders set
		  status = @status,
		  version = @version,
		  payment_id = @payment,
		  updated_at = now()
		where order_id = @id`,
		pgx.NamedArgs{"status": o.status, "version": o.version, "payment": o.paymentID, "id": o.id})
	return effect{kind: applied, result: o.result(), events: []event{ev}}, err
}

// noticed is an effect that a person sees, and that tells nobody else.
func (o order) noticed(kind string, n notice) effect {
	if n.detail == nil {
		n.detail = map[string]any{}
	}
	n.detail["status"] = o.status
	result := o.result()
	result.Notice = n.code
	return effect{kind: kind, result: result, notice: &n}
}

// updateStatus takes {status}. Paid and cancelled have commands of their own, and
// come this way too.
func updateStatus(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var body struct {
		Status Status `json:"status"`
	}
	if err := c.decode(orderAggregate, &body); err != nil {
		return effect{}, err
	}
	if body.Status == "" {
		return effect{}, fmt.Errorf("%w: a status is missing", continuity.ErrInvalid)
	}
	o, err := loadOrder(ctx, tx, c)
	if err != nil {
		return effect{}, err
	}
	return o.move(ctx, tx, body.Status, notice{code: NoticeOvertaken, detail: map[string]any{"wanted": body.Status}})
}

// cancelOrder takes an optional reason.
func cancelOrder(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := c.decode(orderAggregate, &body); err != nil {
		return effect{}, err
	}
	o, err := loadOrder(ctx, tx, c)
	if err != nil {
		return effect{}, err
	}
	return o.move(ctx, tx, Cancelled, notice{code: NoticeOvertaken, detail: map[string]any{"wanted": Cancelled, "reason": body.Reason}})
}

// confirmPayment takes {transactionId, amount?, method?} from whoever was paid.
// The payment is entered under the transaction's id together with the order's
// move. One that comes when the order is over changes nothing, and a person sees
// what is to be given back.
func confirmPayment(ctx context.Context, tx pgx.Tx, c command) (effect, error) {
	var body struct {
		TransactionID string `json:"transactionId"`
		Amount        amount `json:"amount"`
		Method        string `json:"method"`
	}
	if err := c.decode(orderAggregate, &body); err != nil {
		return effect{}, err
	}
	if strings.TrimSpace(body.TransactionID) == "" || len(body.TransactionID) > maxAggregateID {
		return effect{}, fmt.Errorf("%w: transactionId is not blank, and has up to %d bytes", continuity.ErrInvalid, maxAggregateID)
	}
	o, err := loadOrder(ctx, tx, c)
	if err != nil {
		return effect{}, err
	}
	late := notice{detail: map[string]any{"transactionId": body.TransactionID, "amount": body.Amount}}
	switch {
	case o.paymentID != nil && *o.paymentID == body.TransactionID:
		return effect{kind: noop, result: o.result()}, nil
	case o.status == Cancelled || o.status == Refunded:
		late.code = NoticePaidAfterEnd
		return o.noticed(noop, late), nil
	case o.paymentID != nil:
		late.code = NoticePaidTwice
		return o.noticed(noop, late), nil
	}
	p := payment{
		tenant: o.tenant, id: body.TransactionID, orderID: &o.id, status: approved,
		amount: body.Amount, method: body.Method, details: c.payload,
	}
	entered, err := p.enter(ctx, tx)
	if err != nil {
		return effect{}, err
	}
	if entered.notice != nil { // The transaction was given back before it was confirmed.
		late.code = NoticePaidAfterEnd
		return o.noticed(noop, late), nil
	}
	o.paymentID = &body.TransactionID
	e, err := o.pay(ctx, tx)
	e.events = append(e.events, entered.events...)
	return e, err
}

// pay moves a pending order, and gives the payment to one that a status has
// called paid before.
func (o order) pay(ctx context.Context, tx pgx.Tx) (effect, error) {
	if o.status == Pending {
		return o.move(ctx, tx, Paid, notice{})
	}
	o.version++
	return o.write(ctx, tx, o.event("order.payment_confirmed", ""))
}
