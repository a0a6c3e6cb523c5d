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

/** Returns a till of the demo tenant with a token of its own, whose databases are in memory. */
async function openTill(t, server, name) {
  const who = { companyId: 'demo', restaurantId: 'centro', deviceId: name, ttlSeconds: 3600 };
  const { token } = await server.admin('POST', 'device-tokens', who);
  const database = await Database.open({
    PouchDB,
    url: server.url,
    token: () => token,
    companyId: 'demo',
    restaurantId: 'centro',
    prefix: name,
    local: { adapter: 'memory' },
    retryDelay: (attempt) => Math.min(2000, 50 * 2 ** attempt),
  });
  const socket = io(server.url, { transports: ['websocket'] });
  const unfollow = follow(socket, database);
  t.after(async () => {
    unfollow();
    socket.close();
    await database.close();
  });
  return database;
}

const order = (id) => ({ _id: id, type: 'order', status: 'closed', companyId: 'demo', restaurantId: 'centro' });
const on = { rollingDb: true, rollingDbDrop: false };
const off = { rollingDb: false, rollingDbDrop: false };

test('two tills on a whole server', async (t) => {
  const server = await startServer(t);
  const tills = [await openTill(t, server, 'first'), await openTill(t, server, 'second')];
  const [till, bar] = tills;

  await eventually(() => tills.every((each) => each.currentBusinessDay !== null));
  const day = `daily_${till.currentBusinessDay}`;
  const seen = next(bar, 'change', ({ id }) => id === 'o1');
  await till.put(order('o1'));
  assert.equal((await seen).suffix, day);
  await assert.rejects(till.put({ ...order('o1'), _rev: '1-0' }), { status: 409 });

  await server.admin('PUT', 'flags/demo', off);
  await eventually(() => tills.every((each) => !each.rolling));
  await till.put(order('o2'));
  await eventually(() => server.stored('legacy', 'o2'));

  await server.admin('PUT', 'flags/demo', on);
  await server.rotate();
  await eventually(() => tills.every((each) => each.rolling && `daily_${each.currentBusinessDay}` > day));
  await till.put(order('o3'));
  await eventually(() => server.stored(`daily_${till.currentBusinessDay}`, 'o3'));
  await eventually(() => bar.get('o3'));
  for (const each of tills) await eventually(async () => (await each.unsynced()).length === 0);
});

test('tills that sell while their company is switched off and on lose nothing', async (t) => {
  const server = await startServer(t);
  const tills = [await openTill(t, server, 'busy1'), await openTill(t, server, 'busy2')];
  await eventually(() => tills.every((each) => each.currentBusinessDay !== null));

  const sold = [];
  let closing = false;
  const selling = tills.map(async (till, which) => {
    for (let n = 0; !closing; n++) {
      const id = `till${which}-${n}`;
      await till.put(order(id));
      sold.push(id);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  });
  const soldMore = (n) => {
    const before = sold.length;
    return eventually(() => sold.length >= before + n);
  };
  for (let round = 0; round < 3; round++) {
    await server.admin('PUT', 'flags/demo', off);
    await soldMore(10);
    await eventually(() => tills.every((each) => !each.rolling));
    await soldMore(10);
    await server.admin('PUT', 'flags/demo', on);
    await soldMore(10);
    await server.rotate();
    await eventually(() => tills.every((each) => each.rolling));
    await soldMore(10);
  }
  closing = true;
  await Promise.all(selling);
  for (const till of tills) await eventually(async () => (await till.unsynced()).length === 0);
  const stored = await server.ids();
  assert.deepEqual(sold.filter((id) => !stored.has(id)), []);
  for (const till of tills) assert.equal((await till.get(sold[0]))?.status, 'closed');
});
