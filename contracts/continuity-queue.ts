// The contract between the edge, which queues intentions in the hosted
// database while the local primary is down, and the primary, which alone turns
// them into state. Status and limits are those of the hosted tables.

/** Life of a command: acked and dead are final, dead rows are kept. */
export const COMMAND_STATUSES = ['pending', 'claimed', 'acked', 'dead'] as const;
export type CommandStatus = (typeof COMMAND_STATUSES)[number];

/** Life of an event that the primary mirrors to the hosted database. */
export const OUTBOX_STATUSES = ['pending', 'claimed', 'delivered', 'dead'] as const;
export type OutboxStatus = (typeof OUTBOX_STATUSES)[number];

/** What a node reports about itself. */
export const REPLICATION_MODES = ['primary', 'degraded', 'recovering'] as const;
export type ReplicationMode = (typeof REPLICATION_MODES)[number];

/** A command becomes dead when its last attempt fails. */
export const MAX_ATTEMPTS = 8;

/** Wait after a failed attempt: base, doubled each time, capped, with jitter. */
export const BACKOFF_BASE_SECONDS = 15;
export const BACKOFF_CAP_SECONDS = 3600;
/** The wait varies by this fraction, up and down, so that retries spread out. */
export const BACKOFF_JITTER = 0.2;

/** Limits of the UTF-8 text of a JSON payload, in bytes, inclusive. */
export const MAX_COMMAND_PAYLOAD_BYTES = 65536;
export const MAX_OUTBOX_PAYLOAD_BYTES = 65536;
export const MAX_SNAPSHOT_PAYLOAD_BYTES = 262144;

/** Why a read or a write was not served. */
export const CONTINUITY_ERROR_CODES = [
  'primary_timeout',
  'primary_failure',
  'primary_unavailable',
  'snapshot_miss',
  'snapshot_failure',
  'queue_failure',
  'non_essential_rejected',
  'invalid_command',
  'payload_too_large',
] as const;
export type ContinuityErrorCode = (typeof CONTINUITY_ERROR_CODES)[number];

/** The only commands that may be queued; all others are refused out loud. */
export const ESSENTIAL_COMMAND_TYPES = [
  'order.create',
  'order.update_status',
  'order.confirm_payment',
  'order.cancel',
  'payment.record',
  'cashflow.record',
] as const;
export type EssentialCommandType = (typeof ESSENTIAL_COMMAND_TYPES)[number];

/** A command as a client submits it. */
export interface CommandEnvelope {
  /** One key is one effect, however often and by whichever way it arrives. */
  idempotencyKey: string;
  commandType: string;
  aggregateType: string;
  /** Commands of one aggregate are applied in the order of the queue. */
  aggregateId: string;
  payload: unknown;
  /** RFC 3339, from the client's clock: metadata, nothing orders by it. */
  occurredAt?: string;
  /** The aggregate's version that the client saw, to detect a conflict. */
  expectedVersion?: number;
}

/** Whether a command of this type may be queued while the primary is down. */
export function isEssential(commandType: unknown): commandType is EssentialCommandType {
  return (ESSENTIAL_COMMAND_TYPES as readonly unknown[]).includes(commandType);
}

/**
 * Seconds to wait, before jitter, once an attempt has failed. `failures` counts
 * the failed attempts including that one, so the first wait is the base.
 */
export function backoffSeconds(failures: number): number {
  return Math.min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** Math.max(0, failures - 1));
}
