package hosted

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
)

// Outbox is the mirror of the primary's events.
type Outbox struct {
	transport Transport
}

// NewOutbox returns the client over the transport.
func NewOutbox(transport Transport) *Outbox {
	return &Outbox{transport: transport}
}

// Event is something that happened on the primary.
type Event struct {
	// EventID makes it one event, however often it is published.
	EventID       uuid.UUID       `json:"eventId"`
	EventType     string          `json:"eventType"`
	AggregateType string          `json:"aggregateType"`
	AggregateID   string          `json:"aggregateId"`
	Payload       json.RawMessage `json:"payload"`
	// Epoch is that in which the primary wrote it; zero for the current one.
	Epoch continuity.Epoch `json:"epoch"`
}

// EventReceipt is the outbox's answer to an event that it holds.
type EventReceipt struct {
	EventID      uuid.UUID              `json:"eventId"`
	Sequence     int64                  `json:"sequence"`
	Deduplicated bool                   `json:"deduplicated"`
	Status       contracts.OutboxStatus `json:"status"`
}

// EventClaim is an event that a subscriber holds until its lease ends.
type EventClaim struct {
	Event
	Sequence    int64                 `json:"sequence"`
	Token       continuity.ClaimToken `json:"claimToken"`
	Attempts    int                   `json:"attempts"`
	MaxAttempts int                   `json:"maxAttempts"`
}

// Publish mirrors an event. Events of one aggregate are handed out in the order in which they were published.
//
// Errors: StaleEpochError for an epoch that has not come, ErrKeyReused for the id of another event, ErrInvalid,
// ErrPayloadTooLarge.
func (o *Outbox) Publish(ctx context.Context, e Event) (EventReceipt, error) {
	var receipt EventReceipt
	err := o.transport.Call(ctx, "continuity_publish_event", map[string]any{
		"p_event_id":       e.EventID,
		"p_event_type":     e.EventType,
		"p_aggregate_type": e.AggregateType,
		"p_aggregate_id":   e.AggregateID,
		"p_payload":        e.Payload,
		"p_epoch":          orNull(e.Epoch),
	}, &receipt)
	return receipt, err
}

// Claim takes up to limit (1 to 100) events, of each aggregate the first that is not settled.
func (o *Outbox) Claim(ctx context.Context, worker string, limit int, lease time.Duration) ([]EventClaim, error) {
	var claims []EventClaim
	err := o.transport.Call(ctx, "continuity_claim_events", map[string]any{
		"p_worker_id":     worker,
		"p_limit":         limit,
		"p_lease_seconds": seconds(lease),
	}, &claims)
	return claims, err
}

// Ack settles an event that was delivered, or returns ErrLostClaim. It may be repeated with the same token.
func (o *Outbox) Ack(ctx context.Context, id uuid.UUID, token continuity.ClaimToken) error {
	return o.transport.Call(ctx, "continuity_ack_event", map[string]any{
		"p_event_id":    id,
		"p_claim_token": token,
	}, nil)
}

// Fail counts a failed attempt, as Queue.Fail does, and returns the event's status.
func (o *Outbox) Fail(ctx context.Context, id uuid.UUID, token continuity.ClaimToken, reason string, permanent bool) (contracts.OutboxStatus, error) {
	var event struct{ Status contracts.OutboxStatus }
	err := o.transport.Call(ctx, "continuity_fail_event", map[string]any{
		"p_event_id":    id,
		"p_claim_token": token,
		"p_error":       reason,
		"p_permanent":   permanent,
	}, &event)
	return event.Status, err
}

// PurgeUnclaimed deletes events that nobody has claimed since they were published so long ago, at least 14 days, and
// returns how many. It deletes none while there is a sign of a subscriber. It deletes some thousand at a time: the caller
// repeats it while it deletes any.
func (o *Outbox) PurgeUnclaimed(ctx context.Context, olderThan time.Duration) (int, error) {
	var purged struct{ Events int }
	err := o.transport.Call(ctx, "continuity_purge_unclaimed", map[string]any{
		"p_older_than_seconds": seconds(olderThan),
	}, &purged)
	return purged.Events, err
}
