package main

import (
	"context"
	"errors"
	"net/http"
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
	if restored == s.primary {
		if err := s.raiseTokens(ctx); err != nil {
			return err
		}
	}
	if err := s.serve.start(ctx); err != nil {
		return err
	}
	// Until then all may look calm: the edges know of direct writes, and so does the
	// fence.
	err := until(ctx, "the restore is noticed", func(ctx context.Context) (there bool, _ error) {
		_ = s.their.QueryRow(ctx, `select exists (select from continuity_epochs where event = 'reconcile')`).Scan(&there)
		return there, nil // The hosted database has just been started.
	})
	if err != nil {
		return err
	}
	if err := s.calm(ctx); err != nil {
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

// raiseTokens has no fencing token be drawn twice by a primary that is restored: a
// person knows them from the manifests.
func (s *site) raiseTokens(ctx context.Context) error {
	for _, name := range restaurants {
		var manifest struct {
			Generation int64 `json:"generation"`
		}
		if err := s.inCouch(ctx, http.MethodGet, "/"+s.env()+"_"+company+"_"+name+"_core/day_manifest", nil, &manifest); err != nil {
			return err
		}
		_, err := s.own.Exec(ctx, `select setval('fencing_tokens_seq', greatest($1, (select last_value from fencing_tokens_seq)) + 1000)`, manifest.Generation)
		if err != nil {
			return err
		}
	}
	return nil
}

// tellLedger has a ledger that was restored know the days that were made since the
// backup: each is entered, refused since it bears another marker, and adopted when
// a person has put the marker of the ledger into it.
func (s *site) tellLedger(ctx context.Context) error {
	if err := s.night(ctx); err == nil {
		return errors.New("the ledger knew all days: nothing was restored")
	}
	markers := make(map[string]string)
	err := each(ctx, s.own, func(d struct{ Name, Generation string }) { markers[d.Name] = d.Generation }, `
		select db_name, generation::text
		from day_databases
		where instance_start_time is null`)
	if err != nil {
		return err
	}
	for name, generation := range markers {
		var security map[string]any
		path := "/" + name + "/_security"
		if err := s.inCouch(ctx, http.MethodGet, path, nil, &security); err != nil {
			return err
		}
		security["rollingd"] = map[string]any{"generation": generation}
		if err := s.inCouch(ctx, http.MethodPut, path, security, nil); err != nil {
			return err
		}
	}
	return s.night(ctx)
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
// they are with every backup, so there are none; and nothing waits to be shown to
// tills when the backup is made, see docs/guarantees.md. Today's databases are not
// in the backup either, and a person does what the runbook says.
func (s *site) primaryRestored(ctx context.Context) error {
	backup := filepath.Join(s.dir, "primary.dump")
	return steps(
		func() error { return s.during(ctx, tills, func() error { return s.more(ctx, 20, byPrimary) }) },
		func() error { return s.outage(ctx) },
		func() error { return s.projected(ctx) },
		func() error { return s.primary.dump(ctx, s.database, backup) },
		func() error { return s.night(ctx) },
		func() error { return s.outage(ctx) },
		func() error { return s.outage(ctx) },
		func() error { return s.fall(ctx, s.primary, backup) },
		func() error { return s.tellLedger(ctx) },
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
