package primary

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// TestPoison: what Postgres cannot hold, and what the queue would not take, is
// the command's fault and never the primary's, which edges would leave for it.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(2, continuity.Direct)
	h := s.handler(&counter{})
	order := func(extra string) string {
		return strings.Replace(createBody, `"total":12990`, extra, 1)
	}
	// Postgres writes a space behind each comma and colon.
	dense := `"n":[` + strings.Repeat("1,", contracts.MaxCommandPayloadBytes/2-100) + `1]`
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"a number beyond numeric":        {order(`"n":1e999999`), 422, "invalid_command"},
		"a number with too many places":  {order(`"n":0.` + strings.Repeat("1", 16400)), 422, "invalid_command"},
		"a NUL":                          {order(`"n":"\u0000"`), 422, "invalid_command"},
		"half a character":               {order(`"n":"\ud800"`), 422, "invalid_command"},
		"nested too deep for the parser": {order(`"n":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000)), 422, "invalid_command"},
		"too large as Postgres keeps it": {order(dense), 413, "payload_too_large"},
		"numbers that grow":              {order(`"n":[` + strings.Repeat("1e300,", 300) + `1]`), 413, "payload_too_large"},
		"a NUL in a key":                 {strings.Replace(createBody, `"k"`, `"k\u0000"`, 1), 422, "invalid_command"},
		"half a character in a key":      {strings.Replace(createBody, `"k"`, `"k\ud800"`, 1), 422, "invalid_command"},
		"half a character in an id":      {strings.Replace(createBody, `"o1"`, `"o\ud800"`, 1), 422, "invalid_command"},
		"another object behind it":       {createBody + `{}`, 422, "invalid_command"},
		"an order's id without an end": {fmt.Sprintf(
			`{"idempotencyKey":"k","commandType":"payment.record","aggregateType":"payment","aggregateId":"p1","payload":{"companyId":"acme","restaurantId":"north","status":"approved","orderId":%q}}`,
			strings.Repeat("o", 65000)), 422, "invalid_command"},
	} {
		if a := ask(t, h, "POST", "/internal/commands", c.body); a.Code != c.status || a.problem.Code != c.code {
			t.Errorf("%s: %d %.300s", name, a.Code, a.Body)
		}
	}
	for _, table := range []string{"continuity_inbox", "orders", "payments", "primary_outbox", "primary_notices", "primary_refusals"} {
		if n := s.count(table); n != 0 {
			t.Errorf("%d rows in %s", n, table)
		}
	}
	// The largest that both take.
	if a := ask(t, h, "POST", "/internal/commands", order(`"n":"`+strings.Repeat("x", contracts.MaxCommandPayloadBytes-57)+`"`)); a.Code != 200 {
		t.Errorf("the largest: %d %.300s", a.Code, a.Body)
	}
	// What a refusal says ends up in logs and in the row of a dead command.
	const told = "what the guest has said"
	for kind, body := range map[string]string{
		"order.update_status": `"aggregateType":"order","payload":{"status":"` + told + `"}`,
		"payment.record":      `"aggregateType":"payment","payload":{"companyId":"acme","restaurantId":"north","status":"` + told + `"}`,
		"order.create":        `"aggregateType":"order","payload":{"companyId":"` + told + `","restaurantId":"north"}`,
		"cashflow.record":     `"aggregateType":"cashflow","payload":{"companyId":"acme","restaurantId":"north","kind":"` + told + `","amount":"` + told + `"}`,
	} {
		a := ask(t, h, "POST", "/internal/commands", `{"idempotencyKey":"said","commandType":"`+kind+`","aggregateId":"o1",`+body+`}`)
		if a.Code < 400 || a.Code >= 500 || strings.Contains(a.Body.String(), told) {
			t.Errorf("%s: %d %s", kind, a.Code, a.Body)
		}
	}
}
