package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"

	"golang.org/x/sync/errgroup"
)

const (
	// docsAtOnce is how many documents are written in one request.
	docsAtOnce = 2000
	// loaders is how many requests are under way at a time.
	loaders = 2
)

var dishes = []string{
	"Pastel de choclo", "Empanada de pino", "Cazuela de vacuno", "Lomo a lo pobre", "Churrasco italiano",
	"Completo", "Humitas", "Ceviche de reineta", "Chupe de jaiba", "Porotos granados", "Sopaipillas", "Leche asada",
	"Mote con huesillo", "Terremoto", "Pisco sour", "Jugo de chirimoya", "Agua mineral", "Café cortado",
}

var notes = []string{"sin cebolla", "término medio", "para llevar", "extra palta", "sin sal", "bien caliente", ""}

// appendOrder appends a closed order of about 1 KB. No two orders are equal: the
// same i gives the same order.
func appendOrder(b []byte, i int) []byte {
	r := rand.New(rand.NewPCG(uint64(i), 0x9e3779b97f4a7c15))
	id := fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64())
	second := i % 86400
	b = fmt.Appendf(b, `{"_id":"order:%s","type":"order","status":"closed","number":%d,"table":"M%02d","waiter":"user:%08x","deviceId":"till-%02d",`,
		id, i+1, r.IntN(60), r.Uint32(), r.IntN(6))
	b = fmt.Appendf(b, `"openedAt":"2026-11-01T%02d:%02d:%02d.%03dZ","closedAt":"2026-11-01T%02d:%02d:%02d.%03dZ","businessDay":"20261101","items":[`,
		second/3600, second/60%60, second%60, r.IntN(1000), second/3600, second/60%60, second%60, r.IntN(1000))
	total := 0
	for n := range 5 {
		if n > 0 {
			b = append(b, ',')
		}
		quantity, price := 1+r.IntN(3), 990+10*r.IntN(1500)
		total += quantity * price
		b = fmt.Appendf(b, `{"lineId":"%012x","productId":"product:%08x","name":%q,"quantity":%d,"unitPrice":%d,"note":%q}`,
			r.Uint64()>>16, r.Uint32(), dishes[r.IntN(len(dishes))], quantity, price, notes[r.IntN(len(notes))])
	}
	return fmt.Appendf(b, `],"subtotal":%d,"tip":%d,"total":%d,"payments":[{"paymentId":"payment:%016x","method":"card","amount":%d}]}`,
		total, total/10, total+total/10, r.Uint64(), total+total/10)
}

// load writes the orders 0 to n-1 into a database.
func (s *stores) load(ctx context.Context, db string, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for first := 0; first < n; first += docsAtOnce {
		group.Go(func() error { return s.loadSome(ctx, db, first, min(n, first+docsAtOnce)) })
	}
	return group.Wait()
}

func (s *stores) loadSome(ctx context.Context, db string, first, end int) error {
	body := []byte(`{"docs":[`)
	for i := first; i < end; i++ {
		if i > first {
			body = append(body, ',')
		}
		body = appendOrder(body, i)
	}
	body = append(body, `]}`...)
	target := s.couchURL + "/" + url.PathEscape(db) + "/_bulk_docs"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if written := bytes.Count(answer, []byte(`"ok":true`)); res.StatusCode != http.StatusCreated || written != end-first {
		return fmt.Errorf("bulk write of %d documents: %s, %d written", end-first, res.Status, written)
	}
	return nil
}
