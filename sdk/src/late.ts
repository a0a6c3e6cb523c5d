// Documents that the server will never take where they are: their day was sealed
// or dropped while the device was away. They go on in the current day.
import type { Revisions } from './acknowledged.js';
import type { Doc, Pouch } from './pouch.js';

/** The field of a carried document that says where it comes from: YYYYMMDD, or a suffix. */
export const CAME_FROM = 'rollingdFrom';

/** What was carried, and why. */
export interface LateReport {
  suffix: string;
  businessDay: string | null;
  documents: number;
  /** The suffixes of the databases that have the documents now. */
  into: string[];
  /** The server's words. */
  code: string;
  reason: string;
}

/**
 * Copies revisions with their history and attachments to where `into` says, each
 * with one revision on top that holds the mark. Carrying again changes nothing.
 */
export async function carry(
  source: Pouch,
  revisions: Revisions,
  from: string,
  into: (docType: unknown) => Pouch,
): Promise<void> {
  for (const [id, revs] of Object.entries(revisions)) {
    for (const rev of revs) {
      const doc = await source.get(id, { rev, revs: true, attachments: true });
      const target = into(doc['type']);
      const copy = marked(doc, from);
      await target.bulkDocs({ docs: [copy], new_edits: false });
      // PouchDB reports what it could not write in several ways; this is certain.
      const missing = await target.revsDiff({ [id]: [copy._rev as string] });
      if (missing[id] !== undefined) throw new Error(`${id} could not be carried from ${from}`);
    }
  }
}

/**
 * The name of the new revision is that of the old one, turned by a digit: every
 * device that carries the same revision makes the same one, and they do not
 * conflict. PouchDB does not get along with the same name twice in a history.
 */
function marked(doc: Doc, from: string): Doc {
  const { start, ids } = doc['_revisions'] as { start: number; ids: [string, ...string[]] };
  const turned = ids[0].slice(1) + ids[0].slice(0, 1);
  return {
    ...doc,
    [CAME_FROM]: doc[CAME_FROM] ?? from,
    _rev: `${start + 1}-${turned}`,
    _revisions: { start: start + 1, ids: [turned, ...ids] },
  };
}
