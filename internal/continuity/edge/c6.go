package edge

import (
	"encoding/json"

	"github.com/labstack/echo/v4"
)

const (
	c6Name = "c6"
	// maxPix bounds how many payments one webhook may tell of.
	maxPix = 100
)

// C6 verifies the webhooks of C6 Bank, which have the form that all banks of Pix
// have.
type C6 struct {
	// Token is what the bank was given to send along: as a bearer token, in the
	// header x-webhook-token, or as the parameter token of the URL.
	Token string
}

func (b *C6) authentic(c echo.Context) bool {
	given := bearer(c.Request())
	if given == "" {
		given = c.Request().Header.Get("X-Webhook-Token")
	}
	if given == "" {
		given = c.QueryParam("token")
	}
	return sameSecret(given, b.Token)
}

// pix is one payment. There are more fields, about the payer, which are left out.
type pix struct {
	// EndToEndID is the payment's in all of Pix.
	EndToEndID string `json:"endToEndId"`
	// TxID is the charge's, chosen by the shop: the order's id. One who pays
	// without a charge has none.
	TxID   string `json:"txid"`
	Amount string `json:"valor"`
}

// c6 takes POST /v1/webhooks/c6. A payment is told of when it is made.
func (e *Edge) c6(c echo.Context) error {
	if e.opts.C6 == nil {
		return notConfigured(c6Name)
	}
	if !e.opts.C6.authentic(c) {
		return e.forged(c, c6Name)
	}
	body, err := readBody(c, maxWebhook)
	if err != nil {
		return err
	}
	var told struct {
		Pix []pix `json:"pix"`
	}
	if err := json.Unmarshal(body, &told); err != nil {
		return e.webhookRefused(c, c6Name, invalid("", "the body is not JSON as banks of Pix send it"))
	}
	if len(told.Pix) > maxPix {
		return e.webhookRefused(c, c6Name, invalid("pix", "more than %d payments", maxPix))
	}
	var payments []confirmation
	for _, p := range told.Pix {
		if p.TxID == "" {
			continue
		}
		payments = append(payments, confirmation{
			provider: c6Name,
			key:      c6Name + ":pix:" + p.TxID,
			order:    p.TxID,
			payload:  payload{TransactionID: p.TxID, Amount: p.Amount, Currency: "BRL", Method: "pix", EndToEndID: p.EndToEndID},
		})
	}
	if len(payments) == 0 {
		return e.ignore(c, c6Name, "no payment of a charge")
	}
	return e.confirm(c, c6Name, payments)
}
