package edge

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

const mercadoPagoName = "mercadopago"

// MercadoPagoAPI is where payments are looked up.
const MercadoPagoAPI = "https://api.mercadopago.com"

// lookups are the paths by which each kind of news is looked up.
var lookups = map[string]string{"payment": "/v1/payments/", "order": "/v1/orders/"}

// lookupTimeout bounds the look-up of a payment. The provider waits for the
// answer to its webhook some 20 seconds.
const lookupTimeout = 5 * time.Second

// MercadoPagoOptions of the webhooks.
type MercadoPagoOptions struct {
	// Secret signs the webhooks.
	Secret string
	// AccessToken looks payments and orders up. A webhook of a payment says that
	// there is news of it and not which: it comes for one that waits, too. Without
	// the token only webhooks that carry the status are taken, and whoever gets
	// hold of a signature can tell what he likes of its payment.
	AccessToken string
	// API is MercadoPagoAPI unless it is set.
	API string
}

// MercadoPago verifies webhooks and finds what they are about.
type MercadoPago struct {
	opts   MercadoPagoOptions
	client *http.Client
}

// ValidMercadoPagoAPI reports whether an address, or "" for MercadoPagoAPI, is
// one that the access token may be sent to: over TLS, or on loopback.
func ValidMercadoPagoAPI(address string) bool {
	if address == "" {
		return true
	}
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()))
}

// NewMercadoPago returns it.
func NewMercadoPago(opts MercadoPagoOptions) *MercadoPago {
	if opts.API == "" {
		opts.API = MercadoPagoAPI
	}
	opts.API = strings.TrimRight(opts.API, "/")
	return &MercadoPago{opts: opts, client: &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			TLSHandshakeTimeout: 3 * time.Second,
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     time.Minute,
		},
		// A redirect would take the access token along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// notification is the body of a webhook. There are more fields, and will be.
type notification struct {
	Type   string `json:"type"`
	Action string `json:"action"`
	Data   struct {
		ID                textOrNumber `json:"id"`
		Status            string       `json:"status"`
		StatusDetail      string       `json:"status_detail"`
		ExternalReference string       `json:"external_reference"`
		TotalPaidAmount   textOrNumber `json:"total_paid_amount"`
	} `json:"data"`
}

// textOrNumber is an id or an amount, which comes in either form.
type textOrNumber string

// UnmarshalJSON keeps the digits as they are.
func (t *textOrNumber) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(t))
	}
	var n json.Number
	if err := json.Unmarshal(raw, &n); err != nil {
		return err
	}
	*t = textOrNumber(n)
	return nil
}

// mercadoPago takes POST /v1/webhooks/mercadopago.
func (e *Edge) mercadoPago(c echo.Context) error {
	m := e.opts.MercadoPago
	if m == nil {
		return notConfigured(mercadoPagoName)
	}
	body, err := readBody(c, maxWebhook)
	if err != nil {
		return err
	}
	// Nothing of the body counts before the signature has been checked: it may be
	// what the signature is about, if the query does not say.
	var n notification
	notJSON := json.Unmarshal(body, &n)
	id := c.QueryParam("data.id")
	if id == "" {
		id = string(n.Data.ID)
	}
	if !m.authentic(c.Request().Header, id) {
		return e.forged(c, mercadoPagoName)
	}
	if notJSON != nil {
		return e.webhookRefused(c, mercadoPagoName, invalid("", "the body is not JSON as Mercado Pago sends it"))
	}
	if !strings.EqualFold(id, string(n.Data.ID)) {
		return e.webhookRefused(c, mercadoPagoName, invalid("data.id", "the body is about another payment than the signature"))
	}
	kind := n.Type
	if kind == "" {
		kind = c.QueryParam("type")
	}
	if lookups[kind] == "" {
		return e.ignore(c, mercadoPagoName, "not about a payment")
	}
	p, err := m.payment(c.Request().Context(), kind, n)
	if err != nil {
		return e.webhookRefused(c, mercadoPagoName, err)
	}
	if !p.made() {
		return e.ignore(c, mercadoPagoName, "the payment is not made, or not any more")
	}
	if p.order == "" {
		return e.ignore(c, mercadoPagoName, "the payment has no reference: it is of no order")
	}
	return e.confirm(c, mercadoPagoName, []confirmation{{
		provider: mercadoPagoName,
		// Ids differ in more than their case, and the signature may not say which.
		key:   mercadoPagoName + ":" + kind + ":" + strings.ToLower(string(n.Data.ID)),
		order: p.order,
		payload: payload{
			TransactionID: string(n.Data.ID),
			Amount:        p.amount,
			Currency:      p.currency,
			Method:        mercadoPagoName,
		},
	}})
}

// resourceID keeps an id from passing for several parts of what is signed.
var resourceID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// authentic checks the header x-signature: ts=<time>,v1=<hex of an HMAC-SHA256>.
// What is signed are the id, the request's id and that time, and a part that is
// missing is left out. The id counts as it came, or in lower case, as earlier
// versions of the provider signed it.
//
// The time is not compared with a clock. A webhook that is replayed has the key
// that it had, and a clock that is ten minutes off would turn payments away.
func (m *MercadoPago) authentic(header http.Header, id string) bool {
	var ts, v1 string
	for part := range strings.SplitSeq(header.Get("X-Signature"), ",") {
		switch name, value, _ := strings.Cut(part, "="); strings.TrimSpace(name) {
		case "ts":
			ts = strings.TrimSpace(value)
		case "v1":
			v1 = strings.TrimSpace(value)
		}
	}
	given, err := hex.DecodeString(v1)
	if err != nil || len(given) != sha256.Size || ts == "" || !resourceID.MatchString(id) {
		return false
	}
	requestID := header.Get("X-Request-Id")
	as, lower := m.sign(id, requestID, ts), m.sign(strings.ToLower(id), requestID, ts)
	return hmac.Equal(given, as) || hmac.Equal(given, lower)
}

func (m *MercadoPago) sign(id, requestID, ts string) []byte {
	mac := hmac.New(sha256.New, []byte(m.opts.Secret))
	fmt.Fprintf(mac, "id:%s;", id)
	if requestID != "" {
		fmt.Fprintf(mac, "request-id:%s;", requestID)
	}
	fmt.Fprintf(mac, "ts:%s;", ts)
	return mac.Sum(nil)
}

// facts are what matters of a payment.
type facts struct {
	status   string
	detail   string
	order    string
	amount   string
	currency string
}

// made reports whether the money is there: approved is the word for a payment,
// processed that for an order, which an order stays when it was given back.
func (f facts) made() bool {
	return f.status == "approved" || f.status == "processed" && f.detail != "refunded"
}

// payment looks up what the notification is about, or takes what it carries,
// which the signature does not cover.
func (m *MercadoPago) payment(ctx context.Context, kind string, n notification) (facts, error) {
	if m.opts.AccessToken != "" {
		f, err := m.lookUp(ctx, lookups[kind]+url.PathEscape(string(n.Data.ID)))
		if err != nil {
			return facts{}, &refused{
				status:     http.StatusServiceUnavailable,
				code:       codePaymentUnknown,
				retryAfter: retryAfterWebhook,
				detail:     "Mercado Pago does not say what became of the payment; send the webhook again",
				cause:      err,
			}
		}
		return f, nil
	}
	if n.Data.Status == "" {
		return facts{}, &refused{
			status:     http.StatusServiceUnavailable,
			code:       codePaymentUnknown,
			retryAfter: retryAfterWebhook,
			detail:     "the webhook does not say whether the payment is made, and without MERCADOPAGO_ACCESS_TOKEN it cannot be looked up",
		}
	}
	return facts{
		status: n.Data.Status,
		detail: n.Data.StatusDetail,
		order:  n.Data.ExternalReference,
		amount: string(n.Data.TotalPaidAmount),
	}, nil
}

var errLookup = errors.New("look the payment up")

// lookUp asks Mercado Pago for a payment or an order.
func (m *MercadoPago) lookUp(ctx context.Context, path string) (facts, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.opts.API+path, nil)
	if err != nil {
		return facts{}, errLookup
	}
	req.Header.Set("Authorization", "Bearer "+m.opts.AccessToken)
	resp, err := m.client.Do(req)
	if err != nil {
		return facts{}, fmt.Errorf("%w: %w", errLookup, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return facts{}, fmt.Errorf("%w: status %d", errLookup, resp.StatusCode)
	}
	var answer struct {
		Status            string `json:"status"`
		StatusDetail      string `json:"status_detail"`
		ExternalReference string `json:"external_reference"`
		// Amount is a payment's, TotalPaidAmount an order's.
		Amount          textOrNumber `json:"transaction_amount"`
		TotalPaidAmount textOrNumber `json:"total_paid_amount"`
		Currency        string       `json:"currency_id"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&answer); err != nil || answer.Status == "" {
		return facts{}, fmt.Errorf("%w: no status in the answer", errLookup)
	}
	return facts{
		status:   answer.Status,
		detail:   answer.StatusDetail,
		order:    answer.ExternalReference,
		amount:   string(cmp.Or(answer.Amount, answer.TotalPaidAmount)),
		currency: answer.Currency,
	}, nil
}
