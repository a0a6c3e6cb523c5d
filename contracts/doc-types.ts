// Which documents rotate by business day, and when one of them is finished.
// The server archives exactly the types that rotate: a type that rotated
// without being archived would be lost when its day database is dropped.

/** The types that live in day databases. Every other type belongs to core. */
export const DYNAMIC_DOC_TYPES: ReadonlySet<string> = new Set([
  'order',
  'payment',
  'cashflow',
  'inventory_movement',
]);

/**
 * For each dynamic type, the values of the field `status` that end a
 * document's life. `'always'` is an append-only fact, terminal from birth.
 */
export const TERMINAL_STATUSES: ReadonlyMap<string, ReadonlySet<string> | 'always'> = new Map<
  string,
  ReadonlySet<string> | 'always'
>([
  ['order', new Set(['closed', 'cancelled', 'refunded'])],
  ['payment', new Set(['approved', 'rejected', 'refunded', 'voided'])],
  ['cashflow', new Set(['closed'])],
  ['inventory_movement', 'always'],
]);

/**
 * Whether documents of this type live in day databases. Types are exact and
 * case-sensitive; anything that is not a dynamic type is not.
 */
export function isDynamic(docType: unknown): boolean {
  return typeof docType === 'string' && DYNAMIC_DOC_TYPES.has(docType);
}

/**
 * Whether a document of this type with this `status` will not change any more.
 * An unknown or absent status is not terminal, and neither is any document of
 * a type that does not rotate.
 */
export function isTerminal(docType: unknown, status: unknown): boolean {
  if (typeof docType !== 'string') return false;
  const statuses = TERMINAL_STATUSES.get(docType);
  if (statuses === undefined) return false;
  return statuses === 'always' || (typeof status === 'string' && statuses.has(status));
}

/** The kind of database that documents of this type live in. */
export function databaseKindOf(docType: unknown): 'core' | 'daily' {
  return isDynamic(docType) ? 'daily' : 'core';
}
