// Two tills of the demo tenant on a whole server: tokens, proxy, socket and switch.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import PouchDB from 'pouchdb';
import memory from 'pouchdb-adapter-memory';
import { io } from 'socket.io-client';
import { Database, follow } from '../dist/index.js';
import { eventually, next } from './restaurant.js';
import { startServer } from './server.js';

PouchDB.plugin(memory);

test('two tills on a whole server', async (t) => {
  const server = await startServer(t);
  const open = async (name) => {
    const database = await Database.open({
      PouchDB,
      url: server.url,
      token: () => server.till,
      companyId: 'demo',
      restaurantId: 'centro',
      prefix: name,
      local: { adapter: 'memory' },
      retryDelay: () => 100,
    });
    const socket = io(server.url, { auth: { token: server.till }, transports: ['websocket'] });
    const unfollow = follow(socket, database);
    t.after(async () => {
      unfollow();
      socket.close();
      await database.close();
    });
    return database;
  };
  const tills = [await open('first'), await open('second')];
  const [till, bar] = tills;
  const order = (id) => ({ _id: id, type: 'order', status: 'closed', companyId: 'demo', restaurantId: 'centro' });

  await eventually(() => tills.every((each) => each.currentBusinessDay !== null));
  const day = `daily_${till.currentBusinessDay}`;
  const seen = next(bar, 'change', ({ id }) => id === 'o1');
  await till.put(order('o1'));
  assert.equal((await seen).suffix, day);
  await assert.rejects(till.put({ ...order('o1'), _rev: '1-0' }), { status: 409 });

  await server.admin('PUT', 'flags/demo', { rollingDb: false, rollingDbDrop: false });
  await eventually(() => tills.every((each) => !each.rolling));
  await till.put(order('o2'));
  await eventually(() => server.stored('legacy', 'o2'));

  await server.admin('PUT', 'flags/demo', { rollingDb: true, rollingDbDrop: false });
  await server.rotate();
  await eventually(() => tills.every((each) => each.rolling && `daily_${each.currentBusinessDay}` > day));
  await till.put(order('o3'));
  await eventually(() => server.stored(`daily_${till.currentBusinessDay}`, 'o3'));
  await eventually(() => bar.get('o3'));
  for (const each of tills) await eventually(async () => (await each.unsynced()).length === 0);
});
