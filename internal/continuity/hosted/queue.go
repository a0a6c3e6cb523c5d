package hosted

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// Queue is the queue of commands.
type Queue struct {
	transport Transport
}

// NewQueue returns the client over the transport.
func NewQueue(transport Transport) *Queue {
	return &Queue{transport: transport}
}

// QueuedCommand is a command as the queue keeps it, without its payload.
type QueuedCommand struct {
	CommandID      uuid.UUID               `json:"commandId"`
	IdempotencyKey string                  `json:"idempotencyKey"`
	CommandType    string                  `json:"commandType"`
	AggregateType  string                  `json:"aggregateType"`
	AggregateID    string                  `json:"aggregateId"`
	Sequence       continuity.Sequence     `json:"sequence"`
	Epoch          continuity.Epoch        `json:"epoch"`
	Status         contracts.CommandStatus `json:"status"`
	Attempts       int                     `json:"attempts"`
	MaxAttempts    int                     `json:"maxAttempts"`
	// AvailableAt is until when a pending command waits after a failure or a snooze; nil if it does not wait.
	AvailableAt  *time.Time `json:"availableAt"`
	ClaimedBy    *string    `json:"claimedBy"`
	ClaimedUntil *time.Time `json:"claimedUntil"`
	LastError    *string    `json:"lastError"`
	EnqueuedAt   time.Time  `json:"enqueuedAt"`
	// SettledAt is when the command became acked or dead.
	SettledAt *time.Time `json:"settledAt"`
	// SkippedAt is when a person decided to go on without the dead command.
	SkippedAt  *time.Time `json:"skippedAt"`
	SkippedBy  *string    `json:"skippedBy"`
	SkipReason *string    `json:"skipReason"`
}

// ClaimOptions say what a worker takes.
type ClaimOptions struct {
	// Worker names it to people; it is not what proves a claim.
	Worker string
	// Limit is 1 to 100 commands.
	Limit int
	// Lease is 1 second to 1 hour, in whole seconds.
	Lease time.Duration
	// Epoch is the one that the worker believes in; zero for whichever it is.
	Epoch continuity.Epoch
	// UpTo is the last sequence number to be claimed, the high-water mark; nil for no bound.
	UpTo *continuity.Sequence
}

// QueueStats is a picture of the queue. Counts by status end at 10,000.
type QueueStats struct {
	Commands map[contracts.CommandStatus]int64 `json:"commands"`
	// Events are those of the outbox.
	Events       map[contracts.OutboxStatus]int64 `json:"events"`
	LastSequence continuity.Sequence              `json:"lastSequence"`
	// OldestPending is the age, since it came in, of the oldest command that is not settled.
	OldestPending Seconds `json:"oldestPendingSeconds"`
	// Waiting are pending commands whose time has not come.
	Waiting       int64 `json:"waiting"`
	ExpiredLeases int64 `json:"expiredLeases"`
	// UnacknowledgedDead are the dead that nobody has skipped; BlockedAggregates those that they keep back.
	UnacknowledgedDead int64 `json:"unacknowledgedDead"`
	BlockedAggregates  int64 `json:"blockedAggregates"`
	// UnknownTypes are the types of pending commands that nobody is given.
	UnknownTypes []string `json:"unknownTypes"`
	// NewestSnapshotAge is nil while there is no snapshot.
	NewestSnapshotAge *Seconds `json:"newestSnapshotAgeSeconds"`
}

// Enqueue puts the command in under an epoch; zero stands for the current one. A key that is known gets its receipt in
// every mode, whatever the epoch.
//
// Errors: StaleEpochError, ErrNotOpen (direct writes are open), ErrSealed, ErrKeyReused, ErrInvalid, ErrPayloadTooLarge.
func (q *Queue) Enqueue(ctx context.Context, c continuity.Command, epoch continuity.Epoch) (continuity.Receipt, error) {
	var receipt continuity.Receipt
	err := q.transport.Call(ctx, enqueue, Submission{c, epoch}.args(), &receipt)
	return receipt, err
}

// Claim takes commands whose turn it is: of each aggregate the first that is not settled. Claims whose lease has ended
// are ended first, each as a failed attempt.
//
// It is the one call of the queue that a repetition does not repeat: claims whose answer was lost end with their lease.
//
// Errors: StaleEpochError, ErrNotOpen (the drain has not begun), ErrInvalid.
func (q *Queue) Claim(ctx context.Context, o ClaimOptions) ([]continuity.Claim, error) {
	var claims []continuity.Claim
	err := q.transport.Call(ctx, "continuity_claim_commands", map[string]any{
		"p_worker_id":     o.Worker,
		"p_limit":         o.Limit,
		"p_lease_seconds": seconds(o.Lease),
		"p_epoch":         orNull(o.Epoch),
		"p_up_to":         pointee(o.UpTo),
	}, &claims)
	return claims, err
}

// Ack settles a command whose effect is committed. A claim that is lost is ErrLostClaim, here and in Fail, Snooze and
// Extend; the first three may be repeated with the same token.
func (q *Queue) Ack(ctx context.Context, id uuid.UUID, token continuity.ClaimToken) error {
	return q.transport.Call(ctx, "continuity_ack_command", map[string]any{
		"p_command_id":  id,
		"p_claim_token": token,
	}, nil)
}

// Fail counts a failed attempt. The command waits for its next one, or is dead: after the last attempt, or at once if the
// failure is permanent. The reason is kept up to 2000 characters, and must not hold the payload.
func (q *Queue) Fail(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, reason string, permanent bool) (QueuedCommand, error) {
	var c QueuedCommand
	err := q.transport.Call(ctx, "continuity_fail_command", map[string]any{
		"p_command_id":  id,
		"p_claim_token": token,
		"p_error":       reason,
		"p_permanent":   permanent,
	}, &c)
	return c, err
}

// Snooze gives the command back for a while of up to an hour, without counting an attempt.
func (q *Queue) Snooze(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, wait time.Duration) error {
	return q.transport.Call(ctx, "continuity_snooze_command", map[string]any{
		"p_command_id":  id,
		"p_claim_token": token,
		"p_seconds":     seconds(wait),
	}, nil)
}

// Extend lets the lease last this long from now on.
func (q *Queue) Extend(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, lease time.Duration) error {
	return q.transport.Call(ctx, "continuity_extend_claim", map[string]any{
		"p_command_id":    id,
		"p_claim_token":   token,
		"p_lease_seconds": seconds(lease),
	}, nil)
}

// ReleaseExpired ends the claims whose lease is over, up to 100, and returns how many. Claim does it too.
func (q *Queue) ReleaseExpired(ctx context.Context) (int, error) {
	var released int
	err := q.transport.Call(ctx, "continuity_release_expired", map[string]any{}, &released)
	return released, err
}

// Redrive brings a dead command back with all of its attempts. One that is on its way is left as it is.
//
// Errors: ErrUnknownCommand, ErrInvalid if it is acked.
func (q *Queue) Redrive(ctx context.Context, id uuid.UUID, actor, reason string) (QueuedCommand, error) {
	return q.decide(ctx, "continuity_redrive", id, actor, reason)
}

// Skip goes on without a dead command, or one of an unknown type: it stays, dead, and keeps nothing back.
//
// Errors: ErrUnknownCommand, ErrInvalid if it is not dead.
func (q *Queue) Skip(ctx context.Context, id uuid.UUID, actor, reason string) (QueuedCommand, error) {
	return q.decide(ctx, "continuity_skip", id, actor, reason)
}

func (q *Queue) decide(ctx context.Context, function string, id uuid.UUID, actor, reason string) (QueuedCommand, error) {
	var c QueuedCommand
	err := q.transport.Call(ctx, function, map[string]any{
		"p_command_id": id,
		"p_actor":      actor,
		"p_reason":     reason,
	}, &c)
	return c, err
}

// Purge deletes acked commands and delivered events that were settled so long ago, at least 14 days, and returns how many
// of both. It deletes some thousand at a time: the caller repeats it while it deletes any.
func (q *Queue) Purge(ctx context.Context, olderThan time.Duration) (int, error) {
	var purged struct{ Commands, Events int }
	err := q.transport.Call(ctx, "continuity_purge_acked", map[string]any{
		"p_older_than_seconds": seconds(olderThan),
	}, &purged)
	return purged.Commands + purged.Events, err
}

// Stats counts.
func (q *Queue) Stats(ctx context.Context) (QueueStats, error) {
	var stats QueueStats
	err := q.transport.Call(ctx, "continuity_queue_stats", map[string]any{}, &stats)
	return stats, err
}

// Find returns the command that came with the key, or ErrUnknownCommand.
func (q *Queue) Find(ctx context.Context, idempotencyKey string) (QueuedCommand, error) {
	var c *QueuedCommand
	err := q.transport.Call(ctx, "continuity_find_command", map[string]any{
		"p_idempotency_key": idempotencyKey,
	}, &c)
	if err != nil {
		return QueuedCommand{}, err
	}
	if c == nil {
		return QueuedCommand{}, fmt.Errorf("find command: %w", continuity.ErrUnknownCommand)
	}
	return *c, nil
}

// List returns up to limit (1 to 1000) commands with a higher sequence number than after, in their order; an empty status
// stands for all.
func (q *Queue) List(ctx context.Context, status contracts.CommandStatus, after continuity.Sequence, limit int) ([]QueuedCommand, error) {
	var page []QueuedCommand
	err := q.transport.Call(ctx, "continuity_list_commands", map[string]any{
		"p_status": orNull(status),
		"p_after":  after,
		"p_limit":  limit,
	}, &page)
	return page, err
}
