// A socket whose token ends: the client of Socket.IO does not connect again by itself
// when the server has refused it or sent it away.
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import PouchDB from 'pouchdb';
import memory from 'pouchdb-adapter-memory';
import { io } from 'socket.io-client';
import { Database, follow } from '../dist/index.js';
import { eventually } from './restaurant.js';
import { startServer } from './server.js';

PouchDB.plugin(memory);

/** The client's side of a socket whose server accepts some tokens. */
class Socket extends EventEmitter {
  accepted = [];
  /** The tokens that were sent to connect. */
  tried = [];
  /** Those that were sent while connected. */
  renewed = [];

  constructor() {
    super();
    this.on('sdk:auth', ({ token }) => this.renewed.push(token));
    setImmediate(() => this.connect());
  }

  connect() {
    this.auth(({ token }) => {
      this.tried.push(token);
      if (this.accepted.includes(token)) return this.emit('sdk:init:ready', {});
      this.emit('connect_error', Object.assign(new Error('unauthorized'), { data: { code: 'expired' } }));
    });
  }
}

/** A till whose tokens are t1, t2 and so on, each as soon as the one before was refused. */
async function till(t) {
  const asked = [];
  const token = async (refused) => {
    asked.push(refused);
    if (asked.length === 2) throw new Error('the app is offline');
    return `t${asked.length}`;
  };
  // Nothing listens there.
  const database = await Database.open({ PouchDB, url: 'http://127.0.0.1:9', token, companyId: 'acme', restaurantId: 'session', prefix: t.name, local: { adapter: 'memory' }, retryDelay: () => 10 });
  const socket = new Socket();
  socket.accepted = ['t3'];
  const unfollow = follow(socket, database);
  t.after(async () => {
    unfollow();
    await database.close();
  });
  return { asked, socket };
}

test('a socket that is refused connects again with a fresh token', async (t) => {
  const { asked, socket } = await till(t);
  await eventually(() => socket.tried.at(-1) === 't3');
  assert.deepEqual(socket.tried.filter(Boolean), ['t1', 't3']);
  assert.deepEqual([...new Set(asked)], [null, 't1']);
});

test('a token that has expired is renewed', async (t) => {
  const { asked, socket } = await till(t);
  await eventually(() => socket.tried.at(-1) === 't3');
  socket.emit('sdk:auth:expired', { graceSeconds: 10 });
  await eventually(() => socket.renewed.length > 0);
  assert.deepEqual(socket.renewed, ['t4']);
  assert.equal(asked.at(-1), 't3');
  socket.accepted = ['t4'];
  socket.tried = [];
  socket.emit('disconnect', 'transport close');
  socket.emit('disconnect', 'io server disconnect');
  await eventually(() => socket.tried.length > 0);
  assert.deepEqual(socket.tried, ['t4']);
});

test('a till whose token was taken back hears everything with a new one', async (t) => {
  const server = await startServer(t);
  const who = { companyId: 'demo', restaurantId: 'centro', deviceId: 'taken-back' };
  let token;
  const issue = async () => ({ token } = await server.admin('POST', 'device-tokens', { ...who, ttlSeconds: 3600 }));
  await issue();
  const database = await Database.open({
    PouchDB, url: server.url, token: () => token, ...who, prefix: 'taken-back', local: { adapter: 'memory' }, retryDelay: () => 50,
  });
  const socket = io(server.url, { transports: ['websocket'] });
  const unfollow = follow(socket, database);
  t.after(async () => {
    unfollow();
    socket.close();
    await database.close();
  });
  await eventually(() => database.rolling);
  const revoked = new Promise((resolve) => socket.once('sdk:auth:revoked', resolve));
  await server.admin('DELETE', 'device-tokens/demo/centro/taken-back');
  await revoked;
  await issue();
  await eventually(() => socket.connected);
  await server.admin('PUT', 'flags/demo', { rollingDb: false, rollingDbDrop: false });
  await eventually(() => !database.rolling);
});
