package main

import (
	"slices"
	"sync"
	"time"
)

// ledger is what the edges have promised, as the clients have heard it.
type ledger struct {
	mu sync.Mutex
	// taken is by key, and order the keys in the order in which clients heard of
	// them: one who sends two commands about an order waits in between.
	taken map[string]promise
	order []string
	ways  map[string]int
	// longest is the longest that a client had to try.
	longest time.Duration
}

// promise is a command that was taken.
type promise struct {
	command
	// way is that of the first answer.
	way string
}

func newLedger() *ledger {
	return &ledger{taken: make(map[string]promise), ways: make(map[string]int)}
}

func (l *ledger) accept(c command, a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.taken[c.IdempotencyKey]; known {
		return
	}
	l.taken[c.IdempotencyKey] = promise{command: c, way: a.Applied}
	l.order = append(l.order, c.IdempotencyKey)
	l.ways[a.Applied]++
}

// count is how many were taken this way first.
func (l *ledger) count(way string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[way]
}

// promises are all of them, in their order.
func (l *ledger) promises() []promise {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]promise, 0, len(l.order))
	for key := range slices.Values(l.order) {
		all = append(all, l.taken[key])
	}
	return all
}

// waited notes how long a client had to try until its command was taken.
func (l *ledger) waited(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, d)
}

func (l *ledger) longestWait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
}
