package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollingd/rollingd/internal/continuity"
)

// traffic is tills that sell without a pause: each takes an order through its
// life, and begins the next.
type traffic struct {
	running sync.WaitGroup
	closing chan struct{}

	mu   sync.Mutex
	errs []error
	// taken counts what a till in the shop was told of.
	taken atomic.Int64
}

// pace is the time between a till's commands.
const pace = 60 * time.Millisecond

// sell opens tills.
func (s *site) sell(ctx context.Context, tills int) *traffic {
	t := &traffic{closing: make(chan struct{})}
	for till := range tills {
		t.running.Go(func() {
			for n := 0; t.open(); n++ {
				if err := s.oneOrder(ctx, t, till, fmt.Sprintf("o-%d-%d", till, n)); err != nil {
					t.mu.Lock()
					t.errs = append(t.errs, err)
					t.mu.Unlock()
					return
				}
			}
		})
	}
	return t
}

func (t *traffic) open() bool {
	select {
	case <-t.closing:
		return false
	default:
		return true
	}
}

// oneOrder takes an order as far as the till is open.
func (s *site) oneOrder(ctx context.Context, t *traffic, edge int, order string) error {
	for _, c := range []command{s.create(order), s.pix(order), s.status(order, "preparing"), s.status(order, "delivered"), s.cashflow()} {
		if !t.open() {
			return nil
		}
		if _, err := s.take(ctx, edge, c); err != nil {
			return err
		}
		if err := pause(ctx, pace); err != nil {
			return err
		}
	}
	return nil
}

// close waits until every till has heard of its last command.
func (t *traffic) close() error {
	close(t.closing)
	t.running.Wait()
	return errors.Join(t.errs...)
}

// more waits until so many commands more were first taken this way.
func (s *site) more(ctx context.Context, n int, way string) error {
	before := s.ledger.count(way)
	return until(ctx, fmt.Sprintf("%d more commands are taken: %s", n, way), func(context.Context) (bool, error) {
		return s.ledger.count(way) >= before+n, nil
	})
}

// during does something while tills sell, and closes them.
func (s *site) during(ctx context.Context, tills int, do func() error) error {
	t := s.sell(ctx, tills)
	err := do()
	return errors.Join(err, t.close())
}

// sellInShop opens a till that writes to the primary itself, under an epoch, for as
// long as it is let.
func (s *site) sellInShop(ctx context.Context, epoch continuity.Epoch) *traffic {
	t := &traffic{closing: make(chan struct{})}
	t.running.Go(func() {
		for t.open() && pause(ctx, pace) == nil {
			c := s.cashflow()
			// One that is told nothing has promised nothing.
			if taken, err := s.write(ctx, c, epoch); err == nil && taken {
				s.ledger.accept(c, answer{Applied: byPrimary})
				t.taken.Add(1)
			}
		}
	})
	return t
}
