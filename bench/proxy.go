package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollingd/rollingd/internal/couch"
	"github.com/rollingd/rollingd/internal/daydb"
)

const (
	// tills are under way at a time.
	tills = 4
	// docsPerPush is PouchDB's batch.
	docsPerPush = 100
)

// way is one of the two ways of a till to the database of its day.
type way struct {
	base   string
	header http.Header
	client *http.Client

	bulk, single, feed runs
	bulkLatency        []time.Duration
	singleLatency      []time.Duration
}

// proxyBench compares what tills do through the server with the same directly,
// under the same role: whoever asks CouchDB as its administrator asks for less.
type proxyBench struct {
	*bench
	world          *world
	day            string
	proxied, plain *way
	// written counts orders, of which no two are equal.
	written int
}

func (b *bench) proxy(ctx context.Context) (err error) {
	m := &proxyBench{bench: b}
	if m.world, err = b.stores.newWorld(ctx, couch.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.world.close(ctx), b.stores.removeEnv(ctx, m.world.env)) }()
	s, err := b.startServer(ctx, m.world)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := m.prepare(ctx, s); err != nil {
		return err
	}
	for round := range b.sizes.rounds {
		b.say("round %d of %d", round+1, b.sizes.rounds)
		ways := []*way{m.proxied, m.plain}
		if round%2 == 1 {
			slices.Reverse(ways)
		}
		for _, measure := range []func(context.Context, *way) error{m.push, m.put, m.pull} {
			for _, w := range ways {
				if err := measure(ctx, w); err != nil {
					return err
				}
			}
		}
	}
	m.report()
	return nil
}

func (m *proxyBench) prepare(ctx context.Context, s *server) error {
	days, err := daydb.List(ctx, m.world.pool, daydb.Filter{States: []daydb.State{daydb.Active}})
	if err != nil || len(days) != 1 {
		return fmt.Errorf("%d days are ACTIVE: %w", len(days), err)
	}
	m.day = days[0].Name
	token, err := s.token(ctx, "till-1")
	if err != nil {
		return err
	}
	m.proxied = &way{
		base:   s.url + "/db/daily_" + days[0].BusinessDay.String(),
		header: http.Header{"Authorization": {"Bearer " + token}},
		client: &http.Client{Transport: newTransport()},
	}
	const user = "device:bench"
	mac := hmac.New(sha256.New, []byte(m.stores.proxySecret))
	mac.Write([]byte(user))
	m.plain = &way{
		base: withoutUser(m.stores.couchURL) + "/" + escape(m.day),
		header: http.Header{
			"X-Auth-Couchdb-Username": {user},
			"X-Auth-Couchdb-Roles":    {shop.Role()},
			"X-Auth-Couchdb-Token":    {hex.EncodeToString(mac.Sum(nil))},
		},
		client: &http.Client{Transport: newTransport()},
	}
	m.written = m.sizes.feedDocs
	if err := m.stores.load(ctx, m.day, m.sizes.feedDocs); err != nil {
		return err
	}
	// Connections and caches are warm on both ways before anything counts.
	for _, w := range []*way{m.proxied, m.plain} {
		if _, err := w.do(ctx, http.MethodGet, "", nil); err != nil {
			return err
		}
	}
	return nil
}

// push sends batches as replication does.
func (m *proxyBench) push(ctx context.Context, w *way) error {
	batches := make([][]byte, m.sizes.pushes)
	for i := range batches {
		var b bytes.Buffer
		b.WriteString(`{"docs":[`)
		for n := range docsPerPush {
			if n > 0 {
				b.WriteByte(',')
			}
			b.Write(m.order())
		}
		b.WriteString(`]}`)
		batches[i] = b.Bytes()
	}
	t, latency, err := m.each(ctx, len(batches), func(ctx context.Context, i int) error {
		answer, err := w.do(ctx, http.MethodPost, "/_bulk_docs", batches[i])
		if err == nil && bytes.Contains(answer, []byte(`"error"`)) {
			err = fmt.Errorf("_bulk_docs: %s", answer)
		}
		return err
	})
	w.bulk, w.bulkLatency = append(w.bulk, t), append(w.bulkLatency, latency...)
	return err
}

// put writes one order after the other on each till.
func (m *proxyBench) put(ctx context.Context, w *way) error {
	orders, paths := make([][]byte, m.sizes.puts), make([]string, m.sizes.puts)
	for i := range orders {
		orders[i] = m.order()
		var named struct {
			ID string `json:"_id"`
		}
		if err := json.Unmarshal(orders[i], &named); err != nil {
			return err
		}
		paths[i] = "/" + named.ID
	}
	t, latency, err := m.each(ctx, len(orders), func(ctx context.Context, i int) error {
		_, err := w.do(ctx, http.MethodPut, paths[i], orders[i])
		return err
	})
	w.single, w.singleLatency = append(w.single, t), append(w.singleLatency, latency...)
	return err
}

// pull reads the feed of the first documents to its end.
func (m *proxyBench) pull(ctx context.Context, w *way) error {
	t, _, err := m.each(ctx, 1, func(ctx context.Context, _ int) error {
		answer, err := w.do(ctx, http.MethodGet, fmt.Sprintf("/_changes?include_docs=true&limit=%d", m.sizes.feedDocs), nil)
		if err == nil && bytes.Count(answer, []byte(`"seq"`)) < m.sizes.feedDocs {
			err = errors.New("the feed is short")
		}
		return err
	})
	w.feed = append(w.feed, t)
	return err
}

func (m *proxyBench) order() []byte {
	m.written++
	return appendOrder(nil, m.written)
}

// each does n things, as many at a time as there are tills.
func (m *proxyBench) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) (took, []time.Duration, error) {
	latency := make([]time.Duration, n)
	t, err := timed(func() (took, error) {
		before, start := ownCPU(), time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(tills)
		var mu sync.Mutex
		for i := range n {
			group.Go(func() error {
				start := time.Now()
				err := do(ctx, i)
				mu.Lock()
				defer mu.Unlock()
				latency[i] = time.Since(start)
				return err
			})
		}
		err := group.Wait()
		return took{wall: time.Since(start), client: ownCPU() - before}, err
	})
	return t, latency, err
}

func (w *way) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	var payload io.Reader
	if body != nil {
		payload = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, payload)
	if err != nil {
		return nil, err
	}
	req.Header = w.header.Clone()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return answerOf(w.client, req)
}

func (m *proxyBench) report() {
	p, d := m.proxied, m.plain
	s := m.results.section(fmt.Sprintf("Tills through the server and directly, %d at a time (medians of %d rounds)", tills, m.sizes.rounds),
		"", "through the server", "directly", "throughput", "goal", "")
	line := func(name string, proxied, plain string, ratio float64, g goal) {
		want, verdict := g.cells(ratio)
		s.row(name, proxied, plain, times(ratio), want, verdict)
	}
	docs := m.sizes.pushes * docsPerPush
	line(fmt.Sprintf("_bulk_docs of %d documents of about 1 KB", docsPerPush), p.bulk.rate(docs), d.bulk.rate(docs), d.bulk.over(p.bulk), atLeast(0.9, "x"))
	line("_changes with documents", p.feed.rate(m.sizes.feedDocs), d.feed.rate(m.sizes.feedDocs), d.feed.over(p.feed), atLeast(0.9, "x"))
	line("single PUTs", p.single.rate(m.sizes.puts), d.single.rate(m.sizes.puts), d.single.over(p.single), goal{})

	s = m.results.section("What a till waits", "", "through the server: median", "99 of 100", "directly: median", "99 of 100")
	row := func(name string, proxied, plain []time.Duration) {
		s.row(name, millis(percentile(proxied, 50)), millis(percentile(proxied, 99)), millis(percentile(plain, 50)), millis(percentile(plain, 99)))
	}
	row("_bulk_docs", p.bulkLatency, d.bulkLatency)
	row("single PUTs", p.singleLatency, d.singleLatency)
}

// percentile of what is not empty.
func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
