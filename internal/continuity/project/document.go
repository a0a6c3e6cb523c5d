package project

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/rollingd/rollingd/contracts"
)

// kind is a type of aggregate that becomes a type of document.
type kind struct {
	name  string
	table string
	// id, other, amount and method are columns, or null.
	id, other, amount, method string
	// idField and otherField are the documents' names for the ids.
	idField, otherField string
	// statuses are those of the table.
	statuses []string
}

var kinds = []kind{
	{
		name: "order", table: "orders", id: "order_id", other: "payment_id", amount: "null::text", method: "null::text",
		idField: "orderId", otherField: "paymentId", statuses: []string{"pending", "paid", "preparing", "delivered", "cancelled", "refunded"},
	},
	{
		name: "payment", table: "payments", id: "payment_id", other: "order_id", amount: "a.amount::text", method: "a.method",
		idField: "paymentId", otherField: "orderId", statuses: []string{"pending", "approved", "rejected", "refunded", "voided"},
	},
}

// docID is the same for the same aggregate, whoever writes it and how often.
func (k kind) docID(id string) string { return k.name + ":" + id }

// ended are the statuses that end the document's life.
func (k kind) ended() (ended []string) {
	for _, status := range k.statuses {
		if contracts.IsTerminal(k.name, statusOf(status)) {
			ended = append(ended, status)
		}
	}
	return ended
}

// renamed are statuses that documents call otherwise: an order that was delivered
// is closed, which is what ends the document's life.
var renamed = map[string]string{"delivered": "closed"}

func statusOf(status string) string {
	if renamed, ok := renamed[status]; ok {
		return renamed
	}
	return status
}

// mark is the part of a document that is the projection's alone.
type mark struct {
	Version int64  `json:"version"`
	Status  string `json:"status"`
}

const markField = "continuity"

// markIn is that of a document, zero for none.
func markIn(doc []byte) mark {
	m := gjson.GetBytes(doc, markField)
	return mark{Version: m.Get("version").Int(), Status: m.Get("status").String()}
}

// shows reports whether a document shows the item's version, or a later one. The
// same version of another status is of a history that a restore of Postgres lost.
func shows(doc []byte, it item) bool {
	m := markIn(doc)
	return m.Version > it.Version || m == mark{it.Version, it.Status}
}

// merge returns the document with the item's version in it, or nil if it shows
// that version or a later one. Whatever else a till has written in it stays, and
// so does a till's status that ends the document's life, unless the primary's ends
// it too. Bytes that the primary was given, such as numbers, go through as they are.
func (k kind) merge(present []byte, it item) (map[string]json.RawMessage, error) {
	doc := make(map[string]json.RawMessage)
	if present == nil {
		if err := json.Unmarshal(it.Details, &doc); err != nil {
			return nil, fmt.Errorf("details of %s: %w", k.name, err)
		}
		for field := range doc {
			if strings.HasPrefix(field, "_") {
				delete(doc, field) // CouchDB refuses those that it does not know.
			}
		}
	} else {
		if shows(present, it) {
			return nil, nil
		}
		if err := json.Unmarshal(present, &doc); err != nil {
			return nil, fmt.Errorf("document of %s: %w", k.name, err)
		}
	}
	status := statusOf(it.Status)
	had := gjson.GetBytes(present, "status").String()
	if tills := had != statusOf(markIn(present).Status); tills && contracts.IsTerminal(k.name, had) && !contracts.IsTerminal(k.name, status) {
		status = had
	}
	fields := map[string]any{
		"type":         k.name,
		"companyId":    it.CompanyID,
		"restaurantId": it.RestaurantID,
		"businessDay":  it.Day.Business,
		k.idField:      it.ID,
		"status":       status,
		"createdAt":    it.CreatedAt.UTC().Format(time.RFC3339Nano),
		"updatedAt":    it.UpdatedAt.UTC().Format(time.RFC3339Nano),
		markField:      mark{Version: it.Version, Status: it.Status},
	}
	if it.Amount != nil {
		fields["amount"] = json.RawMessage(*it.Amount)
	}
	if it.Method != nil {
		fields["method"] = *it.Method
	}
	if it.Other != nil {
		fields[k.otherField] = *it.Other
	}
	if !it.Origin.IsZero() {
		fields["originDay"] = it.Origin
	}
	for field, value := range fields {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", field, k.name, err)
		}
		doc[field] = raw
	}
	return doc, nil
}
