// The document in core that tells a restaurant's devices which day database is
// current and which to mount beside it. It replaces the device's clock. Only
// the server writes it.
import { isBusinessDay, dailySuffix } from './day-db-naming.js';

/** The manifest is one document, always this id and type. */
export const DAY_MANIFEST_ID = 'day_manifest';
export const DAY_MANIFEST_TYPE = 'day_manifest';
export const DAY_MANIFEST_SCHEMA_VERSION = 1;

/** A DRAINING day, still mounted to finish its open documents. */
export interface DayOverlay {
  /** YYYYMMDD. */
  businessDay: string;
  /** The logical suffix `daily_${businessDay}`. */
  dbName: string;
}

export interface DayManifest {
  _id: typeof DAY_MANIFEST_ID;
  type: typeof DAY_MANIFEST_TYPE;
  schemaVersion: typeof DAY_MANIFEST_SCHEMA_VERSION;
  /** YYYYMMDD of the ACTIVE day; null, like currentDayDb, when there is none. */
  currentBusinessDay: string | null;
  /** The logical suffix `daily_${currentBusinessDay}`. */
  currentDayDb: string | null;
  /** Newest first, each day once, never the current one. */
  overlays: DayOverlay[];
  /** Fencing token of the run that wrote it; a lower one is older. */
  generation: number;
  /** RFC 3339 instant, for people: nothing orders by it. */
  updatedAt: string;
}

/**
 * Reads a manifest out of whatever core holds under its id. Null means that it
 * is damaged or of a newer schema; a device then keeps what it has mounted.
 * Fields that this schema does not know are dropped.
 */
export function parseDayManifest(doc: unknown): DayManifest | null {
  if (!isRecord(doc)) return null;
  const { schemaVersion, currentBusinessDay, currentDayDb, generation, updatedAt } = doc;
  if (doc['_id'] !== DAY_MANIFEST_ID || doc['type'] !== DAY_MANIFEST_TYPE) return null;
  if (schemaVersion !== DAY_MANIFEST_SCHEMA_VERSION) return null;
  if (typeof generation !== 'number' || !Number.isSafeInteger(generation) || generation < 1) {
    return null;
  }
  if (typeof updatedAt !== 'string') return null;

  const current = currentBusinessDay === null ? null : parseDay(currentBusinessDay, currentDayDb);
  if (current === null && (currentBusinessDay !== null || currentDayDb !== null)) return null;

  if (!Array.isArray(doc['overlays'])) return null;
  const mounted = new Set<string | undefined>([current?.businessDay]);
  const overlays: DayOverlay[] = [];
  for (const entry of doc['overlays']) {
    const overlay = isRecord(entry) ? parseDay(entry['businessDay'], entry['dbName']) : null;
    if (overlay === null || mounted.has(overlay.businessDay)) return null;
    mounted.add(overlay.businessDay);
    overlays.push(overlay);
  }

  return {
    _id: DAY_MANIFEST_ID,
    type: DAY_MANIFEST_TYPE,
    schemaVersion,
    currentBusinessDay: current?.businessDay ?? null,
    currentDayDb: current?.dbName ?? null,
    overlays,
    generation,
    updatedAt,
  };
}

/** A day and its suffix, provided that they name the same day. */
function parseDay(businessDay: unknown, dbName: unknown): DayOverlay | null {
  if (!isBusinessDay(businessDay) || typeof dbName !== 'string') return null;
  return dbName === dailySuffix(businessDay) ? { businessDay, dbName } : null;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
