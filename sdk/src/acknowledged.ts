// What the server has acknowledged of a local database. PouchDB's checkpoint does
// not tell: it passes documents that the server refused one by one, and those that
// came from the server. So the server is asked which revisions it lacks, and the
// answer is kept beside the documents, with what came from the server meanwhile.
import { orNull, type Change, type Doc, type Pouch } from './pouch.js';

const MARKER = '_local/rollingd_acknowledged';
const BATCH = 500;

/** Revisions by the id of their document. */
export type Revisions = Record<string, string[]>;

interface Marker {
  /** Local changes up to here have been asked about. */
  seq: number | string;
  /** What the server lacked of those. */
  missing: Revisions;
  /** What came from the server; dropped once it has been asked about. */
  fetched: Revisions;
}

/** Notes documents that a pull has written. */
export async function noteFetched(local: Pouch, docs: Doc[]): Promise<void> {
  const marker = await load(local);
  for (const { _id, _rev } of docs) {
    marker.fetched[_id] = [...(marker.fetched[_id] ?? []), _rev as string];
  }
  await save(local, marker);
}

/** Runs one step that writes the marker after the other. */
export type InTurn = (step: () => Promise<void>) => Promise<void>;

/**
 * Asks the server about everything that is not known to be acknowledged. Rejects
 * when it cannot be asked, and keeps what was learnt until then. It takes its turn
 * for each answer, not while it waits for one.
 */
export async function confirm(local: Pouch, remote: Pouch, inTurn: InTurn): Promise<void> {
  const asked = (await load(local)).missing;
  if (Object.keys(asked).length > 0) {
    const lacked = await lacks(remote, asked);
    await inTurn(async () => {
      const marker = await load(local);
      // What was settled meanwhile stays so.
      for (const id of Object.keys(asked)) if (lacked[id] === undefined) delete marker.missing[id];
      await save(local, marker);
    });
  }
  while (await confirmBatch(local, remote, inTurn)) {
    // Each batch begins where the marker is.
  }
}

/** Returns whether there was anything to ask about. */
async function confirmBatch(local: Pouch, remote: Pouch, inTurn: InTurn): Promise<boolean> {
  const { seq, fetched } = await load(local);
  const { results } = await local.changes({ since: seq, style: 'all_docs', limit: BATCH });
  const last = results.at(-1);
  if (last === undefined) return false;
  const lacked = await lacks(remote, without(revisionsOf(results), fetched));
  await inTurn(async () => {
    const marker = await load(local);
    if (marker.seq !== seq) return; // Settled meanwhile.
    for (const { id } of results) {
      delete marker.missing[id];
      delete marker.fetched[id];
    }
    Object.assign(marker.missing, lacked);
    await save(local, { ...marker, seq: last.seq });
  });
  return true;
}

/**
 * What the server is not known to have: the leaves that it lacked when it was
 * asked last, and those that were written here since. Right without the server,
 * but for what a device fetched in the instant in which it was switched off: that
 * counts until the server is asked again.
 */
export async function unacknowledged(local: Pouch): Promise<Revisions> {
  const { seq, missing, fetched } = await load(local);
  const { results } = await local.changes({ since: seq, style: 'all_docs' });
  const left = { ...missing };
  for (const { id } of results) delete left[id];
  return { ...left, ...without(revisionsOf(results), fetched) };
}

/** Notes that these revisions are kept elsewhere and do not count here any more. */
export async function settle(local: Pouch, carried: Revisions): Promise<void> {
  const { update_seq } = await local.info();
  const missing = without(await unacknowledged(local), carried);
  await save(local, { seq: update_seq, missing, fetched: {} });
}

/** The first revisions that are not among the second. */
function without(revisions: Revisions, others: Revisions): Revisions {
  const left: Revisions = {};
  for (const [id, revs] of Object.entries(revisions)) {
    const rest = revs.filter((rev) => !others[id]?.includes(rev));
    if (rest.length > 0) left[id] = rest;
  }
  return left;
}

async function lacks(remote: Pouch, revisions: Revisions): Promise<Revisions> {
  if (Object.keys(revisions).length === 0) return {};
  const missing: Revisions = {};
  for (const [id, answer] of Object.entries(await remote.revsDiff(revisions))) {
    if (answer.missing !== undefined && answer.missing.length > 0) missing[id] = answer.missing;
  }
  return missing;
}

function revisionsOf(changes: Change[]): Revisions {
  const documents = changes.filter(({ id }) => !id.startsWith('_design/'));
  return Object.fromEntries(documents.map(({ id, changes }) => [id, changes.map(({ rev }) => rev)]));
}

async function load(local: Pouch): Promise<Marker> {
  const { seq = 0, missing = {}, fetched = {} } = ((await orNull(local.get(MARKER))) ?? {}) as Partial<Marker>;
  return { seq, missing, fetched };
}

async function save(local: Pouch, marker: Marker): Promise<void> {
  const before = await orNull(local.get(MARKER));
  await local.put({ _id: MARKER, ...(before?._rev && { _rev: before._rev }), ...marker });
}
