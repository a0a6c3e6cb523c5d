// What the server tells a connected device about its flags and its manifest.
import type { Database } from './database.js';

/** Of a socket of socket.io-client, which the app connects. */
export interface Socket {
  on(event: string, listener: (message: Session) => void): unknown;
  off(event: string, listener: (message: Session) => void): unknown;
}

/** Each part is whole; one that is absent has not changed. */
export interface Session {
  flags?: unknown;
  /** Null before the first one was written. */
  manifest?: unknown;
}

/** Keeps a database up to date with a socket. Returns the function that ends it. */
export function follow(socket: Socket, database: Database): () => void {
  // What could not be taken is said again on the next connection, and by core.
  const accept = (message: Session) => void database.accept(message).catch(() => {});
  const events = ['sdk:init:ready', 'sdk:updates'];
  for (const event of events) socket.on(event, accept);
  return () => {
    for (const event of events) socket.off(event, accept);
  };
}
