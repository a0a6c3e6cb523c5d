package primary

import (
	"errors"
	"fmt"
	"slices"
)

// Status is where an order stands.
type Status string

// The statuses of an order, in the order of its life.
const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Preparing Status = "preparing"
	Delivered Status = "delivered"
	Cancelled Status = "cancelled"
	Refunded  Status = "refunded"
)

// ErrIllegalMove is returned for a status that the present one does not lead to.
var ErrIllegalMove = errors.New("the order cannot go there from its status")

// Move is one row of the order's state machine.
type Move struct{ From, To Status }

// Moves is the state machine. The trigger orders_check holds the same moves, and
// a test holds the two equal.
func Moves() []Move {
	return []Move{
		{Pending, Paid},
		{Pending, Cancelled},
		{Paid, Preparing},
		{Paid, Cancelled},
		{Paid, Refunded},
		{Preparing, Delivered},
		{Preparing, Cancelled},
		{Preparing, Refunded},
		{Delivered, Refunded},
	}
}

// Statuses lists all statuses.
func Statuses() []Status {
	return []Status{Pending, Paid, Preparing, Delivered, Cancelled, Refunded}
}

// Ended reports whether an order of this status is over. What comes afterwards
// changes nothing, but that a delivered order may be refunded.
func (s Status) Ended() bool { return s == Delivered || s == Cancelled || s == Refunded }

// Verdict is what becomes of a command that wants an order to be of a status.
type Verdict string

// The verdicts.
const (
	// Moved: the order goes there.
	Moved Verdict = "moved"
	// There: it is there already.
	There Verdict = "there"
	// Overtaken: it has gone beyond, or is over. The status that it has wins, and
	// a person sees that the command came too late.
	Overtaken Verdict = "overtaken"
)

// Judge says what becomes of an order of status from that should be of status
// to; ErrIllegalMove when it would leave out a step. It is pure.
func Judge(from, to Status) (Verdict, error) {
	switch {
	case !slices.Contains(Statuses(), to):
		return "", fmt.Errorf("%w: there is no such status", ErrIllegalMove)
	case from == to:
		return There, nil
	case slices.Contains(Moves(), Move{from, to}):
		return Moved, nil
	case from.Ended() || rank(to) < rank(from):
		return Overtaken, nil
	}
	return "", fmt.Errorf("%w: from %s to %s", ErrIllegalMove, from, to)
}

func rank(s Status) int { return slices.Index(Statuses(), s) }
