package main

import (
	"context"
	"errors"
	"path/filepath"
)

// both fall, and one comes back as it was a while ago.
func (s *site) fall(ctx context.Context, restored *cluster, backup string) error {
	s.faults += 3
	if err := errors.Join(s.serve.kill(), s.primary.kill(), s.hosted.kill()); err != nil {
		return err
	}
	for _, c := range []*cluster{s.primary, s.hosted} {
		if err := c.start(ctx); err != nil {
			return err
		}
	}
	if err := restored.restore(ctx, s.database, backup); err != nil {
		return err
	}
	if err := s.hostedBooks.move(ctx, s.hosted.addr()); err != nil {
		return err
	}
	for _, l := range []*link{s.edgesHosted, s.primaryHosted} {
		if err := l.move(ctx, s.hostedEnd()); err != nil {
			return err
		}
	}
	if err := s.books.move(ctx, s.primary.addr()); err != nil {
		return err
	}
	if err := s.serve.start(ctx); err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	if err := s.logged(ctx, `select exists (select from continuity_epochs where event = 'reconcile')`, "the restore was not noticed"); err != nil {
		return err
	}
	// Clients who did not hear of it send everything again.
	for _, p := range s.ledger.promises() {
		if _, err := s.take(ctx, 0, p.command); err != nil {
			return err
		}
	}
	return s.during(ctx, tills, func() error { return s.more(ctx, 10, byPrimary) })
}

// logged fails unless the hosted database has something, without which a day has
// tried nothing.
func (s *site) logged(ctx context.Context, query, otherwise string) error {
	var there bool
	if err := s.their.QueryRow(ctx, query).Scan(&there); err != nil {
		return err
	}
	if !there {
		return errors.New(otherwise)
	}
	return nil
}

// outage queues commands and drains them. Nothing is written directly.
func (s *site) outage(ctx context.Context) error {
	if err := s.queueOpen(ctx); err != nil {
		return err
	}
	if err := s.during(ctx, tills, func() error { return s.more(ctx, 25, byQueue) }); err != nil {
		return err
	}
	if err := s.tunnel.heal(ctx); err != nil {
		return err
	}
	return s.calm(ctx)
}

// primaryRestored: the primary forgets what it had drained since the backup, and
// the queue hands it out again. Direct writes since the backup would be lost, as
// they are with every backup, so there are none. The night is before the backup: a
// ledger that does not know of today is mended by hand, see docs/runbook.md.
func (s *site) primaryRestored(ctx context.Context) error {
	backup := filepath.Join(s.dir, "primary.dump")
	return steps(
		func() error { return s.during(ctx, tills, func() error { return s.more(ctx, 20, byPrimary) }) },
		func() error { return s.night(ctx) },
		func() error { return s.outage(ctx) },
		func() error { return s.primary.dump(ctx, s.database, backup) },
		func() error { return s.outage(ctx) },
		func() error { return s.outage(ctx) },
		func() error { return s.fall(ctx, s.primary, backup) },
	)
}

// hostedRestored: the queue forgets commands that the primary has applied, and
// the fence epochs that the primary has seen.
func (s *site) hostedRestored(ctx context.Context) error {
	backup := filepath.Join(s.dir, "hosted.dump")
	return steps(
		func() error { return s.during(ctx, tills, func() error { return s.more(ctx, 20, byPrimary) }) },
		func() error { return s.outage(ctx) },
		func() error { return s.hosted.dump(ctx, s.database, backup) },
		func() error { return s.outage(ctx) },
		func() error { return s.night(ctx) },
		func() error { return s.during(ctx, tills, func() error { return s.more(ctx, 20, byPrimary) }) },
		func() error { return s.fall(ctx, s.hosted, backup) },
	)
}
