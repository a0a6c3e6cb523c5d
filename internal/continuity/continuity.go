// Package continuity is the vocabulary of the continuity plane: commands, epochs
// and the errors that its parts tell each other.
//
// The local primary is the only authority. While it cannot be reached, an edge
// reads snapshots and puts intentions into a queue in a hosted Postgres; when it
// is back, the primary drains the queue under an epoch, and only then do direct
// writes open again. One idempotency key is one effect, whichever way it takes.
package continuity

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
)

// Sentinels. Each transport translates what its other side says into these, by
// code and never by text.
var (
	// ErrUnavailable: the other side did not answer, and nothing has happened.
	ErrUnavailable = errors.New("not reachable")
	// ErrOutcomeUnknown: it may have happened. Whoever repeats it uses the same
	// idempotency key or claim token.
	ErrOutcomeUnknown = errors.New("the outcome is not known; repeat it with the same key")
	// ErrDrift: the database and this program are of different versions. Nothing
	// is wrong with the command.
	ErrDrift = errors.New("the schema of the queue is not the one that this version expects; run rollingd migrate --hosted, or rollingd migrate for the primary's own")
	// ErrKeyReused: the idempotency key was used with another payload before.
	ErrKeyReused = errors.New("the idempotency key belongs to another payload")
	// ErrInvalid: the command can never be taken as it is.
	ErrInvalid = errors.New("the command is not valid")
	// ErrPayloadTooLarge: the payload exceeds the limit of its table.
	ErrPayloadTooLarge = errors.New("the payload is too large")
	// ErrLostClaim: the claim has ended, or another worker has the command now.
	// The worker stops, and changes nothing more.
	ErrLostClaim = errors.New("the claim is lost")
	// ErrSealed: the queue is being closed, which takes less than two seconds.
	// The caller tries again.
	ErrSealed = errors.New("the queue is sealed for the cutover; try again in a moment")
	// ErrNotOpen: the gate that was asked for, direct writes or the queue, is
	// closed in this epoch.
	ErrNotOpen = errors.New("the gate is closed in this epoch")
	// ErrNotYet: the fence refuses a step whose conditions are not met.
	ErrNotYet = errors.New("the fence refuses the step")
	// ErrUnknownCommand: no row has this id or key.
	ErrUnknownCommand = errors.New("no such command")
)

// StaleEpochError is returned to whoever acts under an epoch that is over, or
// that has not come.
type StaleEpochError struct{ Current Epoch }

func (e *StaleEpochError) Error() string {
	return fmt.Sprintf("the epoch is %d", e.Current)
}

// Epoch numbers the periods in which one gate is open: direct writes, or the
// queue. It only rises.
type Epoch int64

// Mode says which gate is open.
type Mode string

// The modes, in the order in which an outage passes through them.
const (
	// Direct: the primary takes writes; nothing new enters the queue.
	Direct Mode = "DIRECT"
	// Queue: the queue takes commands, and the primary refuses direct writes.
	Queue Mode = "QUEUE"
	// Catchup: as Queue, and the primary drains.
	Catchup Mode = "CATCHUP"
	// Sealed: nothing new enters; the primary drains to the high-water mark.
	Sealed Mode = "SEALED"
)

// Fence is the state of the sequencer.
type Fence struct {
	Epoch Epoch `json:"epoch"`
	Mode  Mode  `json:"mode"`
	// HighWaterMark is the sequence number of the last command to be drained
	// before the cutover; nil unless Sealed.
	HighWaterMark *Sequence `json:"highWaterMark"`
}

// Sequence orders the commands of one aggregate. Between aggregates it says
// nothing.
type Sequence int64

// ClaimToken is drawn anew for each claim, and proves that it still holds.
type ClaimToken int64

// Command is an intention.
type Command struct {
	CommandID      uuid.UUID       `json:"commandId"`
	IdempotencyKey string          `json:"idempotencyKey"`
	CommandType    string          `json:"commandType"`
	AggregateType  string          `json:"aggregateType"`
	AggregateID    string          `json:"aggregateId"`
	Payload        json.RawMessage `json:"payload"`
	// OccurredAt is the client's clock: metadata, nothing orders by it.
	OccurredAt *time.Time `json:"occurredAt,omitempty"`
	// ExpectedVersion is the aggregate's version that the client saw.
	ExpectedVersion *int64 `json:"expectedVersion,omitempty"`
}

// Receipt is the queue's answer to a command that it holds.
type Receipt struct {
	// CommandID is that of the row: the first one that came with the key.
	CommandID uuid.UUID `json:"commandId"`
	Sequence  Sequence  `json:"sequence"`
	// Deduplicated: the key was there before.
	Deduplicated bool                    `json:"deduplicated"`
	Status       contracts.CommandStatus `json:"status"`
	Epoch        Epoch                   `json:"epoch"`
}

// Claim is a command that a worker holds until its lease ends.
type Claim struct {
	Command
	Sequence Sequence   `json:"sequence"`
	Token    ClaimToken `json:"claimToken"`
	Epoch    Epoch      `json:"epoch"`
	// Attempts counts those that failed before this one.
	Attempts    int `json:"attempts"`
	MaxAttempts int `json:"maxAttempts"`
}
