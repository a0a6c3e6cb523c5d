package demo

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// document is any document that a till writes; each type uses some of the fields.
type document struct {
	ID          string                 `json:"_id"`
	Rev         string                 `json:"_rev,omitempty"`
	Deleted     bool                   `json:"_deleted,omitempty"`
	Revisions   *revisions             `json:"_revisions,omitempty"`
	Attachments map[string]*attachment `json:"_attachments,omitempty"`

	Type         string `json:"type,omitempty"`
	CompanyID    string `json:"companyId,omitempty"`
	RestaurantID string `json:"restaurantId,omitempty"`
	BusinessDay  string `json:"businessDay,omitempty"`
	// OriginDay is the day that a late document was meant for.
	OriginDay string      `json:"originDay,omitempty"`
	Till      string      `json:"till,omitempty"`
	Status    string      `json:"status,omitempty"`
	Name      string      `json:"name,omitempty"`
	Price     json.Number `json:"price,omitempty"`
	Order     string      `json:"order,omitempty"`
	Method    string      `json:"method,omitempty"`
	Product   string      `json:"product,omitempty"`
	Quantity  json.Number `json:"quantity,omitempty"`
	Lines     []line      `json:"lines,omitempty"`
	Total     json.Number `json:"total,omitempty"`
	// Folio is a fiscal number, beyond what a float holds exactly.
	Folio     json.Number `json:"folio,omitempty"`
	Note      string      `json:"note,omitempty"`
	CreatedAt string      `json:"createdAt,omitempty"`
	ClosedAt  string      `json:"closedAt,omitempty"`
}

// line of an order.
type line struct {
	Product  string      `json:"product"`
	Quantity json.Number `json:"quantity"`
	Price    json.Number `json:"price"`
}

// attachment that is written inline.
type attachment struct {
	ContentType string `json:"content_type"`
	Data        []byte `json:"data"`
}

// revisions is the history that a replicated document brings.
type revisions struct {
	Start int      `json:"start"`
	IDs   []string `json:"ids"`
}

// edit gives the document the next revision as a device makes it offline, where
// no server answers with one.
func (d *document) edit() error {
	generation, parent := 0, ""
	if d.Rev != "" {
		number, hash, _ := strings.Cut(d.Rev, "-")
		var err error
		if generation, err = strconv.Atoi(number); err != nil {
			return fmt.Errorf("revision %q: %w", d.Rev, err)
		}
		parent = hash
	}
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	sum := md5.Sum(body)
	id := hex.EncodeToString(sum[:])
	d.Rev = fmt.Sprintf("%d-%s", generation+1, id)
	d.Revisions = &revisions{Start: generation + 1, IDs: []string{id}}
	if parent != "" {
		d.Revisions.IDs = append(d.Revisions.IDs, parent)
	}
	return nil
}

// contents returns the attachments that the document brings.
func (d *document) contents() map[string][]byte {
	all := make(map[string][]byte, len(d.Attachments))
	for name, a := range d.Attachments {
		all[name] = a.Data
	}
	return all
}
