package contracts

import (
	"encoding/json"
	"slices"
	"time"
)

// CommandStatus is the life of a queued command. Acked and dead are final; dead
// rows are kept.
type CommandStatus string

// Statuses of a command.
const (
	CommandPending CommandStatus = "pending"
	CommandClaimed CommandStatus = "claimed"
	CommandAcked   CommandStatus = "acked"
	CommandDead    CommandStatus = "dead"
)

// OutboxStatus is the life of an event that the primary mirrors to the hosted
// database.
type OutboxStatus string

// Statuses of an outbox event.
const (
	OutboxPending   OutboxStatus = "pending"
	OutboxClaimed   OutboxStatus = "claimed"
	OutboxDelivered OutboxStatus = "delivered"
	OutboxDead      OutboxStatus = "dead"
)

// ReplicationMode is what a node reports about itself.
type ReplicationMode string

// Modes of a node.
const (
	ModePrimary    ReplicationMode = "primary"
	ModeDegraded   ReplicationMode = "degraded"
	ModeRecovering ReplicationMode = "recovering"
)

// Limits of the queue. Payload limits count the bytes of the UTF-8 JSON text,
// inclusive.
const (
	// MaxAttempts is how often a command is tried; it becomes dead when the
	// last attempt fails.
	MaxAttempts = 8

	MaxCommandPayloadBytes  = 64 << 10
	MaxOutboxPayloadBytes   = 64 << 10
	MaxSnapshotPayloadBytes = 256 << 10

	BackoffBase = 15 * time.Second
	BackoffCap  = time.Hour
	// BackoffJitter is the fraction by which a wait varies, up and down, so
	// that retries spread out.
	BackoffJitter = 0.2
)

// ErrorCode says why a read or a write was not served.
type ErrorCode string

// Error codes of the continuity plane.
const (
	CodePrimaryTimeout       ErrorCode = "primary_timeout"
	CodePrimaryFailure       ErrorCode = "primary_failure"
	CodePrimaryUnavailable   ErrorCode = "primary_unavailable"
	CodeSnapshotMiss         ErrorCode = "snapshot_miss"
	CodeSnapshotFailure      ErrorCode = "snapshot_failure"
	CodeQueueFailure         ErrorCode = "queue_failure"
	CodeNonEssentialRejected ErrorCode = "non_essential_rejected"
	CodeInvalidCommand       ErrorCode = "invalid_command"
	CodePayloadTooLarge      ErrorCode = "payload_too_large"
)

// Command is a command as a client submits it.
type Command struct {
	// IdempotencyKey: one key is one effect, however often and by whichever
	// way it arrives.
	IdempotencyKey string `json:"idempotencyKey"`
	CommandType    string `json:"commandType"`
	AggregateType  string `json:"aggregateType"`
	// AggregateID: commands of one aggregate are applied in queue order.
	AggregateID string          `json:"aggregateId"`
	Payload     json.RawMessage `json:"payload"`
	// OccurredAt is RFC 3339 from the client's clock: metadata, nothing orders
	// by it.
	OccurredAt string `json:"occurredAt,omitempty"`
	// ExpectedVersion is the aggregate's version that the client saw, nil when
	// it states none.
	ExpectedVersion *int64 `json:"expectedVersion,omitempty"`
}

// CommandStatuses returns every CommandStatus.
func CommandStatuses() []CommandStatus {
	return []CommandStatus{CommandPending, CommandClaimed, CommandAcked, CommandDead}
}

// OutboxStatuses returns every OutboxStatus.
func OutboxStatuses() []OutboxStatus {
	return []OutboxStatus{OutboxPending, OutboxClaimed, OutboxDelivered, OutboxDead}
}

// ReplicationModes returns every ReplicationMode.
func ReplicationModes() []ReplicationMode {
	return []ReplicationMode{ModePrimary, ModeDegraded, ModeRecovering}
}

// ErrorCodes returns every ErrorCode.
func ErrorCodes() []ErrorCode {
	return []ErrorCode{
		CodePrimaryTimeout, CodePrimaryFailure, CodePrimaryUnavailable,
		CodeSnapshotMiss, CodeSnapshotFailure,
		CodeQueueFailure, CodeNonEssentialRejected, CodeInvalidCommand, CodePayloadTooLarge,
	}
}

// EssentialCommandTypes returns the only types of command that may be queued
// while the primary is down; all others are refused out loud.
func EssentialCommandTypes() []string {
	return []string{
		"order.create", "order.update_status", "order.confirm_payment", "order.cancel",
		"payment.record",
		"cashflow.record",
	}
}

// IsEssential reports whether a command of this type may be queued.
func IsEssential(commandType string) bool {
	return slices.Contains(EssentialCommandTypes(), commandType)
}

// Backoff returns how long to wait, before jitter, once an attempt has failed.
// failures counts the failed attempts including that one, so the first wait is
// BackoffBase.
func Backoff(failures int) time.Duration {
	wait := BackoffBase
	for range failures - 1 {
		wait *= 2
		if wait >= BackoffCap {
			return BackoffCap
		}
	}
	return wait
}
