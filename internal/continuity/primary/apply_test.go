package primary

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
)

// TestCommands runs one order's life after another, and compares what each
// command says and leaves.
func TestCommands(t *testing.T) {
	t.Parallel()
	type step struct {
		kind, payload string
		want          string // the result, or the error's text
		err           error
	}
	create := step{"order.create", ofNorth, `{"orderId":"o1","status":"pending","version":1}`, nil}
	pay := step{"order.confirm_payment", paidBy1, `{"orderId":"o1","status":"paid","version":2}`, nil}
	cancel := step{"order.cancel", `{"reason":"no fish"}`, `{"orderId":"o1","status":"cancelled","version":2}`, nil}
	set := func(status, want string) step {
		return step{"order.update_status", `{"status":"` + status + `"}`, want, nil}
	}
	refused := func(kind, payload string, err error) step { return step{kind, payload, "", err} }
	prepare := set("preparing", `{"orderId":"o1","status":"preparing","version":3}`)
	deliver := set("delivered", `{"orderId":"o1","status":"delivered","version":4}`)
	for name, c := range map[string]struct {
		steps   []step
		notices string
		events  int
	}{
		"a meal":                      {[]step{create, pay, prepare, deliver}, "", 5},
		"refunded in the end":         {[]step{create, pay, prepare, deliver, set("refunded", `{"orderId":"o1","status":"refunded","version":5}`)}, "", 6},
		"paid after the cancellation": {[]step{create, cancel, {"order.confirm_payment", paidBy1, `{"orderId":"o1","status":"cancelled","version":2,"notice":"payment_after_end"}`, nil}}, "payment_after_end", 2},
		"cancelled after the payment": {[]step{create, pay, {"order.cancel", `{}`, `{"orderId":"o1","status":"cancelled","version":3,"notice":"refund_due"}`, nil}}, "refund_due", 4},
		"paid twice by one":           {[]step{create, pay, pay}, "", 3},
		"paid by two":                 {[]step{create, pay, {"order.confirm_payment", `{"transactionId":"t2"}`, `{"orderId":"o1","status":"paid","version":2,"notice":"paid_twice"}`, nil}}, "paid_twice", 3},
		"paid without a transaction": {[]step{create, set("paid", `{"orderId":"o1","status":"paid","version":2}`),
			{"order.confirm_payment", paidBy1, `{"orderId":"o1","status":"paid","version":3}`, nil}}, "", 4},
		"confirmed after it was served": {[]step{create, pay, prepare, deliver,
			{"order.confirm_payment", paidBy1, `{"orderId":"o1","status":"delivered","version":4}`, nil}}, "", 5},
		"cancelled twice":            {[]step{create, cancel, cancel}, "", 2},
		"overtaken":                  {[]step{create, pay, prepare, set("paid", `{"orderId":"o1","status":"preparing","version":3,"notice":"overtaken"}`)}, "overtaken", 4},
		"cancelled when delivered":   {[]step{create, pay, prepare, deliver, {"order.cancel", `{}`, `{"orderId":"o1","status":"delivered","version":4,"notice":"overtaken"}`, nil}}, "overtaken", 5},
		"a step left out":            {[]step{create, refused("order.update_status", `{"status":"preparing"}`, ErrIllegalMove)}, "", 1},
		"never created":              {[]step{refused("order.cancel", `{}`, ErrUnknownAggregate)}, "", 0},
		"created twice":              {[]step{create, refused("order.create", ofNorth, ErrExists)}, "", 1},
		"of nobody":                  {[]step{refused("order.create", `{"companyId":"acme"}`, continuity.ErrInvalid)}, "", 0},
		"of a name with a separator": {[]step{refused("order.create", `{"companyId":"a_b","restaurantId":"c"}`, continuity.ErrInvalid)}, "", 0},
		"to no status":               {[]step{create, refused("order.update_status", `{"status":"gone"}`, ErrIllegalMove)}, "", 1},
		"to none":                    {[]step{create, refused("order.update_status", `{}`, continuity.ErrInvalid)}, "", 1},
		"no object":                  {[]step{refused("order.create", `[]`, continuity.ErrInvalid)}, "", 0},
		"no JSON":                    {[]step{refused("order.create", `{`, continuity.ErrInvalid)}, "", 0},
		"a NUL":                      {[]step{refused("order.create", `{"companyId":"acme","restaurantId":"north","note":"\u0000"}`, continuity.ErrInvalid)}, "", 0},
		"an amount below nothing":    {[]step{create, refused("order.confirm_payment", `{"transactionId":"t1","amount":-1}`, continuity.ErrInvalid)}, "", 1},
		"unheard of":                 {[]step{refused("order.bless", `{}`, ErrUnknownType)}, "", 0},
		"too large":                  {[]step{refused("order.create", `{"note":"`+strings.Repeat("x", 64<<10)+`"}`, continuity.ErrPayloadTooLarge)}, "", 0},
		"a payment": {[]step{
			{"payment.record", `{"companyId":"acme","restaurantId":"north","status":"pending","amount":5}`, `{"paymentId":"o1","status":"pending","version":1}`, nil},
			{"payment.record", `{"companyId":"acme","restaurantId":"north","status":"approved"}`, `{"paymentId":"o1","status":"approved","version":2}`, nil},
			{"payment.record", `{"companyId":"acme","restaurantId":"north","status":"pending"}`, `{"paymentId":"o1","status":"approved","version":2,"notice":"overtaken"}`, nil},
			{"payment.record", `{"companyId":"acme","restaurantId":"south","status":"voided"}`, "", ErrExists},
			{"payment.record", `{"companyId":"acme","restaurantId":"north","status":"voided"}`, `{"paymentId":"o1","status":"voided","version":3}`, nil},
		}, "overtaken", 3},
		"a cash flow": {[]step{
			{"cashflow.record", `{"companyId":"acme","restaurantId":"north","kind":"expense","amount":"3.50"}`, `{"entryId":"o1"}`, nil},
			{"cashflow.record", `{"companyId":"acme","restaurantId":"north","kind":"expense","amount":"3.50"}`, "", ErrExists},
			{"cashflow.record", `{"companyId":"acme","restaurantId":"north","kind":"loss","amount":"3.50"}`, "", continuity.ErrInvalid},
		}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, Options{})
			s.open(1, continuity.Direct)
			for i, st := range c.steps {
				out, err := s.Apply(t.Context(), order1(st.kind, "", st.payload), 1)
				if !errors.Is(err, st.err) {
					t.Fatalf("step %d, %s: %v, want %v", i, st.kind, err, st.err)
				}
				if err == nil && string(out.Result) != st.want {
					t.Errorf("step %d, %s: %s, want %s", i, st.kind, out.Result, st.want)
				}
				if err != nil && !errors.Is(err, ErrUnknownType) && !IsRefusal(err) {
					t.Errorf("step %d: %v is no refusal", i, err)
				}
			}
			if got := text[string](s, `select coalesce(string_agg(code, ' '), '') from primary_notices`); got != c.notices {
				t.Errorf("notices %q, want %q", got, c.notices)
			}
			if got := s.count("primary_outbox"); got != c.events {
				t.Errorf("%d events, want %d", got, c.events)
			}
		})
	}
}

func TestExpectedVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "", ofNorth))
	for _, c := range []struct {
		expected int64
		err      error
	}{{2, ErrVersionConflict}, {0, ErrVersionConflict}, {-1, continuity.ErrInvalid}, {1, nil}, {1, ErrVersionConflict}} {
		cmd := order1("order.confirm_payment", "", paidBy1)
		cmd.ExpectedVersion = &c.expected
		if _, err := s.Apply(t.Context(), cmd, 1); !errors.Is(err, c.err) {
			t.Errorf("expecting %d: %v, want %v", c.expected, err, c.err)
		}
	}
}

// TestOneKeyIsOneEffect repeats a key in every mode, by either way, and with
// other payloads.
func TestOneKeyIsOneEffect(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	first := s.apply(order1("order.create", "k", ofNorth))
	again := func(where string, out Outcome, err error) {
		t.Helper()
		if err != nil || !out.Deduplicated || out.CommandID != first.CommandID || out.Kind != "applied" || out.Epoch != 1 {
			t.Errorf("%s: %+v, %v", where, out, err)
		}
		var result orderResult
		if err := json.Unmarshal(out.Result, &result); err != nil || result != (orderResult{OrderID: "o1", Status: Pending, Version: 1}) {
			t.Errorf("%s: result %s, %v", where, out.Result, err)
		}
	}
	// The same value in another form is the same payload.
	other := order1("order.create", "k", `{"restaurantId": "north", "total":12990, "companyId":"acme"}`)
	states := []struct {
		epoch continuity.Epoch
		mode  continuity.Mode
	}{{1, continuity.Direct}, {2, continuity.Queue}, {2, continuity.Catchup}, {2, continuity.Sealed}, {3, continuity.Direct}}
	for _, st := range states {
		s.open(st.epoch, st.mode)
		for _, epoch := range []continuity.Epoch{0, 1, 2, 3, 9} {
			out, err := s.Apply(t.Context(), other, epoch)
			again(string(st.mode), out, err)
		}
		out, err := s.ApplyClaim(t.Context(), s.claim(other, 9), held{})
		again("drained in "+string(st.mode), out, err)
		for what, c := range map[string]continuity.Command{
			"payload":   order1("order.create", "k", `{"companyId":"acme","restaurantId":"north","total":12991}`),
			"type":      order1("order.cancel", "k", ofNorth),
			"aggregate": commandFor("o2", "order.create", "k", ofNorth),
		} {
			if _, err := s.Apply(t.Context(), c, st.epoch); !errors.Is(err, continuity.ErrKeyReused) {
				t.Errorf("another %s in %s: %v", what, st.mode, err)
			}
		}
	}
	if err := s.Close(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	out, err := s.Apply(t.Context(), other, 3)
	again("closed", out, err)
	if n := s.count("continuity_inbox") + s.count("orders") + s.count("primary_outbox"); n != 3 {
		t.Errorf("%d rows of one effect, want 3", n)
	}
	stolen := commandFor("o3", "order.create", "k3", ofNorth)
	stolen.CommandID = first.CommandID
	if _, err := s.Apply(t.Context(), stolen, 3); !errors.Is(err, continuity.ErrNotOpen) {
		t.Errorf("closed: %v", err)
	}
	s.open(3, continuity.Direct)
	if _, err := s.Apply(t.Context(), stolen, 3); !errors.Is(err, continuity.ErrInvalid) {
		t.Errorf("the id of another command: %v", err)
	}
}

// TestOneKeyAtOnce has many callers come with one key at the same moment, half of
// them under another aggregate.
func TestOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	const callers = 12
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			c := order1("order.create", "k", ofNorth)
			if i%2 == 1 {
				c.AggregateID = "o2"
			}
			_, err := s.applyInTime(c, 1)
			errs <- err
		}()
	}
	taken, reused := 0, 0
	for range callers {
		switch err := <-errs; {
		case err == nil:
			taken++
		case errors.Is(err, continuity.ErrKeyReused):
			reused++
		default:
			t.Error(err)
		}
	}
	if taken != callers/2 || reused != callers/2 || s.count("orders") != 1 || s.count("continuity_inbox") != 1 {
		t.Errorf("%d got the outcome, %d were refused, %d orders", taken, reused, s.count("orders"))
	}
}

// TestInvalid refuses before anything is asked of Postgres.
func TestInvalid(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	for what, spoil := range map[string]func(*continuity.Command){
		"no id":       func(c *continuity.Command) { c.CommandID = uuid.Nil },
		"no key":      func(c *continuity.Command) { c.IdempotencyKey = "" },
		"a long key":  func(c *continuity.Command) { c.IdempotencyKey = strings.Repeat("k", 257) },
		"a blank key": func(c *continuity.Command) { c.IdempotencyKey = " \t" },
		"blank order": func(c *continuity.Command) { c.AggregateID = " " },
		"no order":    func(c *continuity.Command) { c.AggregateID = "" },
		"a long name": func(c *continuity.Command) { c.AggregateID = strings.Repeat("o", 257) },
	} {
		c := order1("order.create", "", ofNorth)
		spoil(&c)
		if _, err := s.Apply(t.Context(), c, 1); !errors.Is(err, continuity.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBlankTransaction: it would name a payment whose events the queue's side refuses
// for ever, and their day would never be sealed.
func TestBlankTransaction(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "k", ofNorth))
	_, err := s.Apply(t.Context(), order1("order.confirm_payment", "paid", `{"transactionId":" "}`), 1)
	if !errors.Is(err, continuity.ErrInvalid) || s.count("payments") != 0 {
		t.Errorf("%v, %d payments", err, s.count("payments"))
	}
}

// TestRefusalsRepeatNoPayload: why a command is refused stands in logs, in the
// queue and in alerts.
func TestRefusalsRepeatNoPayload(t *testing.T) {
	t.Parallel()
	s := newShop(t, Options{})
	s.open(1, continuity.Direct)
	s.apply(order1("order.create", "", ofNorth))
	const secret = "4111111111111111"
	for _, c := range []continuity.Command{
		order1("order.update_status", "", `{"status":"`+secret+`"}`),
		order1("order.update_status", "", `{"status":`+secret+`}`),
		order1("order.confirm_payment", "", `{"transactionId":`+secret+`}`),
		order1("order.confirm_payment", "", `{"transactionId":"t","amount":"`+secret+`"}`),
		commandFor("p1", "payment.record", "", `{"companyId":"acme","restaurantId":"north","status":"`+secret+`"}`),
		commandFor("p1", "payment.record", "", `{"companyId":"`+secret+`/","restaurantId":"north","status":"approved"}`),
		commandFor("c1", "cashflow.record", "", `{"companyId":"acme","restaurantId":"north","kind":"`+secret+`","amount":1}`),
	} {
		if _, err := s.Apply(t.Context(), c, 1); !IsRefusal(err) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s %s: %v", c.CommandType, c.Payload, err)
		}
	}
}
