package edge

import (
	"fmt"
	"strconv"
)

// Phase is how much of the continuity plane is switched on. Each includes those
// before it, and going back one loses nothing: what is queued stays, and the
// primary drains it.
type Phase int

// The phases.
const (
	// Off: everything goes to the primary, as if there were no edge.
	Off Phase = iota
	// Schema: as Off; the hosted tables are there.
	Schema
	// Shadow: as Off, while the breaker and the metrics say what would be done.
	Shadow
	// Log: as Shadow, and the breaker's transitions are logged.
	Log
	// Route: reads fall back to snapshots, commands and webhooks to the queue.
	Route
	// Drain: as Route; the primary drains and publishes.
	Drain
	// Everything: with alerts.
	Everything
)

// ParsePhase reads a number from 0 to 6.
func ParsePhase(text string) (Phase, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < int(Off) || n > int(Everything) {
		return 0, fmt.Errorf("want a phase from %d to %d", Off, Everything)
	}
	return Phase(n), nil
}

// Hosted reports whether the hosted database is spoken to.
func (p Phase) Hosted() bool { return p >= Shadow }

// Routes reports whether calls take another way than to the primary.
func (p Phase) Routes() bool { return p >= Route }

// Logs reports whether the breaker's transitions are logged.
func (p Phase) Logs() bool { return p >= Log }

// Alerts reports whether people are told.
func (p Phase) Alerts() bool { return p >= Everything }
