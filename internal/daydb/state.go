package daydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/looplab/fsm"
)

// State is where a day database stands in its life.
type State string

// The states of a day database, in the order of its life.
const (
	// Prewarmed: the database exists and is secured; its day has not begun.
	Prewarmed State = "PREWARMED"
	// Active: devices write the operation of the current day to it.
	Active State = "ACTIVE"
	// Draining: its day is over; devices keep it mounted to finish open documents.
	Draining State = "DRAINING"
	// Archived: all its documents are terminal and proven to be in Postgres.
	Archived State = "ARCHIVED"
	// Droppable: it is sealed, nobody can write to it, and it waits for its drop.
	Droppable State = "DROPPABLE"
	// Dropped: the physical database is gone; the row stays for ever.
	Dropped State = "DROPPED"
)

// States lists all states in the order of a day's life.
func States() []State {
	return []State{Prewarmed, Active, Draining, Archived, Droppable, Dropped}
}

// ValidState reports whether s is one of States.
func ValidState(s State) bool {
	for _, known := range States() {
		if s == known {
			return true
		}
	}
	return false
}

// Event is what moves a day database from one state to the next.
type Event string

// The events; prewarm creates the row, all others are in Transitions.
const (
	Prewarm  Event = "prewarm"
	Activate Event = "activate"
	Drain    Event = "drain"
	Archive  Event = "archive"
	Seal     Event = "seal"
	Drop     Event = "drop"
	Reopen   Event = "reopen"
)

// Transition is one row of the state machine.
type Transition struct {
	From  State
	Event Event
	To    State
	// Who fires it and what it needs, for people; docs/state-machine.md is made of it.
	Needs string
}

// Transitions is the state machine. The trigger day_databases_check holds the
// same moves, and a test holds the two equal.
func Transitions() []Transition {
	return []Transition{
		{Prewarmed, Activate, Active, "rolling-db-rotate at 05:00: its business day has begun and its database is secured"},
		{Active, Drain, Draining, "rolling-db-rotate at 05:00: the next business day becomes ACTIVE in the same transaction"},
		{Draining, Archive, Archived, "rolling-db-drop-eval at 04:00: locks 1 and 2 are green"},
		{Archived, Seal, Droppable, "rolling-db-drop-eval: all three locks green, rollingDbDrop on, no hold; the seal was read back"},
		{Droppable, Drop, Dropped, "rolling-db-drop-eval, on a later night: settled, archived to the end, proven, the DELETE seen to have worked"},
		{Archived, Reopen, Draining, "rolling-db-drop-eval: a late device brought open documents or conflicts"},
		{Droppable, Reopen, Draining, "rolling-db-drop-eval: a write in flight at the seal brought open documents or conflicts; the seal is lifted"},
	}
}

// ErrIllegalMove is returned for an event that the present state does not allow.
var ErrIllegalMove = errors.New("illegal move")

// Next returns the state that event leads to from state, or ErrIllegalMove. It
// is pure.
func Next(state State, event Event) (State, error) {
	machine := fsm.NewFSM(string(state), events, nil)
	if err := machine.Event(context.Background(), string(event)); err != nil {
		return "", fmt.Errorf("%w: %s a day that is %s", ErrIllegalMove, event, state)
	}
	return State(machine.Current()), nil
}

var events = func() fsm.Events {
	var all fsm.Events
	for _, t := range Transitions() {
		all = append(all, fsm.EventDesc{Name: string(t.Event), Src: []string{string(t.From)}, Dst: string(t.To)})
	}
	return all
}()
