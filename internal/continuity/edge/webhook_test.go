package edge_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/edge"
)

// sign is the provider's side of x-signature.
func sign(secret, manifest string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	io.WriteString(mac, manifest)
	return hex.EncodeToString(mac.Sum(nil))
}

const (
	requestID = "bb56a2f1-6aae-46ac-982e-9dcd3581d08e"
	stamp     = "1742505638683"
)

func signature(secret, id, requestID, ts string) string {
	return "ts=" + ts + ",v1=" + sign(secret, "id:"+id+";request-id:"+requestID+";ts:"+ts+";")
}

// paid is the webhook of a payment that is made.
func paid(id string) string {
	return fmt.Sprintf(`{"id":99,"live_mode":true,"type":"payment","action":"payment.updated","user_id":1,"api_version":"v1",
		"data":{"id":%q,"status":"approved","external_reference":"o-1","total_paid_amount":"12.50","payer":{"email":"payer@example.com"}}}`, id)
}

// tell sends a webhook as Mercado Pago does; header pairs come last.
func (w *world) tell(t *testing.T, id, body string, headers ...string) answer {
	t.Helper()
	return w.ask(t, "POST", "/v1/webhooks/mercadopago?data.id="+id+"&type=payment", body, append([]string{
		"Authorization", "", "X-Request-Id", requestID, "X-Signature", signature(mpSecret, id, requestID, stamp),
	}, headers...)...)
}

func TestMercadoPago(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.tell(t, "123", paid("123"))
	if first.Code != 200 || first.body["applied"] != "primary" {
		t.Fatalf("%s", first)
	}
	cmd := w.primary.applied()["mercadopago:payment:123"]
	if cmd.CommandType != "order.confirm_payment" || cmd.AggregateType != "order" || cmd.AggregateID != "o-1" ||
		string(cmd.Payload) != `{"transactionId":"123","amount":"12.50","method":"mercadopago"}` || first.Header().Get("X-Command-Id") != cmd.CommandID.String() {
		t.Errorf("%+v %s", cmd, cmd.Payload)
	}
	// The same again, later and signed anew: one command, with the same id.
	again := w.tell(t, "123", paid("123"), "X-Signature", signature(mpSecret, "123", requestID, "1742509999999"))
	if again.Code != 200 || again.body["deduplicated"] != true || again.body["commandId"] != first.body["commandId"] || len(w.primary.applied()) != 1 {
		t.Errorf("again: %s", again)
	}
	// And while the primary is away.
	w.primary.becomes(badGateway)
	queued := w.tell(t, "124", paid("124"))
	if queued.Code != 202 || queued.body["applied"] != "queued" || queued.body["pendingSync"] != true {
		t.Errorf("queued: %s", queued)
	}
	replayed := w.tell(t, "124", paid("124"))
	if replayed.Code != 202 || replayed.body["deduplicated"] != true || replayed.body["commandId"] != queued.body["commandId"] || len(w.hosted.queued()) != 1 {
		t.Errorf("replayed: %s", replayed)
	}
	// The same payment with other facts is for a person.
	other := strings.Replace(paid("124"), "12.50", "1.00", 1)
	if a := w.tell(t, "124", other); a.Code != 422 || a.body["code"] != "invalid_command" || !strings.Contains(w.logged.String(), "webhook does not fit") {
		t.Errorf("other facts: %s", a)
	}
}

// TestMercadoPagoSignatures is the table of what proves who sends, and what not.
func TestMercadoPagoSignatures(t *testing.T) {
	t.Parallel()
	good := signature(mpSecret, "123", requestID, stamp)
	hexOf := func(manifest string) string { return sign(mpSecret, manifest) }
	for name, c := range map[string]struct {
		query, bodyID string
		headers       []string
		status        int
	}{
		"right":                         {"?data.id=123", "123", []string{"X-Signature", good}, 200},
		"with spaces":                   {"?data.id=123", "123", []string{"X-Signature", strings.ReplaceAll(good, ",", " , ")}, 200},
		"in another order":              {"?data.id=123", "123", []string{"X-Signature", "v1=" + strings.Split(good, "v1=")[1] + ",ts=" + stamp}, 200},
		"in upper case":                 {"?data.id=123", "123", []string{"X-Signature", "ts=" + stamp + ",v1=" + strings.ToUpper(strings.Split(good, "v1=")[1])}, 200},
		"seconds":                       {"?data.id=123", "123", []string{"X-Signature", signature(mpSecret, "123", requestID, "1742505638")}, 200},
		"a clock ten minutes off":       {"?data.id=123", "123", []string{"X-Signature", signature(mpSecret, "123", requestID, "1")}, 200},
		"the id in the body":            {"", "123", []string{"X-Signature", good}, 200},
		"an id in capitals, signed so":  {"?data.id=PAY01", "PAY01", []string{"X-Signature", signature(mpSecret, "PAY01", requestID, stamp)}, 200},
		"an id in capitals, signed low": {"?data.id=PAY01", "PAY01", []string{"X-Signature", signature(mpSecret, "pay01", requestID, stamp)}, 200},
		"no request id": {"?data.id=123", "123",
			[]string{"X-Request-Id", "", "X-Signature", "ts=" + stamp + ",v1=" + hexOf("id:123;ts:"+stamp+";")}, 200},

		"none":                 {"?data.id=123", "123", nil, 401},
		"another secret":       {"?data.id=123", "123", []string{"X-Signature", signature("another-secret-000", "123", requestID, stamp)}, 401},
		"of another payment":   {"?data.id=124", "124", []string{"X-Signature", good}, 401},
		"of another request":   {"?data.id=123", "123", []string{"X-Signature", good, "X-Request-Id", "another"}, 401},
		"of another time":      {"?data.id=123", "123", []string{"X-Signature", strings.Replace(good, stamp, "1742505638684", 1)}, 401},
		"no time":              {"?data.id=123", "123", []string{"X-Signature", "v1=" + hexOf("id:123;request-id:"+requestID+";")}, 401},
		"an empty time":        {"?data.id=123", "123", []string{"X-Signature", "ts=,v1=" + hexOf("id:123;request-id:"+requestID+";ts:;")}, 401},
		"no v1":                {"?data.id=123", "123", []string{"X-Signature", "ts=" + stamp}, 401},
		"half a v1":            {"?data.id=123", "123", []string{"X-Signature", good[:len(good)-2]}, 401},
		"no hex":               {"?data.id=123", "123", []string{"X-Signature", "ts=" + stamp + ",v1=" + strings.Repeat("zz", 32)}, 401},
		"no id at all":         {"", "", []string{"X-Signature", "ts=" + stamp + ",v1=" + hexOf("request-id:"+requestID+";ts:"+stamp+";")}, 401},
		"a caller's token":     {"?data.id=123", "123", []string{"Authorization", "Bearer " + callerToken}, 401},
		"the body of another":  {"?data.id=123", "124", []string{"X-Signature", good}, 400},
		"a manifest in the id": {"?data.id=123%3Brequest-id:x", "123", []string{"X-Signature", good}, 401},
		"the same text, divided otherwise": {"?data.id=123%3Brequest-id:" + requestID, "123;request-id:" + requestID,
			[]string{"X-Signature", good, "X-Request-Id", ""}, 401},
		"the body is not JSON":     {"?data.id=123", "\"", []string{"X-Signature", good}, 400},
		"the body is not, no sign": {"?data.id=123", "\"", nil, 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			body := paid(c.bodyID)
			if c.bodyID == "\"" {
				body = "{"
			}
			a := w.ask(t, "POST", "/v1/webhooks/mercadopago"+c.query, body,
				append([]string{"Authorization", "", "X-Request-Id", requestID}, c.headers...)...)
			if a.Code != c.status || c.status == 401 && a.body["code"] != "invalid_signature" {
				t.Errorf("%s", a)
			}
			if took := len(w.primary.applied()) + len(w.hosted.queued()); (took == 1) != (c.status == 200) {
				t.Errorf("%d commands", took)
			}
		})
	}
}

// TestMercadoPagoNews that ask for nothing are ignored, and those that may not
// have been paid are never taken for paid.
func TestMercadoPagoNews(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body    string
		status  int
		outcome string
	}{
		"waits":        {strings.Replace(paid("123"), "approved", "pending", 1), 200, "ignored"},
		"refunded":     {strings.Replace(paid("123"), "approved", "refunded", 1), 200, "ignored"},
		"of no order":  {strings.Replace(paid("123"), "o-1", "", 1), 200, "ignored"},
		"another kind": {strings.Replace(paid("123"), `"type":"payment"`, `"type":"subscription"`, 1), 200, "ignored"},
		"an order":     {strings.Replace(strings.Replace(paid("123"), `"type":"payment"`, `"type":"order"`, 1), "approved", "processed", 1), 200, "primary"},
		"a refunded order": {strings.Replace(strings.Replace(paid("123"), `"type":"payment"`, `"type":"order"`, 1),
			"\"approved\"", `"processed","status_detail":"refunded"`, 1), 200, "ignored"},
		"no kind in it":    {strings.Replace(paid("123"), `"type":"payment",`, "", 1), 200, "primary"},
		"an id as number":  {strings.Replace(paid("123"), `"id":"123"`, `"id":123`, 1), 200, "primary"},
		"says no status":   {strings.Replace(paid("123"), `"status":"approved",`, "", 1), 503, ""},
		"a long reference": {strings.Replace(paid("123"), "o-1", strings.Repeat("o", 300), 1), 400, ""},
		"too large":        {paid("123") + strings.Repeat(" ", 64<<10), 413, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.tell(t, "123", c.body)
			got, _ := a.body["applied"].(string)
			if a.Code != c.status || got != c.outcome {
				t.Errorf("%s", a)
			}
			if took := len(w.primary.applied()); (took == 1) != (c.outcome == "primary") {
				t.Errorf("%d commands", took)
			}
		})
	}
}

// TestMercadoPagoLookUp: with an access token, what the provider says on being
// asked counts, and not the body.
func TestMercadoPagoLookUp(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	const approved = `{"id":123,"status":"approved","external_reference":"o-7","transaction_amount":12.50,"currency_id":"BRL","payer":{"email":"payer@example.com"}}`
	for name, c := range map[string]struct {
		api     http.HandlerFunc
		status  int
		outcome string
	}{
		"approved":      {answer(200, approved), 200, "primary"},
		"pending":       {answer(200, strings.Replace(approved, "approved", "pending", 1)), 200, "ignored"},
		"not there":     {answer(404, `{"message":"Payment not found"}`), 503, ""},
		"a wrong token": {answer(401, `{"message":"`+mpAccess+`"}`), 503, ""},
		"out of order":  {answer(500, ``), 503, ""},
		"no JSON":       {answer(200, `<html>`), 503, ""},
		"an empty one":  {answer(200, `{}`), 503, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked *http.Request
			api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				asked = r
				c.api(rw, r)
			}))
			defer api.Close()
			w := newWorld(t, func(o *edge.Options) {
				o.MercadoPago = edge.NewMercadoPago(edge.MercadoPagoOptions{Secret: mpSecret, AccessToken: mpAccess, API: api.URL})
			})
			a := w.tell(t, "123", strings.Replace(paid("123"), "o-1", "o-forged", 1))
			got, _ := a.body["applied"].(string)
			if a.Code != c.status || got != c.outcome || c.status == 503 && (a.body["code"] != "payment_not_known" || a.Header().Get("Retry-After") == "") {
				t.Errorf("%s", a)
			}
			if asked.URL.Path != "/v1/payments/123" || asked.Header.Get("Authorization") != "Bearer "+mpAccess {
				t.Errorf("%s %v", asked.URL, asked.Header)
			}
			if c.outcome == "primary" {
				cmd := w.primary.applied()["mercadopago:payment:123"]
				if cmd.AggregateID != "o-7" || string(cmd.Payload) != `{"transactionId":"123","amount":"12.50","currency":"BRL","method":"mercadopago"}` {
					t.Errorf("%+v %s", cmd, cmd.Payload)
				}
			}
		})
	}
}

// TestMercadoPagoLooksOrdersUp too: the signature covers neither the kind nor the
// rest of the body, so what was signed for a payment could else be told of as an
// order that is paid.
func TestMercadoPagoLooksOrdersUp(t *testing.T) {
	t.Parallel()
	var asked []string
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		if r.URL.Path != "/v1/orders/ORD01" {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		io.WriteString(rw, `{"id":"ORD01","status":"processed","status_detail":"accredited","external_reference":"o-7","total_amount":"12.50","total_paid_amount":"12.50"}`)
	}))
	defer api.Close()
	w := newWorld(t, func(o *edge.Options) {
		o.MercadoPago = edge.NewMercadoPago(edge.MercadoPagoOptions{Secret: mpSecret, AccessToken: mpAccess, API: api.URL})
	})
	asOrder := strings.NewReplacer(`"type":"payment"`, `"type":"order"`, "approved", "processed", "o-1", "o-forged")
	if a := w.tell(t, "ORD01", asOrder.Replace(paid("ORD01"))); a.Code != 200 || a.body["applied"] != "primary" {
		t.Errorf("%s", a)
	}
	cmd := w.primary.applied()["mercadopago:order:ord01"]
	if cmd.AggregateID != "o-7" || string(cmd.Payload) != `{"transactionId":"ORD01","amount":"12.50","method":"mercadopago"}` {
		t.Errorf("%+v %s", cmd, cmd.Payload)
	}
	if a := w.tell(t, "123", asOrder.Replace(paid("123"))); a.Code != 503 || a.body["code"] != "payment_not_known" {
		t.Errorf("a payment that is told of as an order: %s", a)
	}
	if n := len(w.primary.applied()); n != 1 || len(asked) != 2 {
		t.Errorf("%d commands, asked for %q", n, asked)
	}
}

// TestMercadoPagoIDInAnotherCase is the same transaction: the provider signs ids
// in lower case, so a webhook that is replayed with another case is authentic.
func TestMercadoPagoIDInAnotherCase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lower := signature(mpSecret, "ord01", requestID, stamp)
	if a := w.tell(t, "ORD01", paid("ORD01"), "X-Signature", lower); a.Code != 200 {
		t.Fatalf("%s", a)
	}
	for _, id := range []string{"ord01", "Ord01"} {
		if a := w.tell(t, id, paid(id), "X-Signature", lower); a.Code != 422 || a.body["code"] != "invalid_command" {
			t.Errorf("%s: %s", id, a)
		}
	}
	if n := len(w.primary.applied()); n != 1 {
		t.Errorf("%d commands", n)
	}
}

const onePix = `{"pix":[{"endToEndId":"E1","txid":"7978c0c97ea847e78e8849634473c1f1","chave":"k","valor":"37.00","horario":"2026-11-30T12:00:00Z","infoPagador":"payer@example.com"}]}`

func TestC6(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, c := range []struct {
		path    string
		headers []string
	}{
		{"/v1/webhooks/c6", []string{"Authorization", "Bearer " + c6Token}},
		{"/v1/webhooks/c6/pix", []string{"Authorization", "", "X-Webhook-Token", c6Token}},
		{"/v1/webhooks/c6?token=" + c6Token, []string{"Authorization", ""}},
	} {
		a := w.ask(t, "POST", c.path, onePix, c.headers...)
		if a.Code != 200 || a.body["applied"] != "primary" || a.body["deduplicated"] != (i > 0) {
			t.Errorf("%s: %s", c.path, a)
		}
	}
	cmd := w.primary.applied()["c6:pix:7978c0c97ea847e78e8849634473c1f1"]
	if cmd.CommandType != "order.confirm_payment" || cmd.AggregateID != "7978c0c97ea847e78e8849634473c1f1" ||
		string(cmd.Payload) != `{"transactionId":"7978c0c97ea847e78e8849634473c1f1","amount":"37.00","currency":"BRL","method":"pix","endToEndId":"E1"}` {
		t.Errorf("%+v %s", cmd, cmd.Payload)
	}
	for name, header := range map[string][]string{
		"none":           {"Authorization", ""},
		"another":        {"Authorization", "Bearer c6-token-0123456788"},
		"a caller's":     {"Authorization", "Bearer " + callerToken},
		"empty":          {"Authorization", "", "X-Webhook-Token", " "},
		"right and then": {"Authorization", "Bearer wrong", "X-Webhook-Token", c6Token},
	} {
		if a := w.ask(t, "POST", "/v1/webhooks/c6", onePix, header...); a.Code != 401 || a.body["code"] != "invalid_signature" {
			t.Errorf("%s: %s", name, a)
		}
	}
}

// TestC6Several payments in one webhook are several commands. When one is
// refused, the webhook is, and those that were taken are recognized afterwards.
func TestC6Several(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tell := func(body string) answer {
		t.Helper()
		return w.ask(t, "POST", "/v1/webhooks/c6", body, "Authorization", "Bearer "+c6Token)
	}
	const several = `{"pix":[{"endToEndId":"E1","txid":"a","valor":"1.00"},{"endToEndId":"E2","valor":"2.00"},{"endToEndId":"E3","txid":"c","valor":"3.00"}]}`
	if a := tell(several); a.Code != 200 || len(a.body["results"].([]any)) != 2 || len(w.primary.applied()) != 2 {
		t.Errorf("%s", a)
	}
	w.primary.becomes(badGateway)
	if a := tell(strings.Replace(several, `"c"`, `"d"`, 1)); a.Code != 202 || len(w.hosted.queued()) != 2 {
		t.Errorf("%s", a)
	}
	w.hosted.becomes(continuity.ErrUnavailable)
	if a := tell(strings.Replace(several, `"c"`, `"e"`, 1)); a.Code != 503 || a.body["code"] != "queue_failure" {
		t.Errorf("%s", a)
	}
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"a test":   {`{}`, 200},
		"no txid":  {`{"pix":[{"endToEndId":"E2","valor":"2.00"}]}`, 200},
		"not JSON": {`pix`, 400},
		"a crowd":  {`{"pix":[` + strings.Repeat(`{},`, 100) + `{}]}`, 400},
	} {
		if a := tell(c.body); a.Code != c.status {
			t.Errorf("%s: %s", name, a)
		}
	}
}

func TestWebhooksNotConfigured(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *edge.Options) { o.MercadoPago, o.C6 = nil, nil })
	for _, path := range []string{"/v1/webhooks/mercadopago", "/v1/webhooks/c6", "/v1/webhooks/c6/pix"} {
		if a := w.ask(t, "POST", path, "{}"); a.Code != 503 || a.body["code"] != "not_configured" {
			t.Errorf("%s: %s", path, a)
		}
	}
}
