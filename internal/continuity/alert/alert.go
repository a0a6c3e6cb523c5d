// Package alert tells people what needs them, by Telegram and by e-mail. A
// condition is told once, and once more when it is over; whoever cannot be
// reached is tried again. Nothing that is sent, logged or returned as an error
// holds a token or a password.
package alert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Message is what people read.
type Message struct {
	// Subject is one line.
	Subject string
	Text    string
}

// Sender brings a message to people.
type Sender interface {
	// Name is for logs and metrics: telegram, smtp.
	Name() string
	// Send may be repeated after an error; people may get a message twice then.
	// LaterError says when.
	Send(ctx context.Context, m Message) error
}

// LaterError is a refusal by a server that says when it wants to be asked again.
type LaterError struct {
	After time.Duration
	Err   error
}

func (e *LaterError) Error() string { return fmt.Sprintf("%v; again in %s", e.Err, e.After) }
func (e *LaterError) Unwrap() error { return e.Err }

const (
	// sendTimeout bounds one message.
	sendTimeout = 20 * time.Second
	// firstRetry doubles with each failure, up to lastRetry.
	firstRetry = 5 * time.Second
	lastRetry  = 10 * time.Minute
	// maxEvents bounds the events that wait for a sender; the oldest give way.
	maxEvents = 100
)

// Options of alerts.
type Options struct {
	// Origin names who tells, such as "edge-1 of prod"; every subject begins with
	// it.
	Origin  string
	Senders []Sender
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Alerts is safe for concurrent use. Raise, Clear and Tell never wait: Run sends.
type Alerts struct {
	opts   Options
	sent   *prometheus.CounterVec
	mu     sync.Mutex
	raised []condition
	lines  []*line
}

// condition is one that holds.
type condition struct{ name, text string }

// line is the way to one sender.
type line struct {
	sender Sender
	// wake has room for one: something is to be told.
	wake chan struct{}
	// told are the conditions that the sender has told of and that were not over
	// since, and over the texts of those that are.
	told map[string]bool
	over map[string]string
	// events are to be told once.
	events []Message
}

// New returns alerts that tell nothing until Run.
func New(opts Options) *Alerts {
	a := &Alerts{opts: opts, sent: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "continuity_alerts_sent_total",
		Help: "Messages to people, by sender and whether they were taken.",
	}, []string{"sender", "result"})}
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(a.sent)
	}
	for _, s := range opts.Senders {
		a.lines = append(a.lines, &line{
			sender: s,
			wake:   make(chan struct{}, 1),
			told:   make(map[string]bool),
			over:   make(map[string]string),
		})
	}
	return a
}

// Raise says that a condition holds. While it does, only the first time is told,
// with the text that it had then.
func (a *Alerts) Raise(_ context.Context, name, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.find(name) >= 0 {
		return
	}
	a.raised = append(a.raised, condition{name, text})
	a.wakeAll()
}

// Clear says that a condition is over. Only those who were told that it holds
// are told.
func (a *Alerts) Clear(_ context.Context, name, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.find(name)
	if i < 0 {
		return
	}
	a.raised = slices.Delete(a.raised, i, i+1)
	for _, l := range a.lines {
		if l.told[name] {
			l.over[name] = text
		}
	}
	a.wakeAll()
}

// Tell says once that something has happened, such as a cutover.
func (a *Alerts) Tell(_ context.Context, m Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.lines {
		if len(l.events) == maxEvents {
			l.events = l.events[1:]
		}
		l.events = append(l.events, m)
	}
	a.wakeAll()
}

func (a *Alerts) find(name string) int {
	return slices.IndexFunc(a.raised, func(c condition) bool { return c.name == name })
}

func (a *Alerts) wakeAll() {
	for _, l := range a.lines {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// Run sends until ctx ends. Each sender goes by itself, so that one that cannot
// be reached keeps no other back.
func (a *Alerts) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, l := range a.lines {
		group.Go(func() { a.run(ctx, l) })
	}
	group.Wait()
}

func (a *Alerts) run(ctx context.Context, l *line) {
	for retry := firstRetry; ; {
		wait := time.Duration(0)
		if err := a.flush(ctx, l); err != nil && ctx.Err() == nil {
			wait, retry = retry, min(2*retry, lastRetry)
			if later := (*LaterError)(nil); errors.As(err, &later) {
				wait = max(wait, later.After)
			}
			a.opts.Logger.WarnContext(ctx, "alert not sent", "sender", l.sender.Name(), "error", err, "again_in", wait)
		} else {
			retry = firstRetry
		}
		if !rest(ctx, l.wake, wait) {
			return
		}
	}
}

// rest waits for the time, or if it is zero until there is something to tell. It
// returns false when ctx ends.
func rest(ctx context.Context, wake <-chan struct{}, wait time.Duration) bool {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due, wake = timer.C, nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-due:
	}
	return true
}

// flush sends what a sender has not told yet, until nothing is left.
func (a *Alerts) flush(ctx context.Context, l *line) error {
	for {
		m, done := a.next(l)
		if done == nil {
			return nil
		}
		m.Subject = a.opts.Origin + ": " + m.Subject
		limited, cancel := context.WithTimeout(ctx, sendTimeout)
		err := l.sender.Send(limited, m)
		cancel()
		if err != nil {
			a.sent.WithLabelValues(l.sender.Name(), "failed").Inc()
			return err
		}
		a.sent.WithLabelValues(l.sender.Name(), "sent").Inc()
		a.mu.Lock()
		done()
		a.mu.Unlock()
	}
}

// next is what is to be told next, and what is then to be noted, with the lock
// held; nil if nothing is.
func (a *Alerts) next(l *line) (m Message, done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, text := range l.over {
		return Message{Subject: "over: " + name, Text: text}, func() {
			delete(l.over, name)
			delete(l.told, name)
		}
	}
	for _, c := range a.raised {
		if !l.told[c.name] {
			return Message{Subject: c.name, Text: c.text}, func() {
				l.told[c.name] = true
				if a.find(c.name) < 0 {
					// It ended while it was being told.
					l.over[c.name] = "It is over."
				}
			}
		}
	}
	if len(l.events) > 0 {
		first := l.events[0]
		return first, func() {
			if len(l.events) > 0 && l.events[0] == first {
				l.events = l.events[1:]
			}
		}
	}
	return Message{}, nil
}
