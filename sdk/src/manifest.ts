// The newest manifest that the device has seen, from the session with the server
// or from core's feed. No clock has a say in which one is newest.
import type { Cache } from './cache.js';
import { parseDayManifest, type DayManifest } from './contracts/day-manifest.js';

interface Held {
  manifest: DayManifest;
  /** The number in front of the revision of core's document; 0 when it came otherwise. */
  revision: number;
}

export class Manifest {
  readonly #cache: Cache;
  #held: Held | null = null;

  private constructor(cache: Cache) {
    this.#cache = cache;
  }

  /** `given`, when there, came from the server after what is cached. */
  static async load(cache: Cache, given: unknown): Promise<Manifest> {
    const manifest = new Manifest(cache);
    manifest.#held = read(await cache.load('manifest'));
    if (given !== undefined) await manifest.accept(given);
    return manifest;
  }

  get current(): DayManifest | null {
    return this.#held?.manifest ?? null;
  }

  /**
   * Takes a manifest as it came. Returns whether it was newer than the one held;
   * a damaged one, or one of a newer schema, is not.
   */
  async accept(raw: unknown): Promise<boolean> {
    const next = read(raw);
    if (next === null || !supersedes(next, this.#held)) return false;
    await this.#cache.save('manifest', raw);
    this.#held = next;
    return true;
  }
}

/**
 * Generations only rise, with two exceptions. The server repairs a document whose
 * generation nobody was ever given, so between two states of core's document the
 * later revision is the newer one. And until a move in the ledger has reached
 * core, a session tells it under the generation that core still has.
 */
function supersedes(next: Held, held: Held | null): boolean {
  if (held === null) return true;
  if (next.revision > 0 && held.revision > 0) return next.revision > held.revision;
  const ahead = next.manifest.generation - held.manifest.generation;
  return next.revision > 0 ? ahead > 0 : ahead >= 0;
}

function read(raw: unknown): Held | null {
  const manifest = parseDayManifest(raw);
  if (manifest === null) return null;
  const rev = (raw as { _rev?: unknown })._rev;
  return { manifest, revision: typeof rev === 'string' ? Number.parseInt(rev, 10) : 0 };
}
