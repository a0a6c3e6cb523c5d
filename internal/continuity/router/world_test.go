package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
	"github.com/rollingd/rollingd/internal/continuity/router"
)

// hosted stands for the hosted database: a fence, a queue and snapshots that
// keep the rules of the real ones.
type hosted struct {
	mu        sync.Mutex
	fence     continuity.Fence
	commands  map[string]*row
	order     []string
	snapshots map[string]router.Snapshot
	// mayOpen says whether the conditions of open_epoch are met, and mayBreak
	// those of reopen.
	mayOpen, mayBreak bool
	opened, looked    int
	// heartbeat says whether the primary has been heard lately; nil is no.
	heartbeat func() bool
	// fail, if set, is asked before each call.
	fail func(call string) error
	// loseReplies is how many enqueues take effect and say that nobody knows.
	loseReplies int
}

type row struct {
	cmd     continuity.Command
	receipt continuity.Receipt
}

func newHosted() *hosted {
	return &hosted{
		fence:     continuity.Fence{Epoch: 1, Mode: continuity.Direct},
		commands:  make(map[string]*row),
		snapshots: make(map[string]router.Snapshot),
		mayOpen:   true,
	}
}

func (h *hosted) enter(call string) error {
	h.mu.Lock()
	if h.fail != nil {
		return h.fail(call)
	}
	return nil
}

func (h *hosted) Enqueue(_ context.Context, cmd continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error) {
	defer h.mu.Unlock()
	if err := h.enter("enqueue"); err != nil {
		return continuity.Receipt{}, err
	}
	if known, ok := h.commands[cmd.IdempotencyKey]; ok {
		if string(known.cmd.Payload) != string(cmd.Payload) {
			return continuity.Receipt{}, continuity.ErrKeyReused
		}
		receipt := known.receipt
		receipt.Deduplicated = true
		return receipt, nil
	}
	switch {
	case epoch != h.fence.Epoch:
		return continuity.Receipt{}, &continuity.StaleEpochError{Current: h.fence.Epoch}
	case h.fence.Mode == continuity.Direct:
		return continuity.Receipt{}, continuity.ErrNotOpen
	case h.fence.Mode == continuity.Sealed:
		return continuity.Receipt{}, continuity.ErrSealed
	}
	h.order = append(h.order, cmd.IdempotencyKey)
	receipt := continuity.Receipt{
		CommandID: cmd.CommandID,
		Sequence:  continuity.Sequence(len(h.order)),
		Status:    contracts.CommandPending,
		Epoch:     epoch,
	}
	h.commands[cmd.IdempotencyKey] = &row{cmd, receipt}
	if h.loseReplies > 0 {
		h.loseReplies--
		return continuity.Receipt{}, continuity.ErrOutcomeUnknown
	}
	return receipt, nil
}

func (h *hosted) ReadSnapshot(_ context.Context, key string) (*router.Snapshot, error) {
	defer h.mu.Unlock()
	if err := h.enter("snapshot"); err != nil {
		return nil, err
	}
	if s, ok := h.snapshots[key]; ok {
		return &s, nil
	}
	return nil, nil
}

func (h *hosted) State(context.Context) (continuity.Fence, error) {
	defer h.mu.Unlock()
	if err := h.enter("state"); err != nil {
		return continuity.Fence{}, err
	}
	h.looked++
	return h.fence, nil
}

func (h *hosted) OpenEpoch(_ context.Context, expected continuity.Epoch, _, _ string) (continuity.Fence, error) {
	defer h.mu.Unlock()
	if err := h.enter("open"); err != nil {
		return continuity.Fence{}, err
	}
	h.opened++
	switch {
	case expected != h.fence.Epoch:
		return continuity.Fence{}, &continuity.StaleEpochError{Current: h.fence.Epoch}
	case h.fence.Mode != continuity.Direct:
		return h.fence, nil
	case !h.mayOpen, h.heartbeat != nil && h.heartbeat():
		return continuity.Fence{}, continuity.ErrNotYet
	}
	h.fence = continuity.Fence{Epoch: expected + 1, Mode: continuity.Queue}
	return h.fence, nil
}

func (h *hosted) Reopen(_ context.Context, epoch continuity.Epoch, _ string) (continuity.Fence, error) {
	defer h.mu.Unlock()
	if err := h.enter("reopen"); err != nil {
		return continuity.Fence{}, err
	}
	if epoch != h.fence.Epoch || h.fence.Mode != continuity.Sealed || !h.mayBreak {
		return continuity.Fence{}, continuity.ErrNotYet
	}
	h.fence.Mode = continuity.Queue
	return h.fence, nil
}

func (h *hosted) set(epoch continuity.Epoch, mode continuity.Mode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fence = continuity.Fence{Epoch: epoch, Mode: mode}
}

func (h *hosted) now() continuity.Fence {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fence
}

func (h *hosted) queued() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.order)
}

// primary stands for the authority: an inbox, and a fence of its own that may
// lag behind the hosted one.
type primary struct {
	mu    sync.Mutex
	fence continuity.Fence
	inbox map[string]continuity.Command
	// effects counts what was done for each key.
	effects map[string]int
	calls   map[string]int
	// down, if set, is asked before each call, which has no effect if it returns
	// an error.
	down func(ctx context.Context, call string) error
	// lose, if set, is asked after an effect, in place of the answer.
	lose func(ctx context.Context) error
}

func newPrimary() *primary {
	return &primary{
		fence:   continuity.Fence{Epoch: 1, Mode: continuity.Direct},
		inbox:   make(map[string]continuity.Command),
		effects: make(map[string]int),
		calls:   make(map[string]int),
	}
}

func (p *primary) enter(ctx context.Context, call string) error {
	p.mu.Lock()
	p.calls[call]++
	down := p.down
	p.mu.Unlock()
	if down != nil {
		return down(ctx, call)
	}
	return nil
}

func (p *primary) Execute(ctx context.Context, epoch continuity.Epoch, cmd continuity.Command) (router.Applied, error) {
	if err := p.enter(ctx, "execute"); err != nil {
		return router.Applied{}, err
	}
	applied, err := p.apply(cmd, epoch, true)
	p.mu.Lock()
	lose := p.lose
	p.mu.Unlock()
	if err == nil && lose != nil {
		return router.Applied{}, lose(ctx)
	}
	return applied, err
}

// apply is what a direct write and the drain have in common.
func (p *primary) apply(cmd continuity.Command, epoch continuity.Epoch, direct bool) (router.Applied, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first, ok := p.inbox[cmd.IdempotencyKey]; ok {
		if string(first.Payload) != string(cmd.Payload) {
			return router.Applied{}, continuity.ErrKeyReused
		}
		return router.Applied{CommandID: first.CommandID, Deduplicated: true}, nil
	}
	switch {
	case direct && epoch < p.fence.Epoch:
		return router.Applied{}, &continuity.StaleEpochError{Current: p.fence.Epoch}
	case direct && (epoch > p.fence.Epoch || p.fence.Mode != continuity.Direct):
		return router.Applied{}, continuity.ErrNotOpen
	}
	p.inbox[cmd.IdempotencyKey] = cmd
	p.effects[cmd.IdempotencyKey]++
	return router.Applied{CommandID: cmd.CommandID, Result: json.RawMessage(`{"version":1}`)}, nil
}

func (p *primary) Read(ctx context.Context, key string) (json.RawMessage, error) {
	if err := p.enter(ctx, "read"); err != nil {
		return nil, err
	}
	return json.RawMessage(fmt.Sprintf(`{"fresh":%q}`, key)), nil
}

func (p *primary) Health(ctx context.Context) (continuity.Fence, error) {
	if err := p.enter(ctx, "health"); err != nil {
		return continuity.Fence{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fence, nil
}

func (p *primary) set(epoch continuity.Epoch, mode continuity.Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fence = continuity.Fence{Epoch: epoch, Mode: mode}
}

func (p *primary) becomes(down func(ctx context.Context, call string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *primary) loses(lose func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = lose
}

func (p *primary) called(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call]
}

func (p *primary) effectsOf(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.effects[key]
}

var errRefused = errors.New("connection refused")

func gone(context.Context, string) error { return errRefused }

func hangs(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// world is a router between the two.
type world struct {
	*router.Router
	hosted  *hosted
	primary *primary
	metrics *prometheus.Registry
}

func newWorld(t testing.TB, change ...func(*router.Options)) *world {
	w := &world{hosted: newHosted(), primary: newPrimary(), metrics: prometheus.NewRegistry()}
	opts := router.Options{
		Primary:   w.primary,
		Queue:     w.hosted,
		Snapshots: w.hosted,
		Fence:     w.hosted,
		Breaker:   breaker.Options{Jitter: -1},
		Instance:  "edge-1",
		Metrics:   w.metrics,
	}
	for _, c := range change {
		c(&opts)
	}
	w.Router = router.New(opts)
	t.Cleanup(w.Close)
	return w
}

// drain applies what is queued and cuts over to direct writes, as the primary
// does when it is back.
func (w *world) drain(t testing.TB) {
	w.hosted.mu.Lock()
	defer w.hosted.mu.Unlock()
	if w.hosted.fence.Mode == continuity.Direct {
		w.primary.set(w.hosted.fence.Epoch, continuity.Direct)
		return
	}
	for _, key := range w.hosted.order {
		row := w.hosted.commands[key]
		if row.receipt.Status != contracts.CommandPending {
			continue
		}
		if _, err := w.primary.apply(row.cmd, 0, false); err != nil {
			t.Errorf("drain %s: %v", key, err)
		}
		row.receipt.Status = contracts.CommandAcked
	}
	w.hosted.fence = continuity.Fence{Epoch: w.hosted.fence.Epoch + 1, Mode: continuity.Direct}
	w.primary.set(w.hosted.fence.Epoch, continuity.Direct)
}

// open makes the breaker open, and lets the open window pass if recovering.
func (w *world) open(t *testing.T, recovering bool) {
	t.Helper()
	w.primary.becomes(gone)
	for range breaker.DefaultFailureThreshold {
		_, _ = w.Read(t.Context(), "menu")
	}
	if recovering {
		<-time.After(breaker.DefaultOpenWindow)
	}
	if state := w.State(); state == breaker.Primary {
		t.Fatalf("still %s", state)
	}
}

func command(key, commandType string) continuity.Command {
	return continuity.Command{
		CommandID:      uuid.New(),
		IdempotencyKey: key,
		CommandType:    commandType,
		AggregateType:  "order",
		AggregateID:    "o-1",
		Payload:        json.RawMessage(`{"total":"12.00"}`),
	}
}

const (
	essential    = "order.create"
	nonEssential = "menu.rename"
)

// codeOf is the code of a refusal, or "" if err is none.
func codeOf(err error) contracts.ErrorCode {
	var refusal *router.Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

// series returns the counters and gauges by name and labels.
func (w *world) series(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += fmt.Sprintf("{%s=%q}", label.GetName(), label.GetValue())
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}
