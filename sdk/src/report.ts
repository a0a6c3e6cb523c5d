// Tells the server what this device holds and could not deliver, so that no day
// is sealed while the device still has documents of it.
import type { Cache } from './cache.js';
import type { RetryDelay } from './mount.js';
import type { Remotes } from './remote.js';

/** The number of documents that are not delivered, by business day. */
export type Report = Record<string, number>;

interface Parts {
  cache: Cache;
  remotes: Remotes;
  look: () => Promise<Report>;
  delay: RetryDelay;
  /** How long, in milliseconds, what has just been written may take to be delivered. */
  patience: number;
}

const PATH = '/device/unsynced';
/** The number of the last report, in the cache. */
const SEQUENCE = 'reportSequence';
/** A device that holds something and is not heard for days is not waited for. */
const REPEAT = 60 * 60 * 1000;

export class Reporter {
  readonly #parts: Parts;
  readonly #ended = new AbortController();
  /** What the server knows, as text; null before it was told since the start. */
  #told: string | null = null;
  #attempts = 0;
  #waiting: ReturnType<typeof setTimeout> | undefined;
  #repeat: ReturnType<typeof setTimeout> | undefined;
  #running: Promise<void> = Promise.resolve();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Looks once, after the given time, whether there is something to tell. */
  wake(after = this.#parts.patience): void {
    if (this.#waiting !== undefined || this.#ended.signal.aborted) return;
    this.#waiting = setTimeout(() => {
      this.#waiting = undefined;
      this.#running = this.#running.then(() => this.#tell());
    }, after);
  }

  async close(): Promise<void> {
    this.#ended.abort();
    clearTimeout(this.#waiting);
    clearTimeout(this.#repeat);
    await this.#running;
  }

  async #tell(): Promise<void> {
    if (this.#ended.signal.aborted) return;
    try {
      const report = await this.#parts.look();
      const text = JSON.stringify(report);
      if (text !== this.#told) await this.#send(report);
      this.#told = text;
      this.#attempts = 0;
      clearTimeout(this.#repeat);
      if (Object.keys(report).length > 0 && !this.#ended.signal.aborted) this.#repeat = setTimeout(() => this.#tellAgain(), REPEAT);
    } catch {
      this.wake(this.#parts.delay(++this.#attempts)); // Offline, mostly; nothing depends on it here.
    }
  }

  #tellAgain(): void {
    this.#told = null;
    this.wake(0);
  }

  /** The number is kept before it is used: one that is used twice would be taken for an older report. */
  async #send(report: Report): Promise<void> {
    const { cache, remotes } = this.#parts;
    let last = ((await cache.load(SEQUENCE)) as number | undefined) ?? 0;
    // Twice, as a device that was set up anew does not know how far it had counted.
    for (let tries = 0; tries < 2; tries++) {
      const sequence = last + 1;
      await cache.save(SEQUENCE, sequence);
      const answer = await remotes.put(PATH, { sequence, unsynced: report }, this.#ended.signal);
      if (answer.ok) return;
      const said = (await answer.json()) as { code?: string; sequence?: number };
      if (said.code !== 'report_stale') throw new Error(`the report was answered ${answer.status}`);
      last = said.sequence ?? sequence;
    }
    throw new Error('another device reports under the same id');
  }
}
