package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// tills is how many sell at a time.
const tills = 4

// steps does one after the other, up to the first error.
func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// cutTunnel is the fault that most days have.
func (s *site) cutTunnel() error {
	s.tunnel.cut()
	return s.fault(nil)
}

// unlessQuick lets time pass on a day that is not short.
func (s *site) unlessQuick(ctx context.Context, d time.Duration) error {
	if s.quick {
		return nil
	}
	return pause(ctx, d)
}

// tunnelKilled: the edges lose the primary in the middle of their sales.
func (s *site) tunnelKilled(ctx context.Context) error {
	return s.during(ctx, tills, func() error {
		return steps(
			func() error { return s.more(ctx, 20, byPrimary) },
			s.cutTunnel,
			func() error { return s.more(ctx, 20, byQueue) },
			func() error { return s.night(ctx) },
			// Longer than the primary believes that edges still reach it.
			func() error { return s.unlessQuick(ctx, 20*time.Second) },
			func() error { return s.more(ctx, 20, byQueue) },
			func() error { return s.tunnel.heal(ctx) },
			func() error { return s.more(ctx, 20, byPrimary) },
			// Connections stand, and nothing comes through.
			func() error { return s.fault(s.tunnel.swallow(requests, replies)) },
			func() error { return s.more(ctx, 20, byQueue) },
			func() error { return s.tunnel.heal(ctx) },
			func() error { return s.more(ctx, 20, byPrimary) },
		)
	})
}

// postgresKilled: the primary lives, and has lost its database.
func (s *site) postgresKilled(ctx context.Context) error {
	return s.during(ctx, tills, func() error {
		return steps(
			func() error { return s.more(ctx, 20, byPrimary) },
			func() error { return s.fault(s.primary.kill()) },
			func() error { return s.more(ctx, 20, byQueue) },
			func() error { return s.primary.start(ctx) },
			func() error { return s.books.move(ctx, s.primary.addr()) },
			func() error { return s.more(ctx, 20, byPrimary) },
		)
	})
}

// hostedPartitioned: without the hosted database sales go on directly; a primary
// that alone has lost it must not believe that they do; and without either, the
// edges say no.
func (s *site) hostedPartitioned(ctx context.Context) error {
	heal := func() error { return errors.Join(s.edgesHosted.heal(ctx), s.primaryHosted.heal(ctx)) }
	err := s.during(ctx, tills, func() error {
		return steps(
			func() error { return s.more(ctx, 10, byPrimary) },
			func() error { return s.fault(s.edgesHosted.swallow(requests, replies)) },
			func() error { return s.fault(s.primaryHosted.swallow(requests, replies)) },
			func() error { return s.more(ctx, 20, byPrimary) },
			func() error { return s.night(ctx) },
			func() error { return s.more(ctx, 20, byPrimary) },
			heal,
			func() error { return s.more(ctx, 10, byPrimary) },
		)
	})
	if err != nil {
		return fmt.Errorf("hosted away for all: %w", err)
	}
	err = s.during(ctx, tills, func() error {
		return steps(
			func() error { s.primaryHosted.cut(); return s.fault(nil) },
			s.cutTunnel,
			func() error { return s.more(ctx, 20, byQueue) },
			// The edges reach a primary that knows nothing of the queue's epoch.
			func() error { return s.tunnel.heal(ctx) },
			func() error { return s.more(ctx, 20, byQueue) },
			heal,
			func() error { return s.more(ctx, 10, byPrimary) },
		)
	})
	if err != nil {
		return fmt.Errorf("hosted away for the primary: %w", err)
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	s.edgesHosted.cut()
	if err := s.fault(s.cutTunnel()); err != nil {
		return err
	}
	c := s.cashflow()
	for edge := range s.edges {
		a, err := s.send(ctx, edge, c)
		if err != nil {
			return err
		}
		if a.taken() {
			return fmt.Errorf("%s took a command that it could give to nobody", s.edges[edge].name)
		}
	}
	if err := errors.Join(s.tunnel.heal(ctx), heal()); err != nil {
		return err
	}
	_, err = s.take(ctx, 0, c)
	return err
}

// strictPrimary: a primary loses the hosted database in the very moment in which
// both edges lose it, while a till in the shop writes to it. It does not hear that
// the queue opens, and must have stopped by then.
func (s *site) strictPrimary(ctx context.Context) error {
	var shop *traffic
	var before int64
	err := s.during(ctx, tills, func() error {
		return steps(
			func() error { return s.more(ctx, 20, byPrimary) },
			func() error {
				state, err := s.fence.State(ctx)
				shop = s.sellInShop(ctx, state.Epoch)
				return err
			},
			func() error { return s.more(ctx, 20, byPrimary) },
			func() error { s.primaryHosted.cut(); return s.fault(nil) },
			s.cutTunnel,
			func() error { before = shop.taken.Load(); return s.more(ctx, 20, byQueue) },
			func() error { return s.primaryHosted.heal(ctx) },
			func() error { return s.tunnel.heal(ctx) },
			func() error { return s.more(ctx, 20, byPrimary) },
		)
	})
	if shop != nil {
		err = errors.Join(err, shop.close())
	}
	if err == nil && shop.taken.Load() == before {
		err = errors.New("the till in the shop wrote nothing after the cut: there was no temptation")
	}
	return err
}

// flapping: a tunnel that comes and goes does not have the fence come and go.
func (s *site) flapping(ctx context.Context) error {
	flaps := 12
	if s.quick {
		flaps = 5
	}
	err := s.during(ctx, tills, func() error {
		for n := range flaps {
			// Some are too short for the breakers, some long enough for the queue.
			if err := s.cutTunnel(); err != nil {
				return err
			}
			if err := pause(ctx, []time.Duration{200 * time.Millisecond, 3 * time.Second}[n%2]); err != nil {
				return err
			}
			if err := s.tunnel.heal(ctx); err != nil {
				return err
			}
			if err := pause(ctx, []time.Duration{300 * time.Millisecond, 2 * time.Second}[n%2]); err != nil {
				return err
			}
		}
		return s.more(ctx, 20, byPrimary)
	})
	if err != nil {
		return err
	}
	var opened int
	if err := s.their.QueryRow(ctx, `select count(*) from continuity_epochs where event = 'open'`).Scan(&opened); err != nil {
		return err
	}
	if opened == 0 || opened >= flaps {
		return fmt.Errorf("the tunnel was away %d times, and the queue has opened %d times", flaps, opened)
	}
	return nil
}

// flood: a thousand commands a minute, a third of them while the tunnel is away.
func (s *site) flood(ctx context.Context) error {
	commands := 1000
	if s.quick {
		commands = 200
	}
	group, sending := errgroup.WithContext(ctx)
	ticker := time.NewTicker(time.Minute / 1000)
	defer ticker.Stop()
	for n := range commands {
		select {
		case <-ticker.C:
		case <-sending.Done():
			return group.Wait()
		}
		switch n {
		case commands / 4:
			if err := s.cutTunnel(); err != nil {
				return err
			}
		case commands * 6 / 10:
			if err := s.tunnel.heal(ctx); err != nil {
				return err
			}
		}
		c := s.cashflow()
		if n%2 == 0 {
			c = s.create(fmt.Sprintf("flood-%d", n))
		}
		group.Go(func() error {
			_, err := s.take(sending, n, c)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if s.ledger.count(byQueue) < commands/10 {
		return fmt.Errorf("only %d of %d commands were queued: there was no flood", s.ledger.count(byQueue), commands)
	}
	return nil
}
