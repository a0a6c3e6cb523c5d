package primary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// command is a command with its payload in canonical form.
type command struct {
	continuity.Command
	payload []byte
}

// effect is what a command has done.
type effect struct {
	kind   string
	result any
	events []event
	// notice is for a person, nil for none.
	notice *notice
}

// event tells of an effect. Its payload is compact: who wants more reads the
// aggregate.
type event struct {
	kind          string
	aggregateType string
	aggregateID   string
	companyID     string
	restaurantID  string
	facts         map[string]any
}

func (e event) payload(c continuity.Command) map[string]any {
	all := map[string]any{
		"companyId":    e.companyID,
		"restaurantId": e.restaurantID,
		"commandId":    c.CommandID,
		"commandType":  c.CommandType,
	}
	for k, v := range e.facts {
		all[k] = v
	}
	return all
}

// The codes of notices.
const (
	// NoticePaidAfterEnd: a payment was confirmed for an order that was over.
	NoticePaidAfterEnd = "payment_after_end"
	// NoticePaidTwice: a second transaction has paid for an order.
	NoticePaidTwice = "paid_twice"
	// NoticeRefundDue: an order was cancelled after it was paid for.
	NoticeRefundDue = "refund_due"
	// NoticeOvertaken: a status came after the order had gone beyond it.
	NoticeOvertaken = "overtaken"
)

type notice struct {
	code   string
	detail map[string]any
}

// handlers has one for each essential type. A handler has the effect in the
// transaction of the inbox, and knows neither of keys nor of epochs.
var handlers = map[string]func(context.Context, pgx.Tx, command) (effect, error){
	"order.create":          createOrder,
	"order.update_status":   updateStatus,
	"order.confirm_payment": confirmPayment,
	"order.cancel":          cancelOrder,
	"payment.record":        recordPayment,
	"cashflow.record":       recordCashflow,
}

// The types of aggregates.
const (
	orderAggregate    = "order"
	paymentAggregate  = "payment"
	cashflowAggregate = "cashflow"
)

// decode reads the payload, and refuses a command of another aggregate's type.
func (c command) decode(aggregateType string, into any) error {
	if c.AggregateType != aggregateType {
		return fmt.Errorf("%w: %s is about an aggregate of type %q", continuity.ErrInvalid, c.CommandType, aggregateType)
	}
	if len(c.payload) == 0 || c.payload[0] != '{' {
		return fmt.Errorf("%w: the payload is no object", continuity.ErrInvalid)
	}
	if err := json.Unmarshal(c.payload, into); err != nil {
		return fmt.Errorf("%w: payload: %w", continuity.ErrInvalid, err)
	}
	return nil
}

// tenant is in the payload of whatever creates an aggregate.
type tenant struct {
	CompanyID    string `json:"companyId"`
	RestaurantID string `json:"restaurantId"`
}

func (t tenant) validate() error {
	if !contracts.ValidID(t.CompanyID) || !contracts.ValidID(t.RestaurantID) {
		return fmt.Errorf("%w: companyId and restaurantId are each 1 to 64 of a-z, 0-9 and -", continuity.ErrInvalid)
	}
	return nil
}

// amount is a decimal number, as JSON's number or in a string; empty for none.
type amount string

var decimal = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,6})?$`)

// UnmarshalJSON reads either form, and refuses a sign, an exponent and null.
func (a *amount) UnmarshalJSON(text []byte) error {
	s := string(text)
	if len(text) > 0 && text[0] == '"' {
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
	}
	if !decimal.MatchString(s) {
		return errors.New("an amount has up to 15 digits, and up to 6 behind the point")
	}
	*a = amount(s)
	return nil
}

// sql is the amount as an argument, cast from text in the statement.
func (a amount) sql() *string {
	if a == "" {
		return nil
	}
	s := string(a)
	return &s
}

// expected checks the version that the client saw.
func (c command) expected(version int64) error {
	if c.ExpectedVersion != nil && *c.ExpectedVersion != version {
		return fmt.Errorf("%w: %d, not %d", ErrVersionConflict, version, *c.ExpectedVersion)
	}
	return nil
}
