// Package breaker decides whether the primary is asked at all. A breaker passes
// from PRIMARY to DEGRADED when the primary has failed several times in a row,
// from there to RECOVERING when the open window has passed, and back to PRIMARY
// when probes have passed and the fence lets direct writes in.
//
// It has no timers and no goroutines: a transition that time brings happens when
// somebody looks.
package breaker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollingd/rollingd/contracts"
)

// State is what a breaker does with a call.
type State uint8

// The states. Their numbers are those of the gauge continuity_circuit_state.
const (
	// Primary lets every call through.
	Primary State = iota
	// Degraded lets none through until the open window has passed.
	Degraded
	// Recovering lets one probe through at a time.
	Recovering
)

var modes = [...]contracts.ReplicationMode{
	Primary:    contracts.ModePrimary,
	Degraded:   contracts.ModeDegraded,
	Recovering: contracts.ModeRecovering,
}

// String is the state as it stands in logs: PRIMARY, DEGRADED or RECOVERING.
func (s State) String() string {
	switch s {
	case Primary:
		return "PRIMARY"
	case Degraded:
		return "DEGRADED"
	case Recovering:
		return "RECOVERING"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText is String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Mode is the state as nodes and answers report it.
func (s State) Mode() contracts.ReplicationMode { return modes[s] }

// Defaults of options that are zero.
const (
	DefaultFailureThreshold = 3
	DefaultOpenWindow       = 30 * time.Second
	DefaultRecoveryProbes   = 2
	DefaultProbeTimeout     = 10 * time.Second
	DefaultJitter           = 0.1
)

// Options of a breaker. Zero fields take their defaults.
type Options struct {
	// FailureThreshold is how many failures in a row open it.
	FailureThreshold int
	// OpenWindow is how long it stays DEGRADED.
	OpenWindow time.Duration
	// Jitter is the fraction by which each window varies, up and down, so that
	// the instances of a fleet do not probe in step. Negative is none.
	Jitter float64
	// RecoveryProbes is how many probes in a row must pass.
	RecoveryProbes int
	// ProbeTimeout is how long a probe keeps its slot without a result.
	ProbeTimeout time.Duration
	// Direct reports whether the fence lets direct writes in, as far as this
	// process knows: it must not block. The breaker closes on nothing less,
	// because a primary that answers but still drains would be written to past
	// the commands that are queued. nil is always.
	Direct func() bool
	// OnChange hears of every transition, in order. It is called with the
	// breaker locked, hence must neither block nor call the breaker.
	OnChange func(from, to State)
}

func (o Options) withDefaults() Options {
	setDefault(&o.FailureThreshold, DefaultFailureThreshold)
	setDefault(&o.OpenWindow, DefaultOpenWindow)
	setDefault(&o.Jitter, DefaultJitter)
	setDefault(&o.RecoveryProbes, DefaultRecoveryProbes)
	setDefault(&o.ProbeTimeout, DefaultProbeTimeout)
	if o.Jitter < 0 {
		o.Jitter = 0
	}
	if o.Direct == nil {
		o.Direct = func() bool { return true }
	}
	if o.OnChange == nil {
		o.OnChange = func(State, State) {}
	}
	return o
}

func setDefault[T comparable](option *T, standard T) {
	var zero T
	if *option == zero {
		*option = standard
	}
}

// Breaker is one primary's. It is safe for concurrent use.
type Breaker struct {
	opts Options
	// elapsed is the monotonic time since the breaker was made: a wall clock
	// that is set would end a window, or never end it.
	elapsed func() time.Duration
	// random is from 0 to less than 1.
	random func() float64

	// word holds the generation and the state. It changes with mu held; reading
	// it without is all that a call costs while the primary is well.
	word atomic.Uint64
	// failures in a row of this generation. It is reset and raised with mu held.
	failures atomic.Int32

	// openUntil is when DEGRADED ends, a time.Duration in elapsed time. It is set
	// with mu held, before the word.
	openUntil atomic.Int64

	mu sync.Mutex
	// passed counts probes that passed in a row while RECOVERING.
	passed int
	// probe is the serial number of the probe in flight, zero if none is, and
	// probeUntil when it loses its slot.
	probe      uint64
	probeUntil time.Duration
	// probes numbers probes.
	probes uint64
}

// New returns a breaker in PRIMARY.
func New(opts Options) *Breaker {
	began := time.Now()
	return &Breaker{
		opts:    opts.withDefaults(),
		elapsed: func() time.Duration { return time.Since(began) },
		random:  rand.Float64,
	}
}

// The word is the generation, which every transition raises, above the state.
const (
	stateBits  = 2
	stateMask  = 1<<stateBits - 1
	generation = 1 << stateBits
)

func stateOf(word uint64) State { return State(word & stateMask) }

// Permit is the leave to make one call. Whoever has it says once how the call
// came out: Success, Failure or Ignore. What is said later, or about a call that
// began before the last transition, changes nothing.
type Permit struct {
	breaker *Breaker
	word    uint64
	// probe is zero for a call that is none.
	probe uint64
}

// Probe reports whether the call is a probe.
func (p Permit) Probe() bool { return p.probe != 0 }

// Acquire asks for leave to call. It never waits.
func (b *Breaker) Acquire() (Permit, bool) {
	word := b.word.Load()
	if stateOf(word) == Primary {
		return Permit{breaker: b, word: word}, true
	}
	now := b.elapsed()
	if stateOf(word) == Degraded && now < b.until() {
		return Permit{}, false
	}
	return b.acquireProbe(now)
}

// ProbeSoon ends the open window, because somebody else has found that the other
// side may be back. The next call is a probe; nothing more follows from it.
func (b *Breaker) ProbeSoon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if stateOf(b.word.Load()) == Degraded {
		b.openUntil.Store(0)
	}
}

func (b *Breaker) until() time.Duration { return time.Duration(b.openUntil.Load()) }

func (b *Breaker) acquireProbe(now time.Duration) (Permit, bool) {
	direct := b.opts.Direct()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now, direct)
	switch stateOf(b.word.Load()) {
	case Primary:
		return Permit{breaker: b, word: b.word.Load()}, true
	case Recovering:
		if b.probe != 0 && now < b.probeUntil {
			return Permit{}, false
		}
		b.probes++
		b.probe, b.probeUntil = b.probes, now+b.opts.ProbeTimeout
		return Permit{breaker: b, word: b.word.Load(), probe: b.probe}, true
	default:
		return Permit{}, false
	}
}

// State returns the state at this moment.
func (b *Breaker) State() State {
	if state := stateOf(b.word.Load()); state == Primary {
		return state
	}
	now, direct := b.elapsed(), b.opts.Direct()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now, direct)
	return stateOf(b.word.Load())
}

// advance makes the transitions that are due without a call's result.
func (b *Breaker) advance(now time.Duration, direct bool) {
	if stateOf(b.word.Load()) == Degraded && now >= b.until() {
		b.move(Recovering)
	}
	// The probes may have passed before the fence opened.
	if stateOf(b.word.Load()) == Recovering && b.passed >= b.opts.RecoveryProbes && direct {
		b.move(Primary)
	}
}

// open begins a window. The time is read under the lock, so that of two
// failures the later one's window counts.
func (b *Breaker) open() {
	spread := 1 + b.opts.Jitter*(2*b.random()-1)
	b.openUntil.Store(int64(b.elapsed() + time.Duration(float64(b.opts.OpenWindow)*spread)))
	b.move(Degraded)
}

func (b *Breaker) move(to State) {
	word := b.word.Load()
	from := stateOf(word)
	b.passed, b.probe = 0, 0
	b.failures.Store(0)
	b.word.Store((word&^stateMask + generation) | uint64(to))
	if from != to {
		b.opts.OnChange(from, to)
	}
}

// Success says that the other side answered, whatever it said.
func (p Permit) Success() {
	b := p.breaker
	if p.probe == 0 {
		// A success that nobody has to hear of is the common case.
		if b.failures.Load() == 0 {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if p.word == b.word.Load() {
			b.failures.Store(0)
		}
		return
	}
	now, direct := b.elapsed(), b.opts.Direct()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !p.holdsSlot() {
		return
	}
	b.probe = 0
	b.passed++
	b.advance(now, direct)
}

// Failure says that the other side did not answer, or not as itself.
func (p Permit) Failure() {
	b := p.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case p.probe != 0:
		if p.holdsSlot() {
			b.open()
		}
	case p.word == b.word.Load():
		if int(b.failures.Add(1)) >= b.opts.FailureThreshold {
			b.open()
		}
	}
}

// Ignore says that nothing was learnt, as when the client hung up. A probe gives
// its slot back. It is a good thing to defer: after Success or Failure it
// changes nothing.
func (p Permit) Ignore() {
	if p.probe == 0 {
		return
	}
	p.breaker.mu.Lock()
	defer p.breaker.mu.Unlock()
	if p.holdsSlot() {
		p.breaker.probe = 0
	}
}

// holdsSlot reports whether the result of a probe still counts. No two have the
// same number, and a slot that is lost or whose state is over has another or none.
func (p Permit) holdsSlot() bool { return p.probe == p.breaker.probe }
