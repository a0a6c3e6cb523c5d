// One mounted database: the local copy, its replication with the server and its
// changes feed.
import { confirm, noteFetched, settle, type Revisions } from './acknowledged.js';
import { statusOf, type Change, type Doc, type Pouch, type Running } from './pouch.js';

/** `push` delivers what the device has and fetches nothing. */
export type Direction = 'both' | 'push';

/** Why the server takes nothing for a database, in its own words. */
export interface Refusal {
  /** Stable, such as `day_sealed`, or CouchDB's own name of the error. */
  code: string;
  reason: string;
}

export interface MountEvents {
  change(change: Change): void;
  /** The server has answered for everything that was written before. */
  delivered(): void;
  /** Everything that the server had has been fetched. */
  fetched(): void;
  /** `again`: for the same reason as before. */
  refused(refusal: Refusal, again: boolean): void;
}

/** Opens the server's database; it sends nothing more once the signal is aborted. */
export type OpenRemote = (signal: AbortSignal) => Pouch;

/** The delay in milliseconds before the n-th attempt, from 1, to reach the server again. */
export type RetryDelay = (attempt: number) => number;

/** Answers that do not change by waiting: not admitted, not understood, too large. */
const REFUSALS = new Set<number | undefined>([400, 403, 413]);

// Indexes are the device's own, and the server takes none from a device. Not a
// function: its text would be part of the checkpoint's name.
const ALL_BUT_DESIGN = {
  $or: [{ _id: { $lt: '_design/' } }, { _id: { $gte: '_design0' } }],
};

export class Mount {
  readonly suffix: string;
  readonly local: Pouch;
  readonly #remote: Pouch;
  readonly #ended = new AbortController();
  readonly #events: MountEvents;
  readonly #lines: Line[];
  readonly #delay: RetryDelay;
  #direction: Direction = 'push';
  #feed: Running | null = null;
  readonly #readers = new Set<Promise<unknown>>();
  #confirming: Promise<void> = Promise.resolve();
  #confirmAgain: ReturnType<typeof setTimeout> | undefined;
  #unconfirmed = 0;
  #marking: Promise<void> = Promise.resolve();
  #refusal: Refusal | null = null;
  #closed = false;

  private constructor(suffix: string, local: Pouch, open: OpenRemote, delay: RetryDelay, events: MountEvents) {
    this.suffix = suffix;
    this.local = local;
    this.#remote = open(this.#ended.signal);
    this.#events = events;
    this.#delay = delay;
    const options = { live: true, retry: false };
    this.#lines = [
      new Line(delay, open, (remote) => local.replicate.to(remote, { ...options, selector: ALL_BUT_DESIGN }), {
        moved: () => {},
        idle: () => this.#confirmNext(),
        failed: (error) => this.#failed(error),
      }),
      new Line(delay, open, (remote) => local.replicate.from(remote, options), {
        // What cannot be noted counts as unsynced until the server is asked.
        moved: (docs) => void this.#mark(() => noteFetched(local, docs)).catch(() => {}),
        idle: () => events.fetched(),
        failed: () => {}, // What a push meets is what counts.
      }),
    ];
  }

  /** Opens the feed; changes that are made from then on are reported. */
  static async open(suffix: string, local: Pouch, open: OpenRemote, delay: RetryDelay, events: MountEvents): Promise<Mount> {
    const mount = new Mount(suffix, local, open, delay, events);
    const { update_seq } = await local.info();
    mount.#feed = local
      .changes({ live: true, include_docs: true, since: update_seq })
      .on('change', (change: Change) => events.change(change));
    return mount;
  }

  get direction(): Direction {
    return this.#direction;
  }

  /** Why the server last took nothing; null once it takes something again. */
  get refusal(): Refusal | null {
    return this.#refusal;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Makes sure that the replication runs; one that waits for its turn runs at once. */
  async replicate(direction: Direction): Promise<void> {
    this.#direction = direction;
    const [push, pull] = this.#lines as [Line, Line];
    push.start();
    if (direction === 'both') pull.start();
    else await pull.stop();
  }

  /** Notes that these revisions are kept elsewhere and are not unsynced here. */
  carried(revisions: Revisions): Promise<void> {
    return this.#mark(() => settle(this.local, revisions));
  }

  /** Reads while the database is certain to stay open. Not for one that is closed. */
  async read<T>(ask: (local: Pouch) => Promise<T>): Promise<T> {
    const reading = ask(this.local);
    this.#readers.add(reading);
    try {
      return await reading;
    } finally {
      this.#readers.delete(reading);
    }
  }

  /** Ends the replication and the feed; the documents stay on the device. */
  async close(): Promise<void> {
    if (await this.#end()) await this.local.close();
  }

  /** Ends everything and removes the documents from the device. */
  async destroy(): Promise<void> {
    if (await this.#end()) await this.local.destroy();
  }

  async #end(): Promise<boolean> {
    if (this.#closed) return false;
    this.#closed = true;
    clearTimeout(this.#confirmAgain);
    this.#feed?.cancel();
    this.#ended.abort();
    await Promise.all(this.#lines.map((line) => line.stop()));
    // PouchDB leaves some of what it is asked while it closes without an answer.
    await Promise.allSettled([this.#confirming, ...this.#readers]);
    await this.#marking;
    await this.#remote.close();
    return true;
  }

  /** Runs one writer of the marker after the other. */
  #mark(step: () => Promise<void>): Promise<void> {
    const done = this.#marking.then(step);
    this.#marking = done.catch(() => {}); // Those who wait for it hear of it.
    return done;
  }

  #confirmNext(): void {
    clearTimeout(this.#confirmAgain);
    this.#confirming = this.#confirming.then(() => this.#confirm());
  }

  async #confirm(): Promise<void> {
    if (this.#closed) return;
    try {
      await confirm(this.local, this.#remote, (step) => this.#mark(step));
    } catch (error) {
      // The push has nothing to do, and would not ask again.
      this.#failed(error);
      if (!this.#closed) this.#confirmAgain = setTimeout(() => this.#confirmNext(), this.#delay(++this.#unconfirmed));
      return;
    }
    this.#unconfirmed = 0;
    this.#refusal = null;
    this.#events.delivered();
  }

  #failed(error: unknown): void {
    if (this.#closed || !REFUSALS.has(statusOf(error))) return;
    const { code, name, reason } = error as { code?: unknown; name?: unknown; reason?: unknown };
    const refusal = { code: String(code ?? name ?? ''), reason: String(reason ?? '') };
    const again = this.#refusal?.code === refusal.code;
    this.#refusal = refusal;
    this.#events.refused(refusal, again);
  }
}

interface LineEvents {
  /** These have been written at the other end. */
  moved(docs: Doc[]): void;
  /** There is nothing more to do for now. */
  idle(): void;
  failed(error: unknown): void;
}

/**
 * A replication in one direction that is begun again whenever it ends. PouchDB's
 * own retry gives up at a 401 or 403, and cannot be stopped while it waits.
 */
class Line {
  readonly #delay: RetryDelay;
  readonly #open: OpenRemote;
  readonly #begin: (remote: Pouch) => Running;
  readonly #events: LineEvents;
  #running: Running | null = null;
  #abort = new AbortController();
  #ended: Promise<void> = Promise.resolve();
  #waiting: ReturnType<typeof setTimeout> | undefined;
  #attempts = 0;
  #wanted = false;

  constructor(delay: RetryDelay, open: OpenRemote, begin: (remote: Pouch) => Running, events: LineEvents) {
    this.#delay = delay;
    this.#open = open;
    this.#begin = begin;
    this.#events = events;
  }

  start(): void {
    this.#wanted = true;
    clearTimeout(this.#waiting);
    if (this.#running !== null) return;
    this.#abort = new AbortController();
    const remote = this.#open(this.#abort.signal);
    const running = this.#begin(remote);
    this.#running = running;
    running.on('change', ({ docs }) => this.#events.moved(docs));
    running.on('paused', () => {
      this.#attempts = 0;
      if (this.#wanted) this.#events.idle();
    });
    running.on('error', (error) => {
      running.cancel(); // A replication that fails leaves its feed open, one that is cancelled does not.
      if (this.#wanted) this.#events.failed(error);
    });
    this.#ended = new Promise((resolve) => {
      const end = () => {
        this.#running = null;
        void remote.close(); // PouchDB keeps a list of those that are open.
        resolve();
        if (this.#wanted) this.#waiting = setTimeout(() => this.start(), this.#delay(++this.#attempts));
      };
      running.then(end, end);
    });
  }

  async stop(): Promise<void> {
    this.#wanted = false;
    clearTimeout(this.#waiting);
    this.#running?.cancel();
    this.#abort.abort();
    await this.#ended;
  }
}
