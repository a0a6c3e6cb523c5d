// What the device remembers between starts, beside the documents: the flags and
// the manifest as they came, and which databases it has.
import { orNull, type Pouch } from './pouch.js';

/** One JSON value by name, in a local database that is never replicated. */
export class Cache {
  readonly #db: Pouch;

  constructor(db: Pouch) {
    this.#db = db;
  }

  async load(name: string): Promise<unknown> {
    return (await orNull(this.#db.get(name)))?.['value'];
  }

  async save(name: string, value: unknown): Promise<void> {
    const before = await orNull(this.#db.get(name));
    await this.#db.put({ _id: name, ...(before?._rev && { _rev: before._rev }), value });
  }

  close(): Promise<void> {
    return this.#db.close();
  }
}

/** The local databases that may hold something the server lacks, by suffix. */
export class Holdings {
  readonly #cache: Cache;
  readonly #suffixes: Set<string>;

  private constructor(cache: Cache, suffixes: Set<string>) {
    this.#cache = cache;
    this.#suffixes = suffixes;
  }

  static async load(cache: Cache): Promise<Holdings> {
    const saved = await cache.load('holdings');
    return new Holdings(cache, new Set(Array.isArray(saved) ? saved : []));
  }

  list(): string[] {
    return [...this.#suffixes];
  }

  /** Comes before the first write, so that no database is ever forgotten. */
  async add(suffix: string): Promise<void> {
    if (this.#suffixes.has(suffix)) return;
    this.#suffixes.add(suffix);
    await this.#cache.save('holdings', this.list());
  }

  async delete(suffix: string): Promise<void> {
    if (this.#suffixes.delete(suffix)) await this.#cache.save('holdings', this.list());
  }
}
