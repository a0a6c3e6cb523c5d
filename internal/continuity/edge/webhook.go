package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// maxWebhook bounds the body of a webhook. Those of a provider are small.
const maxWebhook = 64 << 10

const (
	confirmPayment = "order.confirm_payment"
	orderAggregate = "order"
)

// confirmation is a payment that a provider says is made.
type confirmation struct {
	provider string
	// key is derived from the transaction: however often the provider tells of it,
	// or the shop asks for it, it is one command.
	key string
	// order is the reference that the shop has given to the payment.
	order   string
	payload payload
}

// payload is that of the command, with no more about the payer than is needed.
type payload struct {
	TransactionID string `json:"transactionId"`
	Amount        string `json:"amount,omitempty"`
	Currency      string `json:"currency,omitempty"`
	Method        string `json:"method"`
	EndToEndID    string `json:"endToEndId,omitempty"`
}

// commandSpace makes the command id of a webhook of its key, so that a
// redelivery carries the same.
var commandSpace = uuid.MustParse("5b0f1c0e-6d0b-4a7e-9d5c-0f6c7f0a9b61")

func (p confirmation) command() (continuity.Command, error) {
	body, err := json.Marshal(p.payload)
	if err != nil {
		return continuity.Command{}, err
	}
	for _, name := range []struct{ field, value string }{
		{"transaction", p.key},
		{"reference", p.order},
	} {
		if err := checkName(name.field, name.value); err != nil {
			return continuity.Command{}, err
		}
	}
	return continuity.Command{
		CommandID:      uuid.NewSHA1(commandSpace, []byte(p.key)),
		IdempotencyKey: p.key,
		CommandType:    confirmPayment,
		AggregateType:  orderAggregate,
		AggregateID:    p.order,
		Payload:        body,
	}, nil
}

// What became of a webhook, in the metrics.
const (
	webhookIgnored = "ignored"
	webhookRefused = "refused"
	webhookForged  = "forged"
)

// confirm hands payments to the router and answers with where they went: 200 if
// the primary has all of them, 202 if the queue has some. If one is refused, so
// is the webhook: the provider sends it again, and those that were taken are
// recognized by their keys.
func (e *Edge) confirm(c echo.Context, provider string, payments []confirmation) error {
	var results []outcome
	status := http.StatusOK
	for _, p := range payments {
		cmd, err := p.command()
		if err != nil {
			return e.webhookRefused(c, provider, err)
		}
		setCommandID(c, cmd.CommandID)
		out, err := e.write(c.Request().Context(), cmd)
		if err != nil {
			return e.webhookRefused(c, provider, err)
		}
		e.metrics.webhooks.WithLabelValues(provider, string(out.Applied)).Inc()
		results = append(results, out)
		status = max(status, out.httpStatus())
	}
	if len(results) == 1 {
		return c.JSON(status, results[0])
	}
	return c.JSON(status, map[string]any{"results": results})
}

// webhookRefused counts a refusal. A payment that was told of with other facts
// before is for a person to look at.
func (e *Edge) webhookRefused(c echo.Context, provider string, err error) error {
	e.metrics.webhooks.WithLabelValues(provider, webhookRefused).Inc()
	var refusal *router.Refusal
	if errors.As(err, &refusal) && refusal.Code == contracts.CodeInvalidCommand {
		e.log.ErrorContext(c.Request().Context(), "webhook does not fit what is known of its payment", "provider", provider, "error", err)
	}
	return fmt.Errorf("webhook of %s: %w", provider, err)
}

// ignore answers a webhook that is right and asks for nothing.
func (e *Edge) ignore(c echo.Context, provider, reason string) error {
	e.metrics.webhooks.WithLabelValues(provider, webhookIgnored).Inc()
	e.log.InfoContext(c.Request().Context(), "webhook ignored", "provider", provider, "reason", reason)
	return c.JSON(http.StatusOK, map[string]string{"applied": webhookIgnored, "reason": reason})
}

// forged refuses a webhook whose sender has not proven who it is.
func (e *Edge) forged(c echo.Context, provider string) error {
	e.metrics.webhooks.WithLabelValues(provider, webhookForged).Inc()
	e.log.WarnContext(c.Request().Context(), "webhook not authentic", "provider", provider)
	return &refused{status: http.StatusUnauthorized, code: codeInvalidSignature, detail: "the signature or the token of the webhook is not right"}
}

func notConfigured(provider string) error {
	return &refused{
		status:     http.StatusServiceUnavailable,
		code:       codeNotConfigured,
		retryAfter: retryAfterWebhook,
		detail:     "this edge has no secret for the webhooks of " + provider,
	}
}
