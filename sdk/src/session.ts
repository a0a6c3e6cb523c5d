// What the server tells a connected device about its flags and its manifest.
import type { Database } from './database.js';

/** Of a socket of socket.io-client, which the app connects. */
export interface Socket {
  auth: unknown;
  on(event: string, listener: (message?: any) => void): unknown;
  off(event: string, listener: (message?: any) => void): unknown;
  emit(event: string, message: object): unknown;
  connect(): unknown;
}

/** Each part is whole; one that is absent has not changed. */
export interface Session {
  flags?: unknown;
  /** Null before the first one was written. */
  manifest?: unknown;
}

/**
 * Keeps a database up to date with a socket, which sends the database's token and a
 * fresh one when that has expired. Returns the function that ends it.
 */
export function follow(socket: Socket, database: Database): () => void {
  let sent: string | null = null;
  let refused: string | null = null;
  let attempts = 0;
  let waiting: ReturnType<typeof setTimeout> | undefined;

  const take = async () => ({ token: (sent = await database.token(refused)) });
  // What could not be taken is said again on the next connection, and by core.
  const accept = (message: Session) => void database.accept(message).catch(() => {});
  // The client connects by itself after a failure of the network, not after a refusal.
  const again = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => socket.connect(), database.retryDelay(++attempts));
  };
  const listeners: Record<string, (message?: any) => void> = {
    'sdk:init:ready': (message: Session) => {
      attempts = 0;
      accept(message);
    },
    'sdk:updates': accept,
    'sdk:auth:expired': () => {
      refused = sent ?? refused;
      // Without a fresh one the server disconnects.
      take().then((auth) => socket.emit('sdk:auth', auth), () => {});
    },
    connect_error: (error?: { data?: { code?: string } }) => {
      if (error?.data === undefined) return;
      if (error.data.code !== 'unavailable') refused = sent ?? refused;
      again();
    },
    disconnect: (reason?: string) => {
      if (reason === 'io server disconnect') again();
    },
  };
  socket.auth = (send: (auth: object) => void) => {
    sent = null;
    take().then(send, () => send({})); // Refused, and tried again.
  };
  for (const [event, listener] of Object.entries(listeners)) socket.on(event, listener);
  return () => {
    clearTimeout(waiting);
    for (const [event, listener] of Object.entries(listeners)) socket.off(event, listener);
  };
}
