// One answer out of several databases.
import type { Doc } from './pouch.js';

export interface FindRequest {
  selector: Record<string, unknown>;
  fields?: string[];
  /** Fields, or one-key objects of a field and its direction, as in CouchDB. */
  sort?: (string | Record<string, 'asc' | 'desc'>)[];
  skip?: number;
  limit?: number;
}

/** The request for each database: `all`, or enough of every one, with what merging needs. */
export function partOf({ fields: _fields, skip = 0, limit, ...request }: FindRequest, all: boolean): object {
  return all || limit === undefined ? request : { ...request, limit: skip + limit };
}

/** Merges answers. Those of two databases hold an id twice only while it is carried. */
export function merge(answers: Doc[][], { fields, sort = [], skip = 0, limit }: FindRequest): Doc[] {
  const byId = new Map<string, Doc>();
  for (const doc of answers.flat()) if (!byId.has(doc._id)) byId.set(doc._id, doc);
  const docs = [...byId.values()];
  if (sort.length > 0) docs.sort((a, b) => compare(a, b, sort));
  const page = docs.slice(skip, limit === undefined ? undefined : skip + limit);
  return fields === undefined ? page : page.map((doc) => pick(doc, fields));
}

/** A field's name may be a path, such as `table.number`. */
function pick(doc: Doc, fields: string[]): Doc {
  const picked: Record<string, unknown> = {};
  for (const field of fields) {
    const value = valueAt(doc, field);
    if (value === undefined) continue;
    const path = field.split('.');
    const last = path.pop() as string;
    let into = picked;
    for (const name of path) into = (into[name] ??= {}) as Record<string, unknown>;
    into[last] = value;
  }
  return picked as unknown as Doc;
}

function valueAt(doc: Doc, field: string): unknown {
  return field.split('.').reduce<any>((value, name) => value?.[name], doc);
}

function compare(a: Doc, b: Doc, sort: NonNullable<FindRequest['sort']>): number {
  for (const part of sort) {
    const [[field, direction]] = typeof part === 'string' ? [[part, 'asc']] : (Object.entries(part) as [[string, string]]);
    const order = compareValues(valueAt(a, field as string), valueAt(b, field as string));
    if (order !== 0) return direction === 'desc' ? -order : order;
  }
  return 0;
}

const KINDS = ['undefined', 'object', 'boolean', 'number', 'string'];

/** CouchDB's order of absent, null, booleans, numbers and text. */
function compareValues(a: unknown, b: unknown): number {
  const kinds = KINDS.indexOf(typeof a) - KINDS.indexOf(typeof b);
  if (kinds !== 0 || typeof a === 'object' || a === b) return kinds;
  return (a as number) < (b as number) ? -1 : 1;
}
