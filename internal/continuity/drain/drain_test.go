package drain

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
	"github.com/rollingd/rollingd/internal/fence"
	"github.com/rollingd/rollingd/internal/pg/pgtest"
)

func TestOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	r := w.run(d)
	if r.Applied != 7 || r.Deduplicated != 1 || r.Dead != 1 || r.Failed+r.Snoozed != 0 || r.Cutover == nil || r.Reconciled || r.Idle() {
		t.Errorf("%+v", r)
	}
	if p := r.Cutover; p == nil || p.Accepted != 9 || p.Applied != 8 || p.Dead != 1 {
		t.Errorf("proof %+v", p)
	}
	w.checkDirect(d, 3)
	w.checkOutage()
	w.checkHistory(true)
	if n := scalar[int](w, w.primary, `select count(*) from primary_refusals where permanent and reason like 'conflict: %'`); n != 1 {
		t.Errorf("%d refusals of a conflict", n)
	}
	if r := w.run(d); !r.Idle() || r.Fence.Mode != continuity.Direct {
		t.Errorf("afterwards: %+v", r)
	}
}

// callsOfAnOutage returns the functions of the hosted database that bringing an
// outage to its end calls, in their order.
func callsOfAnOutage(t *testing.T) (functions []string) {
	w := newWorld(t)
	w.outage()
	w.run(w.drainer(&transport{before: func(_ int64, function string) error {
		functions = append(functions, function)
		return nil
	}}))
	return functions
}

// TestFaultsOfHosted breaks each call of the hosted database that an outage
// takes, one per run: not sent, done but not answered, and the process killed
// before and behind it.
func TestFaultsOfHosted(t *testing.T) {
	t.Parallel()
	calls := callsOfAnOutage(t)
	t.Logf("%d calls", len(calls))
	for _, kind := range []string{"not sent", "unanswered", "killed before", "killed behind"} {
		for i, function := range calls {
			if kind == "killed before" && function != "continuity_ack_commands" {
				continue // The primary does nothing between the call before and this one.
			}
			n := int64(i + 1)
			if pgtest.LeftOut(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%02d", kind, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.outage()
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				at := func(broken error, killed bool) func(int64, string) error {
					return func(call int64, _ string) error {
						if call != n {
							return nil
						}
						if killed {
							kill()
						}
						return broken
					}
				}
				tr := &transport{}
				switch kind {
				case "not sent":
					tr.before = at(errNotSent, false)
				case "unanswered":
					tr.after = at(errUnanswered, false)
				case "killed before":
					tr.before = at(errNotSent, true)
				case "killed behind":
					tr.after = at(errUnanswered, true)
				}
				d := w.drainer(tr)
				// It may fail, or get by; what matters is the world that it leaves.
				_, _ = d.RunOnce(ctx)
				w.checkHistory(false)
				w.finish(3)
				w.checkOutage()
			})
		}
	}
}

// TestFaultsOfPrimary breaks each COMMIT of the primary that an outage takes: it
// is rolled back, or it is committed and nobody is told.
func TestFaultsOfPrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	w.proxy.OnCommit(func(int64) pgtest.CommitFault { return pgtest.CommitPasses })
	w.run(d)
	commits := w.proxy.Commits()
	t.Logf("%d commits", commits)
	for name, fault := range map[string]pgtest.CommitFault{"rolled back": pgtest.CommitFails, "unanswered": pgtest.CommitUnanswered} {
		for n := int64(1); n <= commits; n++ {
			if pgtest.LeftOut(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%02d", name, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.outage()
				d := w.drainer(nil)
				w.proxy.OnCommit(func(i int64) pgtest.CommitFault {
					if i == n {
						return fault
					}
					return pgtest.CommitPasses
				})
				_, _ = d.RunOnce(t.Context())
				w.checkHistory(false)
				w.finish(3)
				w.checkOutage()
			})
		}
	}
}

// TestPaused stops a drainer at each call, past its lease and its claims, while a
// second one finishes. When it goes on, it changes nothing.
func TestPaused(t *testing.T) {
	t.Parallel()
	calls := callsOfAnOutage(t)
	for when, behind := range map[string]bool{"before": false, "behind": true} {
		for i, function := range calls {
			if behind && function != "continuity_claim_commands" && function != "continuity_cutover" {
				continue // The primary does nothing until the next call.
			}
			n := int64(i + 1)
			if pgtest.LeftOut(n) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%02d", when, n), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.outage()
				tr := &transport{}
				pause := func(call int64, _ string) error {
					if call == n {
						w.finish(3)
					}
					return nil
				}
				if behind {
					tr.after = pause
				} else {
					tr.before = pause
				}
				d := w.drainer(tr)
				_, _ = d.RunOnce(t.Context())
				w.checkDirect(d, 3)
				w.checkOutage()
				w.checkHistory(true)
			})
		}
	}
}

// TestOldTerm has another drainer begin, and no more, while the first one is
// about to seal or to cut over: the fence refuses the old term.
func TestOldTerm(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"continuity_seal", "continuity_cutover"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.outage()
			tr := &transport{before: func(_ int64, function string) error {
				if function != step {
					return nil
				}
				state, err := w.fence.State(t.Context())
				if err != nil {
					t.Error(err)
				}
				_, err = w.fence.BeginCatchup(t.Context(), state.Epoch, state.Term+1)
				return err
			}}
			if _, err := w.drainer(tr).RunOnce(t.Context()); !errors.Is(err, continuity.ErrLostClaim) {
				t.Errorf("with an old term: %v", err)
			}
			if state, err := w.fence.State(t.Context()); err != nil || state.Mode == continuity.Direct {
				t.Errorf("%+v, %v", state, err)
			}
			w.finish(3)
			w.checkOutage()
		})
	}
}

// TestPausedWhileItsCommandsDie stops a drainer behind its first claim, for so
// long that the queue gives its commands up: it has no effect beside a dead row.
func TestPausedWhileItsCommandsDie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	claims := 0
	d := w.drainer(&transport{after: func(_ int64, function string) error {
		if function != "continuity_claim_commands" {
			return nil
		}
		if claims++; claims == 1 {
			w.exec(w.hosted, `update continuity_commands set attempts = max_attempts - 1 where status = 'claimed'`)
			w.heal()
			w.run(w.drainer(nil))
		}
		return nil
	}})
	if _, err := d.RunOnce(t.Context()); !errors.Is(err, fence.ErrLost) {
		t.Errorf("%v", err)
	}
	// The one whose direct write had come through was brought back, to be acked.
	if late, err := w.queue.Find(t.Context(), "late"); err != nil || late.Status != "acked" {
		t.Errorf("%+v, %v", late, err)
	}
	if n := scalar[int](w, w.hosted, `select count(*) from continuity_commands where status = 'dead' and last_error like 'the lease of%'`); n != 4 {
		t.Errorf("%d have died", n)
	}
	w.checkHistory(false)
}

// TestKeyReusedStaysDead does not bring back a command whose key has the outcome
// of another payload.
func TestKeyReusedStaysDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.drainer(nil)
	w.run(d)
	if _, err := d.Primary.Apply(t.Context(), command("k", "order.create", "o1", ofNorth), 1); err != nil {
		t.Fatal(err)
	}
	w.openQueue(1)
	other := command("k", "order.create", "o1", `{"companyId":"acme","restaurantId":"south"}`)
	w.enqueue(other)
	if r := w.run(d); r.Dead != 1 || r.WaitingFor != "dead" {
		t.Errorf("%+v", r)
	}
	if r := w.run(d); r.Dead != 0 {
		t.Errorf("again: %+v", r)
	}
	w.checkHistory(true)
}

// slow is a line on which the answer to a claim of many commands comes too late.
type slow struct{ hosted.Transport }

func (s slow) Call(ctx context.Context, function string, args map[string]any, into any) error {
	err := s.Transport.Call(ctx, function, args, into)
	if limit, ok := args["p_limit"].(int); ok && function == "continuity_claim_commands" && limit > 2 {
		return errUnanswered
	}
	return err
}

// TestSlowLine drains over a line that brings no large answer: commands that were
// never tried do not die of claims that nobody has heard of.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.outage()
	d := w.drainer(nil)
	d.Queue = hosted.NewQueue(slow{hosted.NewPostgres(w.hosted)})
	if _, err := d.RunOnce(t.Context()); !errors.Is(err, continuity.ErrOutcomeUnknown) {
		t.Errorf("the first answer was not lost: %v", err)
	}
	for range 4 {
		w.heal()
		_, _ = d.RunOnce(t.Context())
	}
	w.checkDirect(d, 3)
	w.checkOutage()
	w.checkHistory(true)
}
