export * from './database.js';
export type { FindRequest } from './find.js';
export { CAME_FROM, type LateReport } from './late.js';
export type { Refusal, RetryDelay } from './mount.js';
export type { Doc, Pouch, PouchConstructor, Writable, Written } from './pouch.js';
export type { TokenSupplier } from './remote.js';
export { follow, type Session, type Socket } from './session.js';
