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

/** A set of local databases, by suffix. */
export class Suffixes {
  readonly #cache: Cache;
  readonly #name: string;
  readonly #suffixes: Set<string>;

  private constructor(cache: Cache, name: string, suffixes: Set<string>) {
    this.#cache = cache;
    this.#name = name;
    this.#suffixes = suffixes;
  }

  static async load(cache: Cache, name: string): Promise<Suffixes> {
    const saved = await cache.load(name);
    return new Suffixes(cache, name, new Set(Array.isArray(saved) ? saved : []));
  }

  list(): string[] {
    return [...this.#suffixes];
  }

  has(suffix: string): boolean {
    return this.#suffixes.has(suffix);
  }

  async add(suffix: string): Promise<void> {
    if (this.#suffixes.has(suffix)) return;
    this.#suffixes.add(suffix);
    await this.#cache.save(this.#name, this.list());
  }

  async delete(suffix: string): Promise<void> {
    if (this.#suffixes.delete(suffix)) await this.#cache.save(this.#name, this.list());
  }
}
