package breaker

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is what a breaker promises, in the plainest form: it remembers every
// call that is under way, and forgets all of them at each transition.
type model struct {
	threshold  int
	required   int // probes
	state      State
	failures   int
	passed     int
	openUntil  time.Duration
	calls      []int // ids of ordinary calls of this state
	probe      int   // id of the probe whose result counts; zero is none
	probeUntil time.Duration
}

func (m *model) enter(s State) {
	*m = model{threshold: m.threshold, required: m.required, state: s}
}

func (m *model) look(now time.Duration, direct bool) {
	if m.state == Degraded && now >= m.openUntil {
		m.enter(Recovering)
	}
	if m.state == Recovering && m.passed >= m.required && direct {
		m.enter(Primary)
	}
}

func (m *model) acquire(id int, now time.Duration, direct bool) (granted, probe bool) {
	m.look(now, direct)
	switch {
	case m.state == Primary:
		m.calls = append(m.calls, id)
		return true, false
	case m.state == Recovering && (m.probe == 0 || now >= m.probeUntil):
		m.probe, m.probeUntil = id, now+DefaultProbeTimeout
		return true, true
	}
	return false, false
}

func (m *model) fail(id int, now time.Duration) {
	if slices.Contains(m.calls, id) {
		m.failures++
	}
	if m.failures >= m.threshold || m.probe == id {
		m.enter(Degraded)
		m.openUntil = now + DefaultOpenWindow
	}
}

func (m *model) succeed(id int, now time.Duration, direct bool) {
	if slices.Contains(m.calls, id) {
		m.failures = 0
	}
	if m.probe == id {
		m.probe = 0
		m.passed++
		m.look(now, direct)
	}
}

func (m *model) ignore(id int) {
	if m.probe == id {
		m.probe = 0
	}
}

// TestBreakerIsItsModel plays any order of calls, results (late ones, too),
// waits and changes of the fence.
func TestBreakerIsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			now     time.Duration
			direct  = true
			last    = Primary
			permits = make(map[int]Permit)
			ids     []int
			// Few are needed, so that every order of several outages comes up.
			want = model{
				threshold: rapid.IntRange(1, 3).Draw(t, "threshold"),
				required:  rapid.IntRange(1, 2).Draw(t, "probes"),
			}
		)
		b := New(Options{
			FailureThreshold: want.threshold,
			RecoveryProbes:   want.required,
			Direct:           func() bool { return direct },
			OnChange: func(from, to State) {
				if from != last {
					t.Fatalf("a transition from %s, and the one before led to %s", from, last)
				}
				last = to
			},
		})
		b.elapsed = func() time.Duration { return now }
		b.random = func() float64 { return 0.5 }

		// said returns a call of any age that has been granted. Each may have
		// several results, of which the first counts.
		said := func(t *rapid.T) (int, Permit) {
			if len(ids) == 0 {
				t.Skip("no call yet")
			}
			id := rapid.SampledFrom(ids).Draw(t, "call")
			return id, permits[id]
		}
		forget := func(id int) {
			want.calls = slices.DeleteFunc(want.calls, func(c int) bool { return c == id })
			ids = slices.DeleteFunc(ids, func(c int) bool { return c == id })
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				next++
				permit, granted := b.Acquire()
				wantGranted, wantProbe := want.acquire(next, now, direct)
				if granted != wantGranted || granted && permit.Probe() != wantProbe {
					t.Fatalf("granted %v, probe %v; want %v, %v in %s", granted, permit.Probe(), wantGranted, wantProbe, want.state)
				}
				if granted {
					permits[next] = permit
					ids = append(ids, next)
				}
			},
			"succeed": func(t *rapid.T) {
				id, p := said(t)
				p.Success()
				want.succeed(id, now, direct)
				forget(id)
			},
			"fail": func(t *rapid.T) {
				id, p := said(t)
				p.Failure()
				want.fail(id, now)
				forget(id)
			},
			"ignore": func(t *rapid.T) {
				id, p := said(t)
				p.Ignore()
				want.ignore(id)
				forget(id)
			},
			"wait": func(t *rapid.T) {
				now += rapid.SampledFrom([]time.Duration{
					time.Second, DefaultProbeTimeout - 1, DefaultProbeTimeout, DefaultOpenWindow - 1, DefaultOpenWindow,
				}).Draw(t, "wait")
			},
			"fence": func(t *rapid.T) { direct = rapid.Bool().Draw(t, "direct") },
			"": func(t *rapid.T) {
				want.look(now, direct)
				if got := b.State(); got != want.state || got != last {
					t.Fatalf("state %s, last told %s; want %s", got, last, want.state)
				}
			},
		})
	})
}
