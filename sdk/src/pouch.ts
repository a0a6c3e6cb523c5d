// What is used of PouchDB 9. The app hands in its own PouchDB, with the adapter
// and the plugins of its platform.

/** What every document to be written has, also one of a type of the app's own. */
export interface Writable {
  _id: string;
  _rev?: string;
  _deleted?: boolean;
}

export interface Doc extends Writable {
  [field: string]: unknown;
}

export interface Written {
  ok: boolean;
  id: string;
  rev: string;
}

export interface Change {
  id: string;
  seq: number | string;
  changes: { rev: string }[];
  deleted?: boolean;
  doc?: Doc;
}

/** A live feed or a replication: events, and an end. */
export interface Running {
  on(event: string, listener: (value?: any) => void): Running;
  cancel(): void;
  then(done: () => void, failed: () => void): unknown;
}

export interface Pouch {
  name: string;
  id(): Promise<string>;
  info(): Promise<{ db_name: string; update_seq: number | string }>;
  get(id: string, options?: object): Promise<Doc>;
  put(doc: Doc): Promise<Written>;
  allDocs(options: { keys: string[] }): Promise<{ rows: { key: string; error?: string }[] }>;
  bulkDocs(docs: { docs: Doc[]; new_edits: boolean }): Promise<unknown>;
  changes(options: object): Running & PromiseLike<{ results: Change[]; last_seq: number | string }>;
  revsDiff(revs: Record<string, string[]>): Promise<Record<string, { missing?: string[] }>>;
  replicate: {
    to(remote: Pouch, options: object): Running;
    from(remote: Pouch, options: object): Running;
  };
  close(): Promise<void>;
  destroy(): Promise<unknown>;
  /** Of the plugin pouchdb-find, if the app has installed it. */
  find?(request: object): Promise<{ docs: Doc[] }>;
  createIndex?(index: object): Promise<unknown>;
}

/**
 * The app's PouchDB. Its instances are taken for Pouch, which not all types that
 * PouchDB is published with agree to.
 */
export interface PouchConstructor {
  new (name: string, options?: any): any;
  fetch(url: string, options?: any): Promise<Response>;
}

/** The status of an error of PouchDB, or undefined for one of the network. */
export function statusOf(error: unknown): number | undefined {
  const status = (error as { status?: unknown } | null | undefined)?.status;
  return typeof status === 'number' ? status : undefined;
}

/** What a promise brings, or null for a document that is not there. */
export async function orNull<T>(found: Promise<T>): Promise<T | null> {
  try {
    return await found;
  } catch (error) {
    if (statusOf(error) === 404) return null;
    throw error;
  }
}
