// What CouchDB never takes. It answers for a whole batch then, so that one such
// document would keep back all that the device writes after it.
import type { Doc } from './pouch.js';

/** CouchDB's own limit of a document without its attachments, as JSON in UTF-8. */
const MOST_BYTES = 8_000_000;
/** Half of a pair alone, which has no UTF-8. */
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Throws what PouchDB would have been answered, 413 or 400. */
export function checkSendable({ _attachments: attachments, ...doc }: Doc): void {
  const check = (text: string) => {
    if (LONE_SURROGATE.test(text)) throw failure(400, 'bad_request', 'a text holds half of a surrogate pair, which CouchDB does not take');
  };
  const json = JSON.stringify(doc, (field, value) => {
    check(field);
    if (typeof value === 'string') check(value);
    return value;
  });
  Object.keys((attachments ?? {}) as object).forEach(check);
  if (json.length > MOST_BYTES || (json.length * 3 > MOST_BYTES && new TextEncoder().encode(json).length > MOST_BYTES)) {
    throw failure(413, 'document_too_large', `a document has at most ${MOST_BYTES} bytes beside its attachments`);
  }
}

function failure(status: number, name: string, reason: string): Error {
  return Object.assign(new Error(reason), { status, name, error: true, reason });
}
