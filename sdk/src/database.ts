// The device's databases as one: reads look through what is mounted, writes go
// where the document belongs.
import { unacknowledged } from './acknowledged.js';
import { Cache, Suffixes } from './cache.js';
import { Emitter } from './emitter.js';
import { merge, partOf, type FindRequest } from './find.js';
import { Flags } from './flags.js';
import type { LateReport } from './late.js';
import { Manifest } from './manifest.js';
import { Mounts } from './mounts.js';
import type { Refusal, RetryDelay } from './mount.js';
import type { Doc, PouchConstructor, Writable, Written } from './pouch.js';
import { Remotes, type TokenSupplier } from './remote.js';
import { Reporter, type Report } from './report.js';
import { businessDayOf } from './routing.js';
import { checkSendable } from './sendable.js';
import type { Session } from './session.js';

export interface Options {
  PouchDB: PouchConstructor;
  /** The server's address, without `/db`. */
  url: string;
  token: TokenSupplier;
  companyId: string;
  restaurantId: string;
  /**
   * What the server said last, if the app knows it before the database is opened;
   * otherwise what this device has cached counts.
   */
  session?: Session;
  /** Put in front of the names of local databases, such as a folder with its slash. */
  prefix?: string;
  /** Options of local databases, such as `{ adapter: 'idb' }`. */
  local?: object;
  /**
   * Indexes that each database gets, such as `{ index: { fields: ['total'] } }`: what
   * createIndex of pouchdb-find takes. Without one for its fields a `find` reads every
   * document, and one that sorts is refused.
   */
  indexes?: object[];
  /** By default from half a second up to 30 seconds, scattered. */
  retryDelay?: RetryDelay;
  /**
   * For how many milliseconds documents may be undelivered before the server is
   * told, so that it does not seal their day; 30 seconds by default.
   */
  reportAfter?: number;
}

export interface Events {
  /** A document of any mounted database was changed here or fetched. */
  change: { suffix: string; businessDay: string | null; id: string; deleted: boolean; doc: Doc };
  /** New documents go to another day from now on; null when there is none. */
  rotate: { from: string | null; to: string | null };
  /** The server takes nothing for this database; its documents stay on the device. */
  refused: { suffix: string; businessDay: string | null } & Refusal;
  /** Documents of a day that is over for the server were carried into another database. */
  late: LateReport;
  /** Something failed in the background; nothing is lost, and it is tried again. */
  error: Error;
}

export interface Unsynced {
  suffix: string;
  businessDay: string | null;
  /** How many documents the server has not acknowledged. */
  documents: number;
  /** Why the server takes none of them, if it has said so. */
  refusal: Refusal | null;
}

export class Database {
  readonly retryDelay: RetryDelay;
  readonly #remotes: Remotes;
  readonly #cache: Cache;
  readonly #flags: Flags;
  readonly #manifest: Manifest;
  readonly #mounts: Mounts;
  readonly #events: Emitter<Events>;
  readonly #reporter: Reporter;
  /** The end of the queue of everything that writes or mounts. */
  #turn: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(
    cache: Cache,
    flags: Flags,
    manifest: Manifest,
    mounts: Mounts,
    events: Emitter<Events>,
    reporting: { remotes: Remotes; delay: RetryDelay; patience: number },
  ) {
    this.retryDelay = reporting.delay;
    this.#remotes = reporting.remotes;
    this.#cache = cache;
    this.#flags = flags;
    this.#manifest = manifest;
    this.#mounts = mounts;
    this.#events = events;
    mounts.whenManifest = (raw) => this.#inTurnQuietly(() => this.#take({ manifest: raw }));
    mounts.whenCoreFetched = () => this.#inTurnQuietly(() => this.#mounts.coreFetched());
    this.#reporter = new Reporter({ ...reporting, cache, look: () => this.#undelivered() });
    mounts.whenMoved = () => this.#reporter.wake();
    mounts.whenReleasable = (suffix) => this.#inTurnQuietly(() => this.#mounts.release(suffix));
  }

  /** Opens what the device has; the server need not be reachable. */
  static async open(options: Options): Promise<Database> {
    const prefix = `${options.prefix ?? 'rollingd_'}${options.companyId}_${options.restaurantId}_`;
    const open = (name: string) => new options.PouchDB(prefix + name, options.local ?? {});
    const cache = new Cache(open('device'));
    const flags = await Flags.load(cache, options.session?.flags);
    const manifest = await Manifest.load(cache, options.session?.manifest);
    const events = new Emitter<Events>();
    const remotes = new Remotes(options.PouchDB, options.url, options.token);
    const delay: RetryDelay = options.retryDelay ?? ((n) => Math.min(30_000, 250 * 2 ** n) * (0.5 + Math.random() / 2));
    const mounts = new Mounts({
      openLocal: open,
      indexes: options.indexes ?? [],
      remotes,
      delay,
      cache,
      holdings: await Suffixes.load(cache, 'holdings'),
      left: await Suffixes.load(cache, 'left'),
      manifest,
      events,
    });
    const reporting = { remotes, delay, patience: options.reportAfter ?? 30_000 };
    const database = new Database(cache, flags, manifest, mounts, events, reporting);
    await database.#inTurn(() => mounts.remount(flags.rolling));
    database.#reporter.wake(0); // What a former start has left, or nothing any more.
    return database;
  }

  /** Whether the device uses core and day databases rather than the single one. */
  get rolling(): boolean {
    return this.#flags.rolling;
  }

  /** YYYYMMDD of the day that new documents go to; null without one. */
  get currentBusinessDay(): string | null {
    return this.rolling ? (this.#manifest.current?.currentBusinessDay ?? null) : null;
  }

  /** The device's token; a fresh one if that is what the server has refused. */
  token(refused: string | null = null): Promise<string> {
    return this.#remotes.token(refused);
  }

  /** Subscribes to an event; returns the function that ends it. */
  on<E extends keyof Events>(event: E, listener: (value: Events[E]) => void): () => void {
    return this.#events.on(event, listener);
  }

  /** Takes what the server says about flags and manifest, and mounts accordingly. */
  accept(session: Session): Promise<void> {
    return this.#inTurn(() => this.#take(session));
  }

  /** Reads a document, or null. `options` are those of PouchDB's get. */
  async get(id: string, options: object = {}): Promise<Doc | null> {
    return (await this.#mounts.lookUp(id, options))?.doc ?? null;
  }

  /** Needs the plugin pouchdb-find, and for `sort` one of the `indexes` of the options. */
  async find(request: FindRequest): Promise<Doc[]> {
    const answers = await this.#mounts.askAll(async (local, all) => {
      if (local.find === undefined) throw new Error('find needs the plugin pouchdb-find');
      return (await local.find(partOf(request, all))).docs;
    });
    return merge(answers, request);
  }

  /**
   * Writes a document to the database that holds it, a new one to where its type
   * belongs. Rejects with PouchDB's 409 unless `_rev` is that of a leaf, and what the
   * server would never take: with 413 over 8 MB without attachments, with 400 text
   * that is no Unicode.
   */
  put<T extends Writable>(written: T): Promise<Written> {
    const doc = written as Writable as Doc;
    return this.#inTurn(async () => {
      checkSendable(doc);
      const holder = await this.#mounts.lookUp(doc._id);
      return (holder?.mount ?? this.#mounts.home(doc['type'])).local.put(doc);
    });
  }

  /** Deletes a document as it was read; its type stays, so that it can be archived. */
  remove<T extends Writable & { type?: unknown }>({ _id, _rev, type }: T): Promise<Written> {
    return this.put({ _id, ...(_rev && { _rev }), ...(type !== undefined && { type }), _deleted: true });
  }

  /** What the server has not acknowledged, by database; asks the device alone. */
  unsynced(): Promise<Unsynced[]> {
    return this.#inTurn(async () => {
      const report = this.#mounts.all().map(async ({ suffix, local, refusal }) => ({
        suffix,
        businessDay: businessDayOf(suffix),
        documents: Object.keys(await unacknowledged(local)).length,
        refusal,
      }));
      return (await Promise.all(report)).filter(({ documents }) => documents > 0);
    });
  }

  /** What was carried out of days that were over, oldest first; kept for ever. */
  late(): Promise<LateReport[]> {
    return this.#mounts.lateReports();
  }

  /** Ends everything; the documents stay on the device. */
  async close(): Promise<void> {
    await this.#reporter.close();
    await this.#inTurn(async () => {
      this.#closed = true;
      await this.#mounts.close();
      await this.#cache.close();
    });
  }

  async #undelivered(): Promise<Report> {
    const days = (await this.unsynced()).filter(({ businessDay }) => businessDay !== null);
    return Object.fromEntries(days.map(({ businessDay, documents }) => [businessDay, documents]));
  }

  async #take({ flags, manifest }: Session): Promise<void> {
    const before = this.currentBusinessDay;
    if (flags !== undefined) await this.#flags.accept(flags);
    const newer = manifest !== undefined && (await this.#manifest.accept(manifest));
    if (flags === undefined && !newer) return;
    await this.#mounts.remount(this.rolling);
    const after = this.currentBusinessDay;
    if (after !== before) this.#events.emit('rotate', { from: before, to: after });
  }

  #inTurn<T>(step: () => Promise<T>): Promise<T> {
    const done = this.#turn.then(() => {
      if (this.#closed) throw new Error('the database is closed');
      return step();
    });
    this.#turn = done.catch(() => {});
    return done;
  }

  #inTurnQuietly(step: () => Promise<void>): void {
    this.#inTurn(step).catch((error) => {
      if (!this.#closed) this.#events.emit('error', error);
    });
  }
}
