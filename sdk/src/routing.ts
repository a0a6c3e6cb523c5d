// Which databases a device mounts and where a document belongs. Pure functions
// of the flags and the manifest.
import { CORE_SUFFIX, LEGACY_SUFFIX, parseSuffix } from './contracts/day-db-naming.js';
import type { DayManifest } from './contracts/day-manifest.js';
import { isDynamic } from './contracts/doc-types.js';

/** The databases that replicate both ways, by suffix. */
export interface Plan {
  /** Takes what does not rotate: core, or the single legacy database. */
  persistent: typeof CORE_SUFFIX | typeof LEGACY_SUFFIX;
  /**
   * Takes new documents that rotate. Legacy while the device is routed but no day
   * is known yet: it keeps what the shop sells until there is one.
   */
  dynamic: string;
  /** Earlier days that are still to be finished, newest first. */
  overlays: string[];
}

export function plan(rolling: boolean, manifest: DayManifest | null): Plan {
  if (!rolling) return { persistent: LEGACY_SUFFIX, dynamic: LEGACY_SUFFIX, overlays: [] };
  return {
    persistent: CORE_SUFFIX,
    dynamic: manifest?.currentDayDb ?? LEGACY_SUFFIX,
    overlays: manifest?.overlays.map((overlay) => overlay.dbName) ?? [],
  };
}

/** The database of new documents of this type. */
export function home(plan: Plan, docType: unknown): string {
  return isDynamic(docType) ? plan.dynamic : plan.persistent;
}

/**
 * The databases to mount, in the order in which a document is looked for: a
 * document that was carried into the current day is newer there.
 */
export function wanted(plan: Plan): string[] {
  return [...new Set([plan.dynamic, ...plan.overlays, plan.persistent])];
}

/** The business day of a suffix as YYYYMMDD; null for core and legacy. */
export function businessDayOf(suffix: string): string | null {
  return parseSuffix(suffix)?.businessDay ?? null;
}
