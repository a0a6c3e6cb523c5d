package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollingd/rollingd/contracts"
)

// midClaim opens the queue and has a worker stand between its claim and its
// effect: the table that it writes to is locked until release.
func (s *site) midClaim(ctx context.Context) (release func() error, err error) {
	if err := s.queueOpen(ctx); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, s.primary.owner(s.books, s.database))
	if err != nil {
		return nil, err
	}
	release = func() error { return conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, `begin; lock table orders in share mode`); err != nil {
		return nil, errors.Join(err, release())
	}
	for n := range 6 {
		order := fmt.Sprintf("claimed-%d", n)
		if err := s.takeAll(ctx, s.create(order), s.pix(order), s.status(order, "preparing")); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	err = until(ctx, "a command is claimed", func(ctx context.Context) (bool, error) {
		var waits bool
		err := s.own.QueryRow(ctx, `
			select exists (
			  select from pg_stat_activity
			  where datname = current_database()
			    and wait_event_type = 'Lock'
			    and query ilike '%insert into orders%')`).Scan(&waits)
		return waits, err
	})
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// endClaims ends the leases of all claims, for a day that is short.
func (s *site) endClaims(ctx context.Context) error {
	if !s.quick {
		return nil
	}
	_, err := s.their.Exec(ctx, `update continuity_commands set claimed_until = now() where status = 'claimed'`)
	return err
}

// workerKilled: the worker is gone, and its claims end with their leases.
func (s *site) workerKilled(ctx context.Context) error {
	release, err := s.midClaim(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.fault(s.serve.kill()), release()); err != nil {
		return err
	}
	err = s.during(ctx, tills, func() error {
		return steps(
			func() error { return s.endClaims(ctx) },
			func() error { return s.serve.start(ctx) },
			func() error { return s.tunnel.heal(ctx) },
			func() error { return s.more(ctx, 10, byPrimary) },
		)
	})
	if err != nil {
		return err
	}
	return s.claimsEnded(ctx)
}

// workerPaused: the worker comes back when another has its lease, in the middle
// of what it was doing, and must do nothing more.
func (s *site) workerPaused(ctx context.Context) error {
	release, err := s.midClaim(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.fault(s.serve.stop()), release()); err != nil {
		return err
	}
	before, err := s.fence.State(ctx)
	if err != nil {
		return err
	}
	paused := s.serve
	second, err := s.secondServe(ctx)
	if err != nil {
		return err
	}
	s.others = append(s.others, paused)
	s.serve = second
	// The paused one sits in a transaction, whose locks keep the second one from
	// starting until Postgres ends it; a supervisor starts it again.
	err = until(ctx, "a second primary starts", func(ctx context.Context) (bool, error) {
		err := second.start(ctx)
		if errors.Is(err, errChildEnded) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return steps(
		func() error { return s.tunnel.move(ctx, second.addr) },
		func() error {
			return until(ctx, "the second one drains", func(ctx context.Context) (bool, error) {
				state, err := s.fence.State(ctx)
				return state.Term > before.Term || state.Epoch > before.Epoch, err
			})
		},
		func() error { return s.fault(paused.resume()) },
		// It gives back the claims that are still its own, or they end with their lease.
		func() error { return s.endClaims(ctx) },
		func() error { return s.calm(ctx) },
	)
}

// claimsEnded waits until it is calm, and fails unless a claim has ended with its
// lease.
func (s *site) claimsEnded(ctx context.Context) error {
	if err := s.calm(ctx); err != nil {
		return err
	}
	return s.logged(ctx, `select exists (select from continuity_commands where status = 'acked' and attempts > 0)`, "no claim has ended with its lease")
}

// deadCommand: a command that fails whenever it is tried is dead after eight
// attempts. It holds its order and the cutover until a person decides; another
// type of command holds neither, and is brought back when its cause is gone.
func (s *site) deadCommand(ctx context.Context) error {
	const poison = `
		create function gameday_poison() returns trigger
		language plpgsql as $$
		begin
		  if new.details ? 'poison' then
		    raise exception 'poison';
		  end if;
		  return new;
		end
		$$;
		create trigger gameday_poison before insert on orders for each row execute function gameday_poison();
		create trigger gameday_poison before insert on cashflow_entries for each row execute function gameday_poison();`
	if _, err := s.own.Exec(ctx, poison); err != nil {
		return err
	}
	if err := s.queueOpen(ctx); err != nil {
		return err
	}
	s.faults += 2
	bad, entry, good := s.create("poisoned"), s.cashflow(), s.create("sound")
	bad.Payload["poison"], entry.Payload["poison"] = true, true
	if err := s.takeAll(ctx, bad, s.pix("poisoned"), s.status("poisoned", "preparing"), entry, good, s.pix("sound")); err != nil {
		return err
	}
	// The tunnel is away meanwhile: attempts that are made to come at once could
	// come in a seal, and keep it from ending.
	for _, c := range []command{bad, entry} {
		if err := s.untilDead(ctx, c); err != nil {
			return err
		}
	}
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	if err := s.heldByTheDead(ctx, good); err != nil {
		return err
	}
	if err := s.night(ctx); err != nil {
		return err
	}
	if err := s.bury(ctx, bad.AggregateID); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	if _, err := s.own.Exec(ctx, `drop function gameday_poison() cascade`); err != nil {
		return err
	}
	return s.decide(ctx, "redrive", entry.IdempotencyKey)
}

// heldByTheDead fails unless a dead command holds the cutover, and no more than
// its own order.
func (s *site) heldByTheDead(ctx context.Context, good command) error {
	found, err := s.queue.Find(ctx, good.IdempotencyKey)
	if err != nil {
		return err
	}
	if found.Status != contracts.CommandAcked {
		return fmt.Errorf("a sound command is %s, behind a dead one of another order", found.Status)
	}
	// Longer than the primary takes to try a cutover.
	for range 25 {
		a, err := s.take(ctx, 0, s.cashflow())
		if err != nil {
			return err
		}
		if a.Applied != byQueue {
			return errors.New("direct writes are open, though a dead command holds its order")
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// untilDead has every attempt come at once, which takes hours otherwise.
func (s *site) untilDead(ctx context.Context, c command) error {
	return until(ctx, c.IdempotencyKey+" is dead", func(ctx context.Context) (bool, error) {
		_, err := s.their.Exec(ctx, `update continuity_commands set available_at = now() where status = 'pending' and available_at > now()`)
		if err != nil {
			return false, err
		}
		found, err := s.queue.Find(ctx, c.IdempotencyKey)
		if err != nil || found.Status != contracts.CommandDead {
			return false, err
		}
		if found.Attempts != contracts.MaxAttempts {
			return false, fmt.Errorf("it is dead after %d attempts", found.Attempts)
		}
		return true, nil
	})
}

// bury has a person go on without the dead commands of an order, one after the
// other: each was held by the one before.
func (s *site) bury(ctx context.Context, order string) error {
	return until(ctx, "nothing of the order waits", func(ctx context.Context) (bool, error) {
		rows, err := s.their.Query(ctx, `
			select idempotency_key
			from continuity_commands
			where aggregate_id = $1
			  and status = 'dead'
			  and skipped_at is null`, order)
		if err != nil {
			return false, err
		}
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return false, err
		}
		for _, key := range keys {
			if err := s.decide(ctx, "skip", key); err != nil {
				return false, err
			}
		}
		var left int
		err = s.their.QueryRow(ctx, `
			select count(*)
			from continuity_commands
			where aggregate_id = $1
			  and (status <> 'dead' or skipped_at is null)`, order).Scan(&left)
		return left == 0, err
	})
}

// decide is what a person types.
func (s *site) decide(ctx context.Context, decision, key string) error {
	found, err := s.queue.Find(ctx, key)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.program, "continuity", decision, found.CommandID.String(), "--reason", "a game day")
	cmd.Env = []string{"ROLLINGD_URL=http://" + s.serve.addr, "ROLLINGD_TOKEN=" + s.adminToken}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", decision, key, err, out)
	}
	return nil
}
