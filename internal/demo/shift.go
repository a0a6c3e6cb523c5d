package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// What is sold; the legacy database holds it as the catalogue.
var menu = []struct {
	name  string
	price int
}{
	{"Lomo a lo pobre", 14900},
	{"Pastel de choclo", 9800},
	{"Empanada de pino", 3200},
	{"Caldillo de congrio", 13500},
	{"Cazuela <de vacuno> & choclo", 8900},
	{"Té ☕ y kuchen", 5600},
	{"Pisco sour", 5200},
}

// notes hold what copying damages first: characters that are escaped, in more
// than one way, and one that Postgres' jsonb refuses.
var notes = []string{"", "", "sin cebolla 🌶", "\"para llevar\" \\ mesa <4> & 5", "impresora: \x00\x1f fin", "ñandú\u2028\u00a0"}

// shift is a till's work of one day in the database of that day.
type shift struct {
	*till
	day, db string
}

// Most orders of a shift; the fewest are half of it.
const maxOrders = 14

// work opens the till, sells, is paid, closes what was sold and closes the till.
// If leaveOpen is set, the last order is still open at the end and returned.
func (s *shift) work(ctx context.Context, leaveOpen bool) (*document, error) {
	drawer := s.newDocument("cashflow", s.day)
	drawer.Status, drawer.Total = "open", "50000"
	var orders []*document
	for range maxOrders/2 + s.rand.IntN(maxOrders/2+1) {
		orders = append(orders, s.order())
	}
	mistake := s.order()
	if err := s.save(ctx, s.db, append(orders, mistake, drawer)...); err != nil {
		return nil, err
	}

	var open *document
	if leaveOpen {
		last := len(orders) - 1
		orders, open = orders[:last], orders[last]
	}
	if err := s.pay(ctx, orders); err != nil {
		return nil, err
	}
	s.delete(mistake)
	drawer.Status, drawer.ClosedAt = "closed", s.now()
	if err := s.closeAll(ctx, orders, mistake, drawer); err != nil {
		return nil, err
	}
	photo := append([]byte("\x89PNG\r\n\x1a\n"), s.noise(2000)...)
	return open, s.attach(ctx, s.db, orders[0], "table.png", "image/png", photo)
}

func (s *shift) now() string { return clock(s.day, s.sold) }

// order of one to three things.
func (s *shift) order() *document {
	d := s.newDocument("order", s.day)
	d.Status = "open"
	d.Folio = json.Number(strconv.FormatInt(1<<53+int64(s.sold)*2+1, 10))
	d.Note = notes[s.rand.IntN(len(notes))]
	total := 0
	for range 1 + s.rand.IntN(3) {
		thing := menu[s.rand.IntN(len(menu))]
		total += thing.price
		d.Lines = append(d.Lines, line{Product: thing.name, Quantity: "1.0", Price: json.Number(strconv.Itoa(thing.price))})
	}
	d.Total = json.Number(strconv.Itoa(total) + ".50")
	return d
}

// pay pays the orders, one of them at the second try.
func (s *shift) pay(ctx context.Context, orders []*document) error {
	declined := s.payment(orders[0])
	declined.Status = "rejected"
	docs := []*document{declined}
	for _, order := range orders {
		payment := s.payment(order)
		payment.Status = "approved"
		order.Status = "paid"
		docs = append(docs, payment, order)
	}
	return s.save(ctx, s.db, docs...)
}

func (s *shift) payment(order *document) *document {
	d := s.newDocument("payment", s.day)
	d.Order, d.Total, d.Method = order.ID, order.Total, []string{"cash", "debit"}[s.rand.IntN(2)]
	return d
}

// delete marks a document deleted: as PouchDB does it, or with fields that say why.
func (s *shift) delete(d *document) {
	id, rev := d.ID, d.Rev
	*d = document{ID: id, Rev: rev, Deleted: true}
	if s.rand.IntN(2) == 0 {
		d.Type, d.Status, d.Note = "order", "void", "entered by mistake"
	}
}

// closeAll closes the orders, some with their receipt, books what left the
// kitchen, and saves the others with them.
func (s *shift) closeAll(ctx context.Context, orders []*document, others ...*document) error {
	docs := others
	for i, order := range orders {
		order.Status, order.ClosedAt = "closed", s.now()
		if i > 0 && s.rand.IntN(12) == 0 {
			order.Status = "cancelled"
		}
		if i%4 == 0 {
			order.Attachments = map[string]*attachment{"receipt.txt": {ContentType: "text/plain", Data: receipt(order)}}
		}
		movement := s.newDocument("inventory_movement", s.day)
		movement.Order, movement.Product, movement.Quantity = order.ID, order.Lines[0].Product, "-1.0"
		docs = append(docs, order, movement)
	}
	return s.save(ctx, s.db, docs...)
}

// receipt is text, which CouchDB stores compressed.
func receipt(order *document) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "BOLETA %s\n%s\n", order.Folio, order.CreatedAt)
	for _, l := range order.Lines {
		fmt.Fprintf(&b, "%-40s %10s\n", l.Product, l.Price)
	}
	fmt.Fprintf(&b, "%-40s %10s\n\n¡Gracias por su visita!\n", "TOTAL", order.Total)
	return b.Bytes()
}

// noise is content that does not compress.
func (t *till) noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(t.rand.Uint32())
	}
	return b
}
