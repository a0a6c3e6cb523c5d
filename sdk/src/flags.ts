// The company's flags on the device: kept as they came, read by the accessor.
import type { Cache } from './cache.js';
import { isRollingDb } from './contracts/feature-flags.js';

export class Flags {
  readonly #cache: Cache;
  #raw: unknown;

  private constructor(cache: Cache, raw: unknown) {
    this.#cache = cache;
    this.#raw = raw;
  }

  /** `given`, when there, is newer than what is cached. */
  static async load(cache: Cache, given: unknown): Promise<Flags> {
    const flags = new Flags(cache, await cache.load('flags'));
    if (given !== undefined) await flags.accept(given);
    return flags;
  }

  /** Whether the device routes to core and day databases. Nothing cached is off. */
  get rolling(): boolean {
    return isRollingDb(this.#raw);
  }

  /** Takes flags of either shape from the server. They hold from now on. */
  async accept(raw: unknown): Promise<void> {
    await this.#cache.save('flags', raw);
    this.#raw = raw;
  }
}
