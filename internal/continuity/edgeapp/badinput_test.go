package edgeapp_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity/drain"
	"github.com/rollingd/rollingd/internal/continuity/edge"
	"github.com/rollingd/rollingd/internal/continuity/edgeapp"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

// way is where an input goes.
type way string

const (
	// direct is an edge whose primary is well, and queued one whose primary is
	// away, with the queue open.
	direct way = "direct"
	queued way = "queued"
	// internal is the primary's own API, with an edge's token.
	internal way = "internal"
)

// input is one request, and what it is answered: the status, the code of the
// refusal or where it was applied, and the field that is wrong or "again" for
// what was known already.
type input struct {
	way     way
	method  string
	path    string
	body    string
	headers []string
	want    string
}

// badInput is a line of the list: what is sent, and what it leaves behind. KEY,
// ORDER and COMMAND stand for ones that nobody else has.
type badInput struct {
	what string
	sent []input
	// effects is how many commands the primary has applied afterwards, and waiting
	// how many the queue holds.
	effects, waiting int
}

// badInputs is the list. What is refused leaves nothing, in no table of either
// side, and neither counts as a failure of the primary nor moves the fence. What takes more than a
// request has a test of its own: keys across an outage below, and a hosted
// database of another version in badschema_test.go.
func badInputs() []badInput {
	long := strings.Repeat("x", 257)
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	// dense is within the limit as it is sent, and beyond it as Postgres writes it.
	dense := "[" + strings.Repeat("1,", contracts.MaxCommandPayloadBytes/2-100) + "1]"
	return []badInput{
		// Bodies that are no command.
		{"no content type", post("/v1/commands", create, "Content-Type", "").at("415 unsupported_media_type"), 0, 0},
		{"a form", post("/v1/commands", create, "Content-Type", "text/plain").at("415 unsupported_media_type"), 0, 0},
		{"no body", refused("", "400 invalid_command", "422 invalid_command"), 0, 0},
		{"no JSON", refused("order", "400 invalid_command", "422 invalid_command"), 0, 0},
		{"half a JSON", refused(create[:40], "400 invalid_command", "422 invalid_command"), 0, 0},
		{"an array", refused("["+create+"]", "400 invalid_command", "422 invalid_command"), 0, 0},
		{"two commands", refused(create+create, "400 invalid_command", "422 invalid_command"), 0, 0},
		{"no UTF-8", refused(with("aggregateId", "\"o\xff\""), "400 invalid_command", "422 invalid_command"), 0, 0},
		{"an unknown field", refused(with("priority", "1"), "400 invalid_command priority", "422 invalid_command"), 0, 0},
		{"a field in another case", refused(with("Payload", "{}"), "400 invalid_command Payload", ""), 0, 0},
		{"a field twice", refused(strings.Replace(create, "{", `{"aggregateId":"ORDER-2",`, 1), "400 invalid_command aggregateId", ""), 0, 0},

		// Fields.
		{"nothing in it", refused("{}", "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"no key", refused(with("idempotencyKey", ""), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"no type", refused(with("commandType", ""), "400 invalid_command commandType", "422 unknown_command_type"), 0, 0},
		{"no aggregate type", refused(with("aggregateType", ""), "400 invalid_command aggregateType", "422 invalid_command"), 0, 0},
		{"no aggregate", refused(with("aggregateId", ""), "400 invalid_command aggregateId", "422 invalid_command"), 0, 0},
		{"no payload", refused(with("payload", ""), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"a number for a key", refused(with("idempotencyKey", "1"), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"null for a type", refused(with("commandType", "null"), "400 invalid_command commandType", "422 unknown_command_type"), 0, 0},
		{"an empty key", refused(with("idempotencyKey", `""`), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"a key with a space behind it", refused(with("idempotencyKey", `"k "`), "400 invalid_command idempotencyKey", ""), 0, 0},
		{"a blank key", refused(with("idempotencyKey", `" "`), "400 invalid_command idempotencyKey", ""), 0, 0},
		{"a key with a NUL", refused(with("idempotencyKey", `"k\u0000"`), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"an id with a NUL", refused(with("aggregateId", `"o\u0000"`), "400 invalid_command aggregateId", "422 invalid_command"), 0, 0},
		{"a key of half a character", refused(with("idempotencyKey", `"k\ud800"`), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"a long key", refused(with("idempotencyKey", `"`+long+`"`), "400 invalid_command idempotencyKey", "422 invalid_command"), 0, 0},
		{"a long type", refused(with("commandType", `"`+long+`"`), "400 invalid_command commandType", "422 unknown_command_type"), 0, 0},
		{"a long aggregate type", refused(with("aggregateType", `"`+long+`"`), "400 invalid_command aggregateType", "422 invalid_command"), 0, 0},
		{"a long id", refused(with("aggregateId", `"`+long+`"`), "400 invalid_command aggregateId", "422 invalid_command"), 0, 0},
		{"a negative version", refused(with("expectedVersion", "-1"), "400 invalid_command expectedVersion", "422 invalid_command"), 0, 0},
		{"a version with a fraction", refused(with("expectedVersion", "1.5"), "400 invalid_command expectedVersion", "422 invalid_command"), 0, 0},
		{"a version beyond 64 bits", refused(with("expectedVersion", "99999999999999999999"), "400 invalid_command expectedVersion", "422 invalid_command"), 0, 0},

		// Payloads.
		{"a payload with a NUL", refused(with("payload", `{"note":"\u0000"}`), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"a payload with half a character", refused(with("payload", `{"note":"\ud800"}`), "422 invalid_command", "422 invalid_command"), 0, 0},
		{"a number that programs do not read", refused(with("payload", `{"n":1e400}`), "400 invalid_command payload", ""), 0, 0},
		{"a number that programs do not read, within", within(strings.Replace(create, "12990", "1e400", 1), "200 applied"), 1, 0},
		{"an amount that programs do not read", refused(command("cashflow.record", "cashflow", `{"companyId":"acme","restaurantId":"north","kind":"income","amount":1e400}`), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"a number that Postgres does not hold", refused(with("payload", `{"n":1e999999}`), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"an exponent without an end", refused(with("payload", `{"n":1e99999999999999999999}`), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"a number of too many places", refused(with("payload", `{"n":0.`+strings.Repeat("1", 16400)+`}`), "422 invalid_command", "422 invalid_command"), 0, 0},
		{"a payload that is nested deep", refused(with("payload", nested(65)), "400 invalid_command payload", "422 invalid_command"), 0, 0},
		{"a payload that is nested without an end", refused(with("payload", nested(20000)), "400 invalid_command", "422 invalid_command"), 0, 0},
		{"null for a payload", refused(with("payload", "null"), "422 invalid_command", "422 invalid_command"), 0, 0},
		{"a payload over the limit", refused(with("payload", `"`+strings.Repeat("x", contracts.MaxCommandPayloadBytes-1)+`"`), "413 payload_too_large payload", "413 payload_too_large"), 0, 0},
		{"a payload that grows over the limit", refused(with("payload", dense), "413 payload_too_large", "413 payload_too_large"), 0, 0},
		{"a payload within the limit, of what HTML escapes", everywhere(strings.Replace(create, "12990", `"`+strings.Repeat("<&>\u2028", 10000)+`"`, 1), "200 primary", "202 queued", ""), 1, 1},
		{"a body over the limit", refused(with("payload", `"`+strings.Repeat("x", 140<<10)+`"`), "413 payload_too_large", "413 payload_too_large"), 0, 0},

		// Commands that nobody can carry out.
		{"a type that nobody has heard of", everywhere(with("commandType", `"order.bless"`), "422 unknown_command_type", "503 non_essential_rejected", "422 unknown_command_type"), 0, 0},
		{"an order of nobody", everywhere(with("payload", `{}`), "422 invalid_command", "", "422 invalid_command"), 0, 0},
		{"a name with a separator", everywhere(with("payload", `{"companyId":"a_b","restaurantId":"c"}`), "422 invalid_command", "", "422 invalid_command"), 0, 0},
		{"an order that is a payment", everywhere(with("aggregateType", `"payment"`), "422 invalid_command", "", "422 invalid_command"), 0, 0},
		{"an amount below nothing", everywhere(command("cashflow.record", "cashflow", `{"companyId":"acme","restaurantId":"north","kind":"income","amount":-1}`), "422 invalid_command", "", "422 invalid_command"), 0, 0},
		{"an order's id without an end", everywhere(command("payment.record", "payment",
			`{"companyId":"acme","restaurantId":"north","status":"approved","orderId":"`+strings.Repeat("o", 65000)+`"}`), "422 invalid_command", "", "422 invalid_command"), 0, 0},
		{"a status that there is not", slices.Concat(everywhere(create, "200 primary", "", ""),
			everywhere(again("order.update_status", `{"status":"gone"}`), "409 illegal_transition", "", "")), 1, 0},
		{"an order that was never made", everywhere(command("order.cancel", "order", `{}`), "422 unknown_aggregate", "", "422 unknown_aggregate"), 0, 0},
		{"another version", everywhere(strings.Replace(create, "{", `{"expectedVersion":7,`, 1), "409 version_conflict", "", "409 version_conflict"), 0, 0},
		{"an order that there is", slices.Concat(everywhere(create, "200 primary", "", ""), everywhere(again("order.create", ofNorth), "409 already_exists", "", "")), 1, 0},
		{"what only the primary can refuse", everywhere(with("payload", `[]`), "", "202 queued", ""), 0, 1},

		// One key.
		{"the same again", slices.Concat(everywhere(create, "200 primary", "202 queued", ""), everywhere(create, "200 primary again", "202 queued again", "")), 1, 1},
		{"a key with another payload", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			everywhere(strings.Replace(create, "12990", "1", 1), "422 invalid_command idempotencyKey", "422 invalid_command idempotencyKey", "")), 1, 1},
		{"a key with another payload, within", slices.Concat(everywhere(create, "", "", "200 applied"),
			everywhere(strings.Replace(create, "12990", "1", 1), "", "", "422 key_reused")), 1, 0},
		{"a key of another order", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			everywhere(strings.Replace(create, "ORDER", "ORDER-2", 1), "422 invalid_command idempotencyKey", "422 invalid_command idempotencyKey", "")), 1, 1},
		{"the same in other words", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			everywhere(strings.NewReplacer(`"total":12990`, `"total": 1, "total":12990`, "acme", `\u0061cme`).Replace(create), "200 primary again", "202 queued again", "")), 1, 1},
		{"a command id of another key", slices.Concat(
			post("/v1/commands", create, "X-Command-Id", "COMMAND").at("200 primary", "202 queued"),
			post("/v1/commands", strings.NewReplacer("KEY", "KEY-2", "ORDER", "ORDER-2").Replace(create), "X-Command-Id", "COMMAND").at("422 invalid_command", "422 invalid_command")), 1, 1},

		// Clocks. Nothing goes by them.
		{"a clock of no kind", refused(with("occurredAt", `"yesterday"`), "400 invalid_command occurredAt", "422 invalid_command"), 0, 0},
		{"a clock as a number", refused(with("occurredAt", "1764500000"), "400 invalid_command occurredAt", "422 invalid_command"), 0, 0},
		{"the year 0", refused(with("occurredAt", `"0000-06-01T00:00:00Z"`), "400 invalid_command occurredAt", ""), 0, 0},
		{"the year 10000", refused(with("occurredAt", `"9999-12-31T23:00:00-03:00"`), "400 invalid_command occurredAt", ""), 0, 0},
		{"a clock that is ten minutes ahead, and one that is as much behind", slices.Concat(
			everywhere(with("occurredAt", clock(10*time.Minute)), "200 primary", "202 queued", ""),
			everywhere(strings.Replace(again("order.cancel", `{}`), "{", `{"occurredAt":`+clock(-10*time.Minute)+",", 1), "200 primary", "202 queued", "")), 2, 2},

		// Callers.
		{"no token", post("/v1/commands", create, "Authorization", "").at("401 unauthorized"), 0, 0},
		{"another token", post("/v1/commands", create, "Authorization", "Bearer token-of-the-site-124").at("401 unauthorized"), 0, 0},
		{"an edge's token", post("/v1/commands", create, "Authorization", "Bearer "+serviceToken).at("401 unauthorized"), 0, 0},
		{"a caller's token, within", within(create, "401 unauthorized", "Authorization", "Bearer "+callerToken), 0, 0},
		{"no epoch", within(create, "422 invalid_command", "X-Continuity-Epoch", ""), 0, 0},
		{"an epoch beyond reason", within(create, "422 invalid_command", "X-Continuity-Epoch", "9223372036854775807"), 0, 0},
		{"an epoch that is over", within(create, "409 stale_epoch", "X-Continuity-Epoch", "0"), 0, 0},
		{"no command id", within(create, "422 invalid_command", "X-Command-Id", "7"), 0, 0},
		{"a route that there is not", post("/v1/orders", create).at("404 not_found"), 0, 0},
		{"another method", input{method: "PUT", path: "/v1/commands", body: create}.at("405 method_not_allowed"), 0, 0},
		{"a read that leads up", input{method: "GET", path: "/v1/reads/a/../b"}.at("400 invalid_command key"), 0, 0},
		{"a read of a NUL", input{method: "GET", path: "/v1/reads/order:%00"}.at("400 invalid_command key"), 0, 0},
		{"a read of what there is not", input{method: "GET", path: "/v1/reads/order:ORDER"}.at("404 not_found", "503 snapshot_miss"), 0, 0},

		// Mercado Pago.
		{"a webhook without a signature", told("100", "", "12990.00").at("401 invalid_signature"), 0, 0},
		{"of another secret", told("100", signature("another-secret-000", "100", now), "12990.00").at("401 invalid_signature"), 0, 0},
		{"signed for another payment", told("100", signature(mpSecret, "9", now), "12990.00").at("401 invalid_signature"), 0, 0},
		{"signed for another request", told("100", signature(mpSecret, "100", now), "12990.00", "X-Request-Id", "r-2").at("401 invalid_signature"), 0, 0},
		{"signed at another time", told("100", strings.Replace(signature(mpSecret, "100", now), "ts=", "ts=1", 1), "12990.00").at("401 invalid_signature"), 0, 0},
		{"half a signature", told("100", signature(mpSecret, "100", now)[:40], "12990.00").at("401 invalid_signature"), 0, 0},
		{"no hex", told("100", "ts="+now+",v1="+strings.Repeat("zz", 32), "12990.00").at("401 invalid_signature"), 0, 0},
		{"a caller's token in its place", told("100", "", "12990.00", "Authorization", "Bearer "+callerToken).at("401 invalid_signature"), 0, 0},
		{"a body about another payment", genuine("100", strings.Replace(payment, "PAYMENT", "9", 1)).at("400 invalid_command data.id"), 0, 0},
		{"a body that is not JSON", genuine("100", "{").at("400 invalid_command"), 0, 0},
		{"a body that says nothing of the payment", genuine("100", `{"type":"payment","data":{"id":"100"}}`).at("503 payment_not_known"), 0, 0},
		{"a body without an end", genuine("100", payment+strings.Repeat(" ", 64<<10)).at("413 payload_too_large"), 0, 0},
		{"a reference that is none", genuine("100", strings.Replace(payment, "ORDER", long, 1)).at("400 invalid_command reference"), 0, 0},
		{"an amount that is none", slices.Concat(everywhere(create, "200 primary", "", ""), genuine("101", strings.Replace(payment, "AMOUNT", "-1", 1)).at("422 invalid_command", "")), 1, 0},
		{"a payment of an order that was never made", genuine("100", payment).at("422 unknown_aggregate", ""), 0, 0},
		{"a payment that is not made", genuine("100", strings.Replace(payment, "approved", "pending", 1)).at("200 ignored"), 0, 0},
		{"the same webhook twice", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			genuine("102", payment).at("200 primary", "202 queued"),
			genuine("102", payment).at("200 primary again", "202 queued again")), 2, 2},
		{"the same webhook with another amount", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			genuine("103", payment).at("200 primary", "202 queued"),
			told("103", signature(mpSecret, "103", now), "1.00").at("422 invalid_command idempotencyKey")), 2, 2},
		{"signed by a clock that is off", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			told("104", signature(mpSecret, "104", stamp(-10*time.Minute)), "12990.00").at("200 primary", "202 queued"),
			told("104", signature(mpSecret, "104", stamp(10*time.Minute)), "12990.00").at("200 primary again", "202 queued again"),
			told("104", signature(mpSecret, "104", "1"), "12990.00").at("200 primary again", "202 queued again")), 2, 2},

		// C6.
		{"a bank without a token", pix("12990.00", "Authorization", "").at("401 invalid_signature"), 0, 0},
		{"with another", pix("12990.00", "Authorization", "Bearer c6-token-0123456788").at("401 invalid_signature"), 0, 0},
		{"with a caller's", pix("12990.00", "Authorization", "Bearer "+callerToken).at("401 invalid_signature"), 0, 0},
		{"with a wrong one before the right one", pix("12990.00", "Authorization", "Bearer wrong", "X-Webhook-Token", c6Token).at("401 invalid_signature"), 0, 0},
		{"that sends no JSON", pixes("pix").at("400 invalid_command"), 0, 0},
		{"that sends a crowd", pixes(`{"pix":[` + strings.Repeat("{},", 100) + `{}]}`).at("400 invalid_command pix"), 0, 0},
		{"that sends without an end", pixes(strings.Repeat(" ", 64<<10) + "{}").at("413 payload_too_large"), 0, 0},
		{"that sends an id without an end", pixes(`{"pix":[{"txid":"` + long + `"}]}`).at("400 invalid_command transaction"), 0, 0},
		{"that tries itself", pixes(`{}`).at("200 ignored"), 0, 0},
		{"that sends an amount that is none", slices.Concat(everywhere(create, "200 primary", "", ""), pix("12,90").at("422 invalid_command", "")), 1, 0},
		{"that sends the same twice", slices.Concat(everywhere(create, "200 primary", "202 queued", ""),
			pix("12990.00").at("200 primary", "202 queued"), pix("12990.00").at("200 primary again", "202 queued again")), 2, 2},
	}
}

// The inputs that the others are made of.
const (
	create  = `{"idempotencyKey":"KEY","commandType":"order.create","aggregateType":"order","aggregateId":"ORDER","payload":` + ofNorth + `}`
	payment = `{"type":"payment","data":{"id":"PAYMENT","status":"approved","external_reference":"ORDER","total_paid_amount":"AMOUNT"}}`
)

var now = stamp(0)

func stamp(off time.Duration) string { return fmt.Sprint(time.Now().Add(off).UnixMilli()) }
func clock(off time.Duration) string { return `"` + time.Now().Add(off).Format(time.RFC3339) + `"` }

// with is the command with another value of a field, or without the field.
func with(field, value string) string {
	fields := make(map[string]json.RawMessage)
	if err := json.Unmarshal([]byte(create), &fields); err != nil {
		panic(err)
	}
	delete(fields, field)
	var all []string
	for name, raw := range fields {
		all = append(all, fmt.Sprintf("%q:%s", name, raw))
	}
	if value != "" {
		all = append(all, fmt.Sprintf("%q:%s", field, value))
	}
	return "{" + strings.Join(all, ",") + "}"
}

func command(kind, aggregate, payload string) string {
	return fmt.Sprintf(`{"idempotencyKey":"KEY","commandType":%q,"aggregateType":%q,"aggregateId":"ORDER","payload":%s}`, kind, aggregate, payload)
}

// again is another command for the same order.
func again(kind, payload string) string {
	return strings.Replace(command(kind, "order", payload), "KEY", "KEY-2", 1)
}

// at sends a request to an edge in either state: what it is answered in both, or
// while the primary is well and while it is away. "" leaves one out.
func (i input) at(wants ...string) (sent []input) {
	for n, where := range []way{direct, queued} {
		i.way, i.want = where, wants[min(n, len(wants)-1)]
		if i.want != "" {
			sent = append(sent, i)
		}
	}
	return sent
}

// everywhere sends a command to an edge in either state and to the primary.
func everywhere(body, whileWell, whileAway, atPrimary string) []input {
	sent := post("/v1/commands", body).at(whileWell, whileAway)
	if atPrimary != "" {
		sent = append(sent, within(body, atPrimary)...)
	}
	return sent
}

// refused is everywhere for what an edge refuses in either state.
func refused(body, atEdge, atPrimary string) []input {
	return everywhere(body, atEdge, atEdge, atPrimary)
}

func post(path, body string, headers ...string) input {
	return input{method: "POST", path: path, body: body, headers: headers}
}

// within sends a command to the primary as an edge does.
func within(body, want string, headers ...string) []input {
	return []input{{
		way: internal, method: "POST", path: "/internal/commands", body: body, want: want,
		headers: append([]string{"Authorization", "Bearer " + serviceToken, "X-Continuity-Epoch", "1", "X-Command-Id", "COMMAND"}, headers...),
	}}
}

// signature is x-signature as Mercado Pago makes it.
func signature(secret, id, ts string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "id:%s;request-id:r-1;ts:%s;", id, ts)
	return "ts=" + ts + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

// told is a webhook of Mercado Pago about a payment.
func told(id, signature, amount string, headers ...string) input {
	return post("/v1/webhooks/mercadopago?data.id="+id, strings.NewReplacer("PAYMENT", id, "AMOUNT", amount).Replace(payment),
		append([]string{"Authorization", "", "X-Request-Id", "r-1", "X-Signature", signature}, headers...)...)
}

// genuine is one that is signed, whatever it says.
func genuine(id, body string) input {
	i := told(id, signature(mpSecret, id, now), "")
	i.body = strings.NewReplacer("PAYMENT", id, "AMOUNT", "12990.00").Replace(body)
	return i
}

// pix is a webhook of C6 about a payment, and pixes one with another body.
func pix(amount string, headers ...string) input {
	return pixes(`{"pix":[{"endToEndId":"E1","txid":"ORDER","valor":"`+amount+`"}]}`, headers...)
}

func pixes(body string, headers ...string) input {
	return post("/v1/webhooks/c6", body, append([]string{"Authorization", "Bearer " + c6Token}, headers...)...)
}

// left is what there is on both sides.
type left struct {
	// effects are those in the inbox, and facts the rows that they and refusals leave.
	effects, facts int
	// waiting are the commands of the queue, and others the rows beside it.
	waiting, others int
	epoch           int64
	mode            string
}

func (s *shop) left(hostedDB *pgxpool.Pool) (l left) {
	s.Helper()
	err := s.pool.QueryRow(s.Context(), `
		select
		  (select count(*) from continuity_inbox),
		  (select count(*) from orders) + (select count(*) from payments) + (select count(*) from cashflow_entries)
		    + (select count(*) from primary_outbox) + (select count(*) from primary_notices)
		    + (select count(*) from primary_refusals) + (select count(*) from primary_drained)`).Scan(&l.effects, &l.facts)
	if err != nil {
		s.Fatal(err)
	}
	err = hostedDB.QueryRow(s.Context(), `
		select
		  (select count(*) from continuity_commands),
		  (select count(*) from continuity_outbox) + (select count(*) from continuity_snapshots),
		  epoch,
		  mode
		from continuity_fence`).Scan(&l.waiting, &l.others, &l.epoch, &l.mode)
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// goesAway cuts the primary off, and has the queue opened by a first command.
func (e *runningEdge) goesAway() {
	e.Helper()
	e.down.Store(true)
	if status, answer := e.command("k-first", "order.create", "o-first", ofNorth); status != 202 {
		e.Fatalf("the queue did not open: %d %v", status, answer)
	}
	e.untilState("DEGRADED")
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	well, away := newShop(t), newShop(t)
	edges := map[way]*runningEdge{direct: well.edge(edge.Everything), queued: away.edge(edge.Everything, func(o *edgeapp.Options) { o.OpenWindow = time.Hour })}
	edges[queued].goesAway()
	hostedDBs := map[*shop]*pgxpool.Pool{well: pgtest.Open(t, well.hostedDSN), away: pgtest.Open(t, away.hostedDSN)}
	for n, c := range badInputs() {
		t.Run(c.what, func(t *testing.T) {
			before := map[*shop]left{well: well.left(hostedDBs[well]), away: away.left(hostedDBs[away])}
			names := strings.NewReplacer("KEY", fmt.Sprint("k", n), "ORDER", fmt.Sprint("o", n), "COMMAND", uuid.NewString())
			reached := make(map[*shop]bool)
			for _, i := range c.sent {
				e := edges[queued]
				if i.way != queued {
					e = edges[direct]
				}
				reached[e.shop] = true
				base := "http://" + e.app.Addr()
				if i.way == internal {
					base = e.api.URL
				}
				for k := range i.headers {
					i.headers[k] = names.Replace(i.headers[k])
				}
				if got := said(e.askAt(base, i.method, names.Replace(i.path), names.Replace(i.body), i.headers...)); got != i.want {
					t.Errorf("%s: %s, want %s", i.way, got, i.want)
				}
			}
			for s, was := range before {
				want, got := was, s.left(hostedDBs[s])
				if s == well && reached[s] {
					want.effects += c.effects
				}
				if s == away && reached[s] {
					want.waiting += c.waiting
				}
				if got.effects > was.effects {
					want.facts = got.facts // They are those of the effects.
				}
				if got != want {
					t.Errorf("it left %+v, want %+v", got, want)
				}
			}
			if edges[direct].blamed() {
				t.Fatal("the primary is blamed for it")
			}
		})
	}
}

// said is an answer as the list has it.
func said(status int, answer map[string]any) string {
	text := fmt.Sprint(status)
	for _, name := range []string{"code", "applied", "outcome", "field"} {
		if word, ok := answer[name].(string); ok {
			text += " " + word
		}
	}
	if answer["deduplicated"] == true {
		text += " again"
	}
	return text
}

// TestKeysAcrossAnOutage: a key that one side knows comes to the other with
// another payload. The queue cannot know what the primary has done, so that
// command dies at the drain, for a person to see; every other is refused at once.
func TestKeysAcrossAnOutage(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	e := s.edge(edge.Everything)
	const paid, cancelled, ofSouth = `{"status":"paid"}`, `{"status":"cancelled"}`, `{"companyId":"acme","restaurantId":"south"}`
	is := func(want, key, kind, order, payload string) {
		t.Helper()
		if got := said(e.command(key, kind, order, payload)); got != want {
			t.Errorf("%s of %s: %s, want %s", key, payload, got, want)
		}
	}
	is("200 primary", "k-1", "order.create", "o-1", ofNorth)
	is("200 primary", "k-2", "order.update_status", "o-1", paid)
	e.goesAway()
	is("202 queued", "k-1", "order.create", "o-1", ofNorth)
	is("202 queued", "k-2", "order.update_status", "o-1", cancelled)
	is("422 invalid_command idempotencyKey", "k-2", "order.update_status", "o-1", paid)
	is("202 queued", "k-3", "order.create", "o-3", ofNorth)
	is("422 invalid_command idempotencyKey", "k-3", "order.create", "o-3", ofSouth)
	s.down.Store(false)
	var r drain.Result
	e.until("a cutover", func(map[string]any) bool {
		r = s.drain()
		return r.Cutover != nil
	})
	if r.Cutover.Accepted != 4 || r.Cutover.Applied != 3 || r.Cutover.Dead != 1 {
		t.Errorf("%+v", r.Cutover)
	}
	if dead, err := s.queue.Find(t.Context(), "k-2"); err != nil || dead.Status != contracts.CommandDead || dead.LastError == nil || !strings.HasPrefix(*dead.LastError, "key_reused") {
		t.Errorf("%+v, %v", dead, err)
	}
	e.untilState("PRIMARY")
	is("422 invalid_command idempotencyKey", "k-3", "order.create", "o-3", ofSouth)
	is("200 primary again", "k-3", "order.create", "o-3", ofNorth)
	is("200 primary again", "k-2", "order.update_status", "o-1", paid)
	if effects, unpaid := s.count(`select count(*) from continuity_inbox`), s.count(`select count(*) from orders where order_id = 'o-1' and status <> 'paid'`); effects != 4 || unpaid != 0 {
		t.Errorf("%d effects, %d orders that are not paid", effects, unpaid)
	}
}
