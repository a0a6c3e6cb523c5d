// The set of mounted databases: what the plan wants, and what is on its way out
// but may still hold something that the server lacks.
import { unacknowledged } from './acknowledged.js';
import type { Cache, Suffixes } from './cache.js';
import { CORE_SUFFIX, LEGACY_SUFFIX } from './contracts/day-db-naming.js';
import { DAY_MANIFEST_ID } from './contracts/day-manifest.js';
import { isDynamic } from './contracts/doc-types.js';
import type { Events } from './database.js';
import type { Emitter } from './emitter.js';
import { carry, type LateReport } from './late.js';
import type { Manifest } from './manifest.js';
import { Mount, type RetryDelay } from './mount.js';
import { orNull, statusOf, type Doc, type Pouch } from './pouch.js';
import type { Remotes } from './remote.js';
import { businessDayOf, home, plan, wanted, type Plan } from './routing.js';

interface Parts {
  openLocal: (suffix: string) => Pouch;
  indexes: object[];
  remotes: Remotes;
  delay: RetryDelay;
  cache: Cache;
  /** Those that may hold something the server lacks. */
  holdings: Suffixes;
  /** Days whose documents were carried elsewhere; their copies are kept, and are not used again. */
  left: Suffixes;
  manifest: Manifest;
  events: Emitter<Events>;
}

// The server's codes for a database that will not take these documents any more.
const OVER = new Set(['day_sealed', 'day_dropped', 'day_unknown']);
/** The same, while the device uses the single database. */
const NOT_ROUTED = 'not_routed';

// Names in the cache: whether core was ever fetched, and the day of the switch.
const CORE_FETCHED = 'coreFetched';
const SWITCHED_ON = 'switchedOn';

/** Everything but reading is called by the database one at a time. */
export class Mounts {
  readonly #parts: Parts;
  readonly #mounts = new Map<string, Mount>();
  #rolling = false;
  #closed = false;
  #plan: Plan = plan(false, null);

  /** Core's feed has brought a manifest. */
  whenManifest: (raw: unknown) => void = () => {};
  /** Core is on the device as the server has it. */
  whenCoreFetched: () => void = () => {};
  /** It is worth looking whether this database can be released. */
  whenReleasable: (suffix: string) => void = () => {};
  /** What is not delivered may have become more, or less. */
  whenMoved: () => void = () => {};

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** In the order in which a document is looked for. */
  all(): Mount[] {
    const first = wanted(this.#plan);
    const day = (suffix: string) => businessDayOf(suffix) ?? '';
    const leaving = [...this.#mounts.keys()]
      .filter((suffix) => !first.includes(suffix))
      .sort((a, b) => (day(a) < day(b) ? 1 : -1));
    return [...first, ...leaving].flatMap((suffix) => this.#mounts.get(suffix) ?? []);
  }

  /** Where a new document of this type goes. */
  home(docType: unknown): Mount {
    return this.#mounts.get(home(this.#plan, docType)) as Mount;
  }

  /**
   * The database that holds a document, or held it until it was deleted, in which
   * case `doc` is null. Null if none does.
   */
  async lookUp(id: string, options: object = {}): Promise<{ mount: Mount; doc: Doc | null } | null> {
    this.#checkOpen();
    let released = false;
    for (const mount of this.all()) {
      if (mount.closed) {
        released = true;
        continue;
      }
      try {
        return { mount, doc: await mount.read((local) => local.get(id, options)) };
      } catch (error) {
        if (statusOf(error) !== 404) throw error;
        if ((error as { reason?: string }).reason === 'deleted') return { mount, doc: null };
      }
    }
    // What was released meanwhile may have gone on in one that was passed before.
    return released ? this.lookUp(id, options) : null;
  }

  /**
   * Asks every database at once, `all` without a limit. Documents that one in front
   * holds are left out: its word counts, also when it does not match any more.
   */
  async askAll(ask: (local: Pouch, all: boolean) => Promise<Doc[]>): Promise<Doc[][]> {
    this.#checkOpen();
    const open = this.all().filter((mount) => !mount.closed);
    return Promise.all(open.map(async (mount, place) => {
      const before = open.slice(0, place);
      const found = await mount.read((local) => ask(local, false));
      const left = await withoutHeld(found, before);
      if (left.length === found.length || mount.closed) return left;
      // The limit may have cut off others in favour of those.
      return withoutHeld(await mount.read((local) => ask(local, true)), before);
    }));
  }

  /** Mounts what the flags and the manifest ask for, and lets go of the rest. */
  async remount(rolling: boolean): Promise<void> {
    this.#rolling = rolling;
    if (!rolling && (await this.#parts.cache.load(SWITCHED_ON))) {
      await this.#parts.cache.save(SWITCHED_ON, null);
    }
    if (rolling) {
      const core = await this.#mount(CORE_SUFFIX);
      await this.#parts.manifest.accept(await orNull(core.local.get(DAY_MANIFEST_ID)));
    }
    const next = plan(rolling, this.#parts.manifest.current);
    const both = wanted(next);
    for (const suffix of both) await this.#mount(suffix);
    // What a former start has left: it may hold what was written offline.
    for (const suffix of this.#parts.holdings.list()) await this.#mount(suffix);
    this.#plan = next;
    for (const [suffix, mount] of this.#mounts) {
      // The server lets nobody read the legacy database of a company that is routed.
      const reads = both.includes(suffix) && (suffix !== LEGACY_SUFFIX || !rolling);
      await mount.replicate(reads ? 'both' : 'push');
      if (!both.includes(suffix)) this.whenReleasable(suffix);
    }
  }

  /**
   * Unmounts a database that is not wanted any more once the server has everything
   * in it. What the server will never take there is carried to where it belongs
   * now: a crash after that carries again, which changes nothing.
   */
  async release(suffix: string): Promise<void> {
    const mount = this.#mounts.get(suffix);
    if (mount === undefined || wanted(this.#plan).includes(suffix)) return;
    const revisions = await unacknowledged(mount.local);
    const documents = Object.keys(revisions).length;
    const day = businessDayOf(suffix);
    if (documents > 0) {
      if (!this.#isOver(mount)) return;
      await this.#carry(mount, revisions);
      if (day !== null) await this.#parts.left.add(suffix);
    }
    if (suffix === LEGACY_SUFFIX && (await this.#isSwitching(mount))) return;
    this.#mounts.delete(suffix);
    if (day === null || documents > 0) {
      await mount.close();
    } else if (this.#rolling) {
      await mount.destroy();
    } else {
      // It may be a day of the manifest again when the flags are back.
      return mount.close();
    }
    await this.#parts.holdings.delete(suffix);
  }

  /** Notes that core can serve as the catalogue. */
  async coreFetched(): Promise<void> {
    const { cache } = this.#parts;
    if (!(await cache.load(CORE_FETCHED))) await cache.save(CORE_FETCHED, true);
    await this.release(LEGACY_SUFFIX);
  }

  /**
   * Whether the legacy copy still has to be read: until core has been fetched once,
   * and until the day after the switch, when the server has carried over what this
   * device delivered late.
   */
  async #isSwitching({ local }: Mount): Promise<boolean> {
    if ((await local.info()).update_seq === 0) return false; // There is nothing to read.
    const { cache, manifest } = this.#parts;
    const today = manifest.current?.currentBusinessDay ?? null;
    const switched = await cache.load(SWITCHED_ON);
    if (this.#rolling && !switched) await cache.save(SWITCHED_ON, today);
    return !(await cache.load(CORE_FETCHED)) || !switched || switched === today;
  }

  async lateReports(): Promise<LateReport[]> {
    return ((await this.#parts.cache.load('late')) as LateReport[] | undefined) ?? [];
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#mounts.values()].map((mount) => mount.close()));
    this.#mounts.clear();
  }

  #checkOpen(): void {
    if (this.#closed) throw new Error('the database is closed');
  }

  async #mount(suffix: string): Promise<Mount> {
    const mounted = this.#mounts.get(suffix);
    if (mounted !== undefined) return mounted;
    const { delay, events, holdings, indexes, left, openLocal, remotes } = this.#parts;
    if (left.has(suffix)) {
      // The day is back. What it held would be delivered here as well.
      await openLocal(suffix).destroy();
      await left.delete(suffix);
    }
    // Before the first write, so that no database is ever forgotten.
    await holdings.add(suffix);
    const local = openLocal(suffix);
    for (const index of indexes) {
      if (local.createIndex === undefined) throw new Error('indexes need the plugin pouchdb-find');
      await local.createIndex(index);
    }
    const businessDay = businessDayOf(suffix);
    const openRemote = (signal: AbortSignal) => remotes.open(suffix, signal);
    const mount = await Mount.open(suffix, local, openRemote, delay, {
      change: ({ id, deleted = false, doc }) => {
        if (suffix === CORE_SUFFIX && id === DAY_MANIFEST_ID) this.whenManifest(doc);
        events.emit('change', { suffix, businessDay, id, deleted, doc: doc as Doc });
        this.whenMoved();
      },
      delivered: () => {
        this.whenReleasable(suffix);
        this.whenMoved();
      },
      fetched: () => {
        if (suffix === CORE_SUFFIX) this.whenCoreFetched();
      },
      refused: (refusal, again) => {
        if (!again) events.emit('refused', { suffix, businessDay, ...refusal });
        this.whenReleasable(suffix);
      },
    });
    this.#mounts.set(suffix, mount);
    return mount;
  }

  /** Whether the server will not take what this database still holds. */
  #isOver({ refusal }: Mount): boolean {
    if (refusal === null) return false;
    if (!this.#rolling && refusal.code === NOT_ROUTED) return true;
    return OVER.has(refusal.code) && !(this.#rolling && this.#plan.dynamic === LEGACY_SUFFIX);
  }

  async #carry(mount: Mount, revisions: Record<string, string[]>): Promise<void> {
    const { suffix, local, refusal } = mount;
    const businessDay = businessDayOf(suffix);
    const into = new Set<string>();
    await carry(local, revisions, businessDay ?? suffix, (docType) => {
      // A deletion may not say its type: in a day it is of something that rotates.
      const bare = docType === undefined && businessDay !== null;
      const target = bare ? (this.#mounts.get(this.#plan.dynamic) as Mount) : this.home(docType);
      into.add(target.suffix);
      return target.local;
    });
    const report: LateReport = {
      suffix,
      businessDay,
      documents: Object.keys(revisions).length,
      into: [...into],
      code: refusal?.code ?? '',
      reason: refusal?.reason ?? '',
    };
    await this.#parts.cache.save('late', [...(await this.lateReports()), report]);
    await mount.carried(revisions);
    this.whenMoved();
    this.#parts.events.emit('late', report);
  }
}

/** The documents of which these databases hold none, deleted ones included. */
async function withoutHeld(docs: Doc[], mounts: Mount[]): Promise<Doc[]> {
  let left = docs;
  for (const mount of mounts) {
    // A catalogue is large, and nothing of it is in a day.
    const inDay = businessDayOf(mount.suffix) !== null;
    const keys = left.filter(({ type }) => !inDay || isDynamic(type)).map(({ _id }) => _id);
    if (keys.length === 0 || mount.closed) continue;
    const { rows } = await mount.read((local) => local.allDocs({ keys }));
    const held = new Set(rows.filter(({ error }) => error === undefined).map(({ key }) => key));
    left = left.filter(({ _id }) => !held.has(_id));
  }
  return left;
}
