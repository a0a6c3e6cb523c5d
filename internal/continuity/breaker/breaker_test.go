package breaker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity/breaker"
)

// fail makes a breaker fail n times.
func fail(t *testing.T, b *breaker.Breaker, n int) {
	t.Helper()
	for range n {
		acquire(t, b).Failure()
	}
}

func acquire(t *testing.T, b *breaker.Breaker) breaker.Permit {
	t.Helper()
	p, ok := b.Acquire()
	if !ok {
		t.Fatalf("no permit in %s", b.State())
	}
	return p
}

func wantState(t *testing.T, b *breaker.Breaker, want breaker.State) {
	t.Helper()
	if got := b.State(); got != want {
		t.Fatalf("state %s, want %s", got, want)
	}
}

// wait lets the time of the bubble pass.
func wait(d time.Duration) { <-time.After(d) }

func TestOutageAndRecovery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		b := breaker.New(breaker.Options{
			Jitter:   -1,
			OnChange: func(from, to breaker.State) { changes = append(changes, fmt.Sprint(from, ">", to)) },
		})
		fail(t, b, 2)
		acquire(t, b).Success()
		fail(t, b, 2)
		wantState(t, b, breaker.Primary)
		fail(t, b, 1)
		wantState(t, b, breaker.Degraded)

		wait(breaker.DefaultOpenWindow - 1)
		if _, ok := b.Acquire(); ok {
			t.Error("a call in the open window")
		}
		wait(1)
		wantState(t, b, breaker.Recovering)
		first := acquire(t, b)
		if _, ok := b.Acquire(); ok || !first.Probe() {
			t.Errorf("a second probe: %v; the first is one: %v", ok, first.Probe())
		}
		first.Failure()
		wantState(t, b, breaker.Degraded)

		wait(breaker.DefaultOpenWindow)
		acquire(t, b).Success()
		wantState(t, b, breaker.Recovering)
		acquire(t, b).Success()
		wantState(t, b, breaker.Primary)
		want := "[PRIMARY>DEGRADED DEGRADED>RECOVERING RECOVERING>DEGRADED DEGRADED>RECOVERING RECOVERING>PRIMARY]"
		if got := fmt.Sprint(changes); got != want {
			t.Errorf("changes\n%s, want\n%s", got, want)
		}
	})
}

// TestLateResults of calls that began before a transition change nothing.
// TestProbeSoon ends an open window, and no more than that.
func TestProbeSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1})
		b.ProbeSoon()
		wantState(t, b, breaker.Primary)
		fail(t, b, breaker.DefaultFailureThreshold)
		wantState(t, b, breaker.Degraded)
		b.ProbeSoon()
		wantState(t, b, breaker.Recovering)
		probe := acquire(t, b)
		b.ProbeSoon() // The probe in flight keeps its slot.
		if _, ok := b.Acquire(); ok {
			t.Error("a second probe")
		}
		probe.Failure()
		wait(breaker.DefaultOpenWindow - 1)
		wantState(t, b, breaker.Degraded) // The next window is whole.
	})
}

func TestLateResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1})
		slow, slower, slowest := acquire(t, b), acquire(t, b), acquire(t, b)
		fail(t, b, 3)
		slow.Success()
		wantState(t, b, breaker.Degraded)

		wait(breaker.DefaultOpenWindow)
		wantState(t, b, breaker.Recovering)
		slower.Failure()
		wantState(t, b, breaker.Recovering)
		probe := acquire(t, b)
		slowest.Ignore()
		if _, ok := b.Acquire(); ok {
			t.Error("a late result gave the slot of another's probe back")
		}
		probe.Success()
		probe.Success()
		wantState(t, b, breaker.Recovering)
		again := acquire(t, b)
		again.Success()
		again.Failure()
		wantState(t, b, breaker.Primary)
		fail(t, b, 2)
		wantState(t, b, breaker.Primary)
	})
}

// TestEarlierGeneration: a call that began before an outage says nothing about
// what came after it, though the state is the same again.
func TestEarlierGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1})
		var slow []breaker.Permit
		for range 8 {
			slow = append(slow, acquire(t, b))
		}
		fail(t, b, 3)
		wait(breaker.DefaultOpenWindow)
		acquire(t, b).Success()
		acquire(t, b).Success()
		for _, p := range slow[:4] {
			p.Failure()
		}
		wantState(t, b, breaker.Primary)
		fail(t, b, 2)
		for _, p := range slow[4:] {
			p.Success()
		}
		fail(t, b, 1)
		wantState(t, b, breaker.Degraded)
	})
}

// TestProbesInARow: those that passed before one failed do not count.
func TestProbesInARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1})
		fail(t, b, 3)
		for range 2 {
			wait(breaker.DefaultOpenWindow)
			acquire(t, b).Success()
			acquire(t, b).Failure()
			wantState(t, b, breaker.Degraded)
		}
		wait(breaker.DefaultOpenWindow)
		acquire(t, b).Success()
		wantState(t, b, breaker.Recovering)
	})
}

// TestSlotComesBack from a probe that hangs, is cut off, or panics.
func TestSlotComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1})
		fail(t, b, 3)
		wait(breaker.DefaultOpenWindow)

		hung := acquire(t, b)
		wait(breaker.DefaultProbeTimeout - 1)
		if _, ok := b.Acquire(); ok {
			t.Error("two probes at once")
		}
		wait(1)
		second := acquire(t, b)
		hung.Success()
		hung.Failure()
		hung.Ignore()
		wantState(t, b, breaker.Recovering)
		if _, ok := b.Acquire(); ok {
			t.Error("the hung probe gave the slot of the next back")
		}
		second.Ignore()

		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p := acquire(t, b)
			defer p.Ignore()
			panic("probe")
		}()
		acquire(t, b).Success()
		acquire(t, b).Success()
		wantState(t, b, breaker.Primary)
	})
}

// TestClosesOnlyWhenDirect: probes that pass are not enough, and nothing but a
// look is needed once the fence has opened.
func TestClosesOnlyWhenDirect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var direct atomic.Bool
		b := breaker.New(breaker.Options{Jitter: -1, Direct: direct.Load})
		fail(t, b, 3)
		wait(breaker.DefaultOpenWindow)
		for range 5 {
			acquire(t, b).Success()
			wantState(t, b, breaker.Recovering)
		}
		direct.Store(true)
		wantState(t, b, breaker.Primary)
		direct.Store(false)
		wantState(t, b, breaker.Primary)
	})
}

// TestWindowsDiffer from one instance to another, within the jitter.
func TestWindowsDiffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const instances = 200
		var bs []*breaker.Breaker
		for range instances {
			b := breaker.New(breaker.Options{Jitter: 0.2})
			fail(t, b, 3)
			bs = append(bs, b)
		}
		count := func() (recovering int) {
			for _, b := range bs {
				if b.State() == breaker.Recovering {
					recovering++
				}
			}
			return recovering
		}
		wait(breaker.DefaultOpenWindow*8/10 - 1)
		if n := count(); n != 0 {
			t.Errorf("%d windows are shorter than the jitter allows", n)
		}
		wait(breaker.DefaultOpenWindow * 2 / 10)
		if n := count(); n == 0 || n == instances {
			t.Errorf("%d of %d windows ended in the first half", n, instances)
		}
		wait(breaker.DefaultOpenWindow*2/10 + 2)
		if n := count(); n != instances {
			t.Errorf("%d of %d windows have ended", n, instances)
		}
	})
}

// TestOneProbe of many callers at once.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Jitter: -1, RecoveryProbes: 1})
		fail(t, b, 3)
		wait(breaker.DefaultOpenWindow)
		var (
			group  sync.WaitGroup
			probes atomic.Int64
		)
		for range 64 {
			group.Go(func() {
				if _, ok := b.Acquire(); ok {
					probes.Add(1)
				}
			})
		}
		group.Wait()
		if n := probes.Load(); n != 1 {
			t.Errorf("%d probes", n)
		}
	})
}

// TestConcurrent callers with results of all kinds leave a breaker that works.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{OpenWindow: time.Millisecond, Jitter: -1})
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				for n := range 500 {
					p, ok := b.Acquire()
					switch {
					case !ok:
						wait(time.Millisecond)
					case (i+n)%3 == 0:
						p.Failure()
					case (i+n)%3 == 1:
						p.Ignore()
					default:
						p.Success()
					}
				}
			})
		}
		group.Wait()
		// From whatever it is in, it opens and closes again.
		for b.State() != breaker.Degraded {
			acquire(t, b).Failure()
		}
		wait(time.Millisecond)
		acquire(t, b).Success()
		acquire(t, b).Success()
		wantState(t, b, breaker.Primary)
	})
}

func TestModes(t *testing.T) {
	t.Parallel()
	for state, want := range map[breaker.State]contracts.ReplicationMode{
		breaker.Primary:    contracts.ModePrimary,
		breaker.Degraded:   contracts.ModeDegraded,
		breaker.Recovering: contracts.ModeRecovering,
	} {
		if state.Mode() != want {
			t.Errorf("%s is %s", state, state.Mode())
		}
	}
}

// TestNoAllocations where calls go through, and where they do not.
func TestNoAllocations(t *testing.T) {
	well, open := breaker.New(breaker.Options{}), breaker.New(breaker.Options{})
	fail(t, open, 3)
	if n := testing.AllocsPerRun(100, func() {
		p, _ := well.Acquire()
		p.Success()
		p.Ignore()
		open.Acquire()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
