package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
)

// command is what a client sends to an edge.
type command struct {
	IdempotencyKey string         `json:"idempotencyKey"`
	CommandType    string         `json:"commandType"`
	AggregateType  string         `json:"aggregateType"`
	AggregateID    string         `json:"aggregateId"`
	Payload        map[string]any `json:"payload"`
	OccurredAt     *time.Time     `json:"occurredAt,omitempty"`

	// post is that of a webhook, which an edge makes the command of by itself.
	post func(base string) (url, body string, headers map[string]string)
}

// answer is what an edge says to a command.
type answer struct {
	Status       int    `json:"-"`
	Applied      string `json:"applied"`
	CommandID    string `json:"commandId"`
	Deduplicated bool   `json:"deduplicated"`
	Code         string `json:"code"`
}

// taken reports whether the edge has promised that the command has its effect.
func (a answer) taken() bool {
	return a.Status == http.StatusOK || a.Status == http.StatusAccepted
}

// The ways of a command that was taken.
const (
	byPrimary = "primary"
	byQueue   = "queued"
)

// answerWithin is longer than an edge takes for a command.
const answerWithin = 40 * time.Second

var client = &http.Client{Timeout: answerWithin}

// send sends a command once. An edge that does not answer is an error; whatever
// it took is in the ledger when send returns.
func (s *site) send(ctx context.Context, edge int, c command) (answer, error) {
	base := "http://" + s.edges[edge].addr
	url, headers := base+"/v1/commands", map[string]string{"Authorization": "Bearer " + s.edgeToken}
	var body string
	if c.post != nil {
		url, body, headers = c.post(base)
	} else {
		text, err := json.Marshal(c)
		if err != nil {
			return answer{}, err
		}
		body = string(text)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{Status: res.StatusCode}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("the answer to %s (%d): %w", c.IdempotencyKey, res.StatusCode, err)
	}
	if a.taken() {
		s.ledger.accept(c, a)
	}
	return a, nil
}

// take sends a command, with the same key and to the edges in turn, until one
// takes it, as a till does. A refusal for good is an error.
func (s *site) take(ctx context.Context, edge int, c command) (answer, error) {
	var taken answer
	began := time.Now()
	defer func() { s.ledger.waited(time.Since(began)) }()
	err := until(ctx, c.IdempotencyKey+" is taken", func(ctx context.Context) (bool, error) {
		a, err := s.send(ctx, edge%len(s.edges), c)
		edge++
		if err != nil || a.Status >= http.StatusInternalServerError {
			return false, nil
		}
		if !a.taken() {
			return false, fmt.Errorf("%s %s: refused with %d %s", c.CommandType, c.IdempotencyKey, a.Status, a.Code)
		}
		taken = a
		return true, nil
	})
	return taken, err
}

// write sends a command to the primary itself, once, under an epoch.
func (s *site) write(ctx context.Context, c command, epoch continuity.Epoch) (taken bool, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.serve.addr+"/internal/commands", bytes.NewReader(text))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.serviceToken)
	req.Header.Set("X-Continuity-Epoch", strconv.FormatInt(int64(epoch), 10))
	req.Header.Set("X-Command-Id", uuid.NewString())
	res, err := client.Do(req)
	if err != nil {
		return false, err
	}
	return res.StatusCode == http.StatusOK, res.Body.Close()
}

type health struct {
	CircuitState string `json:"circuit_state"`
	FenceMode    string `json:"fence_mode"`
	Epoch        int64  `json:"epoch"`
}

func (s *site) health(ctx context.Context, edge *child) (health, error) {
	var h health
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edge.addr+"/api/_health", nil)
	if err != nil {
		return h, err
	}
	res, err := client.Do(req)
	if err != nil {
		return h, err
	}
	defer res.Body.Close()
	return h, json.NewDecoder(res.Body).Decode(&h)
}

// The commands.

const (
	orders   = "order"
	cashflow = "cashflow"
)

// tenant is the payload of whatever is made under an id.
func tenant(id string, more map[string]any) map[string]any {
	all := map[string]any{"companyId": company, "restaurantId": restaurantOf(id)}
	for name, value := range more {
		all[name] = value
	}
	return all
}

func (s *site) create(order string) command {
	return command{IdempotencyKey: "create:" + order, CommandType: "order.create", AggregateType: orders, AggregateID: order,
		Payload: tenant(order, map[string]any{"total": 12990})}
}

func (s *site) status(order, status string) command {
	return command{IdempotencyKey: status + ":" + order, CommandType: "order.update_status", AggregateType: orders, AggregateID: order,
		Payload: map[string]any{"status": status}}
}

func (s *site) cancel(order string) command {
	return command{IdempotencyKey: "cancel:" + order, CommandType: "order.cancel", AggregateType: orders, AggregateID: order,
		Payload: map[string]any{"reason": "the guest has left"}}
}

// cashflow is an entry of its own, of no order.
func (s *site) cashflow() command {
	id := "cash-" + rand.Text()
	return command{IdempotencyKey: id, CommandType: "cashflow.record", AggregateType: cashflow, AggregateID: id,
		Payload: tenant(id, map[string]any{"kind": "income", "amount": "10.00"})}
}

// pix is C6 Bank's webhook of a payment.
func (s *site) pix(order string) command {
	return command{IdempotencyKey: "c6:pix:" + order, CommandType: "order.confirm_payment", AggregateType: orders, AggregateID: order,
		post: func(base string) (string, string, map[string]string) {
			return base + "/v1/webhooks/c6", fmt.Sprintf(`{"pix":[{"endToEndId":"E%s","txid":%q,"valor":"129.90"}]}`, order, order),
				map[string]string{"Authorization": "Bearer " + s.secrets.c6}
		}}
}

// mercadoPago is Mercado Pago's webhook of a payment, signed at a time.
func (s *site) mercadoPago(payment, order string, at time.Time) command {
	return s.signedMercadoPago(payment, order, at, s.secrets.mercadoPago)
}

func (s *site) signedMercadoPago(payment, order string, at time.Time, secret string) command {
	return command{IdempotencyKey: "mercadopago:payment:" + payment, CommandType: "order.confirm_payment", AggregateType: orders, AggregateID: order,
		post: func(base string) (string, string, map[string]string) {
			ts, request := strconv.FormatInt(at.UnixMilli(), 10), "r-"+payment
			mac := hmac.New(sha256.New, []byte(secret))
			fmt.Fprintf(mac, "id:%s;request-id:%s;ts:%s;", payment, request, ts)
			return base + "/v1/webhooks/mercadopago?data.id=" + payment,
				fmt.Sprintf(`{"type":"payment","data":{"id":%q,"status":"approved","external_reference":%q,"total_paid_amount":"129.90"}}`, payment, order),
				map[string]string{"X-Request-Id": request, "X-Signature": "ts=" + ts + ",v1=" + hex.EncodeToString(mac.Sum(nil))}
		}}
}
