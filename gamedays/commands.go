package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// queueOpen cuts the tunnel and returns when the queue takes commands.
func (s *site) queueOpen(ctx context.Context) error {
	if err := s.cutTunnel(); err != nil {
		return err
	}
	return until(ctx, "the queue is open", func(ctx context.Context) (bool, error) {
		a, err := s.take(ctx, 0, s.cashflow())
		return a.Applied == byQueue, err
	})
}

// takeAll sends commands one after the other, over the edges in turn.
func (s *site) takeAll(ctx context.Context, commands ...command) error {
	for n, c := range commands {
		if _, err := s.take(ctx, n, c); err != nil {
			return err
		}
	}
	return nil
}

// again sends commands that were taken before: each edge has to know them.
func (s *site) again(ctx context.Context, commands ...command) error {
	for _, c := range commands {
		for edge := range s.edges {
			a, err := s.take(ctx, edge, c)
			if err != nil {
				return err
			}
			if !a.Deduplicated {
				return fmt.Errorf("%s was taken twice, as if it were new", c.IdempotencyKey)
			}
		}
	}
	return nil
}

func late(at time.Time, c command) command {
	c.OccurredAt = &at
	return c
}

// clocksSkewed: the clients' clocks are off by five minutes, either way, and
// those of a payment provider. Nothing may go by them.
func (s *site) clocksSkewed(ctx context.Context) error {
	ahead, behind := time.Now().Add(5*time.Minute), time.Now().Add(-5*time.Minute)
	life := func(order string) []command {
		s.faults += 4
		return []command{
			late(ahead, s.create(order)),
			s.mercadoPago("paid-"+order, order, behind),
			late(behind, s.status(order, "preparing")),
			late(behind.Add(-time.Minute), s.status(order, "delivered")),
		}
	}
	var orders []string
	for n := range 5 {
		order := fmt.Sprintf("skew-direct-%d", n)
		orders = append(orders, order)
		if err := s.takeAll(ctx, life(order)...); err != nil {
			return err
		}
	}
	if err := s.queueOpen(ctx); err != nil {
		return err
	}
	for n := range 5 {
		order := fmt.Sprintf("skew-queued-%d", n)
		orders = append(orders, order)
		if err := s.takeAll(ctx, life(order)...); err != nil {
			return err
		}
	}
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	for _, order := range orders {
		// The same key at another time is the same command.
		if err := s.again(ctx, late(ahead, s.status(order, "delivered")), s.mercadoPago("paid-"+order, order, ahead)); err != nil {
			return err
		}
		if err := s.stands(ctx, order, "delivered"); err != nil {
			return err
		}
	}
	return nil
}

// stands fails unless an order is of a status.
func (s *site) stands(ctx context.Context, order, want string) error {
	var status string
	if err := s.own.QueryRow(ctx, `select status from orders where order_id = $1`, order).Scan(&status); err != nil {
		return fmt.Errorf("order %s: %w", order, err)
	}
	if status != want {
		return fmt.Errorf("order %s is %s, not %s", order, status, want)
	}
	return nil
}

// duplicates: each command is sent many times, at the same time and over both
// edges, before, while and after the queue is open, and over the cutover.
func (s *site) duplicates(ctx context.Context) error {
	const keys, copies = 8, 4
	fresh := func(phase string) []command {
		var all []command
		for n := range keys {
			all = append(all, s.create(fmt.Sprintf("%s-%d", phase, n)), s.cashflow())
		}
		return all
	}
	burst := func(commands ...command) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, c := range commands {
			for n := range copies {
				s.faults++
				group.Go(func() error {
					_, err := s.take(ctx, n, c)
					return err
				})
			}
		}
		return group.Wait()
	}
	direct, queuedOnes := fresh("direct"), fresh("queued")
	if err := burst(direct...); err != nil {
		return err
	}
	if err := s.refusedWithOtherPayload(ctx, direct[0]); err != nil {
		return err
	}
	if err := s.queueOpen(ctx); err != nil {
		return err
	}
	if err := burst(append(queuedOnes, direct...)...); err != nil {
		return err
	}
	if err := s.refusedWithOtherPayload(ctx, queuedOnes[0]); err != nil {
		return err
	}
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	all := append(append(fresh("cutover"), queuedOnes...), direct...)
	if err := burst(all...); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	return s.again(ctx, all...)
}

// refusedWithOtherPayload sends a key that was taken with another payload.
func (s *site) refusedWithOtherPayload(ctx context.Context, c command) error {
	c.Payload = tenant(c.AggregateID, map[string]any{"total": 1})
	return until(ctx, "another payload under "+c.IdempotencyKey+" is refused", func(ctx context.Context) (bool, error) {
		a, err := s.send(ctx, 0, c)
		if err != nil || a.Status >= http.StatusInternalServerError {
			return false, nil
		}
		if a.taken() {
			return false, fmt.Errorf("it was taken: %s", a.Applied)
		}
		return true, nil
	})
}

// lateCommit: the primary commits, and its reply is lost. The edge puts the same
// command into the queue, and the client sends it again and again.
func (s *site) lateCommit(ctx context.Context) error {
	if err := s.fault(s.tunnel.swallow(replies)); err != nil {
		return err
	}
	group, taking := errgroup.WithContext(ctx)
	var commands []command
	for n := range 12 {
		c := s.create(fmt.Sprintf("late-%d", n))
		commands = append(commands, c)
		group.Go(func() error {
			_, err := s.take(taking, n, c)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := s.again(ctx, commands...); err != nil {
		return err
	}
	// The primary may be at it still: nobody waits for it any more.
	var committed int
	err := until(ctx, "a command is committed behind a lost reply", func(ctx context.Context) (bool, error) {
		err := s.own.QueryRow(ctx, `select count(*) from continuity_inbox where way = 'direct' and aggregate_id like 'late-%'`).Scan(&committed)
		return committed > 0, err
	})
	if err != nil {
		return err
	}
	s.faults += committed
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	return s.again(ctx, commands...)
}

// paymentAfterCancel: money comes for orders that are over. The order stays
// cancelled, and a person is told, once.
func (s *site) paymentAfterCancel(ctx context.Context) error {
	now := time.Now()
	before := []command{s.create("cancel-direct"), s.cancel("cancel-direct"), s.mercadoPago("m-1", "cancel-direct", now)}
	if err := s.takeAll(ctx, append(before, s.create("cancel-queued"), s.create("pix-queued"), s.create("paid-first"))...); err != nil {
		return err
	}
	if err := s.forged(ctx, "cancel-direct"); err != nil {
		return err
	}
	// What comes after the night belongs to orders of the day before.
	if err := s.projected(ctx); err != nil {
		return err
	}
	if err := s.queueOpen(ctx); err != nil {
		return err
	}
	if err := s.forged(ctx, "cancel-queued"); err != nil {
		return err
	}
	if err := s.night(ctx); err != nil {
		return err
	}
	webhooks := []command{s.mercadoPago("m-2", "cancel-queued", now), s.pix("pix-queued"), s.mercadoPago("m-3", "paid-first", now)}
	s.faults += len(webhooks) + 1
	if err := s.takeAll(ctx,
		s.cancel("cancel-queued"), webhooks[0],
		s.cancel("pix-queued"), webhooks[1],
		webhooks[2], s.cancel("paid-first"),
	); err != nil {
		return err
	}
	// Providers send again what they have an answer to.
	if err := s.again(ctx, webhooks...); err != nil {
		return err
	}
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	if err := s.again(ctx, append(webhooks, before[2])...); err != nil {
		return err
	}
	for order, code := range map[string]string{
		"cancel-direct": "payment_after_end", "cancel-queued": "payment_after_end", "pix-queued": "payment_after_end", "paid-first": "refund_due",
	} {
		if err := s.stands(ctx, order, "cancelled"); err != nil {
			return err
		}
		var told int
		err := s.own.QueryRow(ctx, `select count(*) from primary_notices where aggregate_id = $1 and code = $2`, order, code).Scan(&told)
		if err != nil {
			return err
		}
		if told != 1 {
			return fmt.Errorf("order %s: a person was told %d times of %s", order, told, code)
		}
	}
	return nil
}

// forged: a webhook that somebody else has signed is worth nothing.
func (s *site) forged(ctx context.Context, order string) error {
	s.faults++
	a, err := s.send(ctx, 0, s.signedMercadoPago("forged", order, time.Now(), "not the secret"))
	if err != nil {
		return err
	}
	if a.Status != http.StatusUnauthorized {
		return fmt.Errorf("a forged webhook was answered with %d %s", a.Status, a.Code)
	}
	return nil
}
