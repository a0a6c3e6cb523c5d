package hosted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/internal/continuity"
)

// MaxBatch is how many commands one call takes in, hands out or settles.
const MaxBatch = 100

// Submission is a command and the epoch that it is to enter under; zero stands for the current one.
type Submission struct {
	continuity.Command
	Epoch continuity.Epoch
}

// Entry is what has come of one submission of several: its receipt, or its error.
type Entry struct {
	continuity.Receipt
	Err error
}

// EnqueueAll is Enqueue for up to MaxBatch commands with one commit. Each has an entry, in their order; one that is refused
// touches no other. Commands of one aggregate enter in their order.
//
// An error is that of the call: then none has entered, or, with ErrOutcomeUnknown, all may have.
func (q *Queue) EnqueueAll(ctx context.Context, submissions []Submission) ([]Entry, error) {
	entries := make([]Entry, len(submissions))
	var (
		sent []int
		list []map[string]any
	)
	for i, s := range submissions {
		args, err := checked(enqueue, s.args())
		if err != nil {
			entries[i].Err = err
			continue
		}
		sent = append(sent, i)
		list = append(list, args)
	}
	if len(list) == 0 {
		return entries, nil
	}
	commands, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", enqueueAll, err)
	}
	var answers []answer
	err = q.transport.Call(ctx, enqueueAll, map[string]any{"p_commands": json.RawMessage(commands)}, &answers)
	switch {
	case errors.Is(err, continuity.ErrInvalid), errors.Is(err, continuity.ErrPayloadTooLarge):
		// One of them cannot be read, or they are too long together.
		for _, i := range sent {
			entries[i].Receipt, entries[i].Err = q.Enqueue(ctx, submissions[i].Command, submissions[i].Epoch)
		}
		return entries, nil
	case err != nil:
		return nil, err
	case len(answers) != len(sent):
		return nil, unanswered(ctx, enqueueAll, fmt.Errorf("%d answers to %d commands", len(answers), len(sent)))
	}
	for n, i := range sent {
		entries[i] = answers[n].entry()
	}
	return entries, nil
}

const (
	enqueue    = "continuity_enqueue"
	enqueueAll = "continuity_enqueue_commands"
)

// args are the arguments of continuity_enqueue.
func (s Submission) args() map[string]any {
	return map[string]any{
		"p_command_id":       s.CommandID,
		"p_idempotency_key":  s.IdempotencyKey,
		"p_command_type":     s.CommandType,
		"p_aggregate_type":   s.AggregateType,
		"p_aggregate_id":     s.AggregateID,
		"p_payload":          s.Payload,
		"p_occurred_at":      pointee(s.OccurredAt),
		"p_expected_version": pointee(s.ExpectedVersion),
		"p_epoch":            orNull(s.Epoch),
	}
}

// answer is a receipt, or a refusal if it has a code.
type answer struct {
	continuity.Receipt
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (a answer) entry() Entry {
	if a.Code != "" {
		return Entry{Err: refusal(enqueue, a.Code, a.Detail)}
	}
	return Entry{Receipt: a.Receipt}
}

// AckAll is Ack for up to MaxBatch claims with one commit, and returns the ids of those that are lost.
func (q *Queue) AckAll(ctx context.Context, claims []continuity.Claim) (lost []uuid.UUID, err error) {
	type proof struct {
		CommandID  uuid.UUID             `json:"commandId"`
		ClaimToken continuity.ClaimToken `json:"claimToken"`
	}
	proofs := make([]proof, len(claims))
	for i, c := range claims {
		proofs[i] = proof{c.CommandID, c.Token}
	}
	text, err := json.Marshal(proofs)
	if err != nil {
		return nil, err
	}
	err = q.transport.Call(ctx, "continuity_ack_commands", map[string]any{"p_claims": json.RawMessage(text)}, &lost)
	return lost, err
}
