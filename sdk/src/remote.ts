// The server's databases as a device reaches them: by logical suffix, with the
// device's token.
import type { Pouch, PouchConstructor } from './pouch.js';

/**
 * Gives the device's token. `refused` is the token that the server has just
 * answered 401 to, or null when none has been asked for yet. A rejection counts
 * as being offline: it is asked again later.
 */
export type TokenSupplier = (refused: string | null) => string | Promise<string>;

export class Remotes {
  readonly #PouchDB: PouchConstructor;
  readonly #url: string;
  readonly #supply: TokenSupplier;
  #token: string | null = null;
  #asking: Promise<string> | null = null;

  /** `url` is the server's, without `/db`. */
  constructor(PouchDB: PouchConstructor, url: string, supply: TokenSupplier) {
    this.#PouchDB = PouchDB;
    this.#url = url.replace(/\/+$/, '');
    this.#supply = supply;
  }

  /**
   * Opens a database that exists; one that does not is never created. Once `signal`
   * is aborted it sends nothing more, whatever PouchDB still has in hand: a
   * replication that is cancelled while it starts would leave a feed open for ever.
   */
  open(suffix: string, signal: AbortSignal): Pouch {
    const remote = new this.#PouchDB(`${this.#url}/db/${suffix}`, {
      skip_setup: true,
      fetch: async (url: string, options: RequestInit) => {
        return until(signal, () => this.#fetch(url, { ...options, signal: options.signal ?? signal }));
      },
    });
    // PouchDB asks for the progress of replications, and does not expect to fail.
    remote.info = async () => ({ db_name: suffix, update_seq: 0 });
    // PouchDB would ask the server's root for this part of a checkpoint's name,
    // and choose another one offline or after a move to another address.
    remote.id = async () => `rollingd/${suffix}`;
    return remote;
  }

  /** The token that requests carry; if it is the one that was refused, a fresh one. */
  async token(refused: string | null): Promise<string> {
    return this.#token !== null && this.#token !== refused ? this.#token : this.#ask(this.#token);
  }

  /** Sends JSON to a path of the server, as the device. */
  put(path: string, body: object, signal: AbortSignal): Promise<Response> {
    const headers = new Headers({ 'content-type': 'application/json' });
    const options = { method: 'PUT', headers, body: JSON.stringify(body), signal };
    return until(signal, () => this.#fetch(this.#url + path, options));
  }

  async #fetch(url: string, options: RequestInit): Promise<Response> {
    const token = await this.token(null);
    const answer = await this.#send(url, options, token);
    if (answer.status !== 401) return answer;
    const fresh = await this.token(token);
    if (fresh === token) return answer;
    await answer.text(); // An answer that nobody reads keeps its connection.
    return this.#send(url, options, fresh);
  }

  #send(url: string, options: RequestInit, token: string): Promise<Response> {
    (options.headers as Headers).set('Authorization', `Bearer ${token}`);
    // The token is all there is; PouchDB would send the server's cookies, too.
    return this.#PouchDB.fetch(url, { ...options, credentials: 'omit' });
  }

  /** Asks once for all the requests that were refused together. */
  #ask(refused: string | null): Promise<string> {
    this.#asking ??= (async () => {
      try {
        return (this.#token = await this.#supply(refused));
      } finally {
        this.#asking = null;
      }
    })();
    return this.#asking;
  }
}

/** Begins unless the signal is aborted, and waits no longer than until it is: an app may take for ever to give a token. */
async function until<T>(signal: AbortSignal, begin: () => Promise<T>): Promise<T> {
  signal.throwIfAborted();
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason);
  });
  signal.addEventListener('abort', abort);
  try {
    return await Promise.race([begin(), aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
