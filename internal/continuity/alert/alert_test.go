package alert_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollingd/rollingd/internal/continuity/alert"
)

// recorder keeps what it is told.
type recorder struct {
	mu   sync.Mutex
	name string
	told []string
	fail error
}

func (r *recorder) Name() string { return r.name }

func (r *recorder) Send(_ context.Context, m alert.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	r.told = append(r.told, m.Subject+" | "+m.Text)
	return nil
}

func (r *recorder) becomes(fail error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = fail
}

func (r *recorder) wants(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.told, want) {
		t.Errorf("%s told\n%s\nwant\n%s", r.name, strings.Join(r.told, "\n"), strings.Join(want, "\n"))
	}
}

func start(t *testing.T, log *bytes.Buffer, senders ...alert.Sender) *alert.Alerts {
	t.Helper()
	a := alert.New(alert.Options{Origin: "edge-1", Senders: senders, Logger: slog.New(slog.NewTextHandler(log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { a.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return a
}

// TestOncePerCondition: it is told once, however often it is raised, and once
// more when it is over.
func TestOncePerCondition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{name: "one"}
		a := start(t, new(bytes.Buffer), r)
		a.Clear(t.Context(), "queue", "Nothing waits.")
		r.wants(t)
		for i := range 5 {
			a.Raise(t.Context(), "queue", fmt.Sprint(i, " wait."))
			synctest.Wait()
		}
		a.Raise(t.Context(), "dead", "1 is dead.")
		r.wants(t, "edge-1: queue | 0 wait.", "edge-1: dead | 1 is dead.")
		a.Clear(t.Context(), "queue", "Nothing waits.")
		a.Clear(t.Context(), "queue", "Nothing waits.")
		r.wants(t, "edge-1: queue | 0 wait.", "edge-1: dead | 1 is dead.", "edge-1: over: queue | Nothing waits.")
		a.Raise(t.Context(), "queue", "9 wait.")
		a.Tell(t.Context(), alert.Message{Subject: "cutover", Text: "12 accepted = 12 applied + 0 dead"})
		synctest.Wait()
		r.wants(t, "edge-1: queue | 0 wait.", "edge-1: dead | 1 is dead.", "edge-1: over: queue | Nothing waits.",
			"edge-1: queue | 9 wait.", "edge-1: cutover | 12 accepted = 12 applied + 0 dead")
	})
}

// TestUnreachable senders are tried again until they have told everything that
// still holds, and keep no other back.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		bad, good := &recorder{name: "bad", fail: errors.New("down")}, &recorder{name: "good"}
		a := start(t, log, bad, good)
		a.Raise(t.Context(), "degraded", "The primary is gone.")
		a.Raise(t.Context(), "queue", "101 wait.")
		a.Tell(t.Context(), alert.Message{Subject: "summary", Text: "fine"})
		good.wants(t, "edge-1: degraded | The primary is gone.", "edge-1: queue | 101 wait.", "edge-1: summary | fine")
		<-time.After(time.Minute)
		bad.wants(t)
		if n := strings.Count(log.String(), "alert not sent"); n != 4 { // At 0, 5, 15 and 35 s.
			t.Errorf("%d attempts in a minute:\n%s", n, log)
		}
		a.Clear(t.Context(), "queue", "Nothing waits.")
		bad.becomes(nil)
		<-time.After(10 * time.Minute)
		// Nobody is told the end of what he did not hear of.
		bad.wants(t, "edge-1: degraded | The primary is gone.", "edge-1: summary | fine")
	})
}

func TestLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{name: "busy", fail: &alert.LaterError{After: time.Hour, Err: errors.New("too many")}}
		a := start(t, new(bytes.Buffer), r)
		a.Raise(t.Context(), "queue", "101 wait.")
		synctest.Wait()
		r.becomes(nil)
		<-time.After(time.Hour - 1)
		r.wants(t)
		<-time.After(1)
		r.wants(t, "edge-1: queue | 101 wait.")
	})
}

// blocker lets a test act while a message is on its way.
type blocker struct {
	recorder
	arrived, goOn chan struct{}
}

func (b *blocker) Send(ctx context.Context, m alert.Message) error {
	b.arrived <- struct{}{}
	<-b.goOn
	return b.recorder.Send(ctx, m)
}

// TestOverWhileTold: who is being told that a condition holds hears its end, too.
func TestOverWhileTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &blocker{recorder{name: "slow"}, make(chan struct{}), make(chan struct{})}
		a := start(t, new(bytes.Buffer), b)
		a.Raise(t.Context(), "queue", "101 wait.")
		<-b.arrived
		a.Clear(t.Context(), "queue", "Nothing waits.")
		b.goOn <- struct{}{}
		<-b.arrived
		b.goOn <- struct{}{}
		b.wants(t, "edge-1: queue | 101 wait.", "edge-1: over: queue | It is over.")
	})
}
