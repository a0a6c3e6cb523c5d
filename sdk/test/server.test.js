// Two tills of the demo tenant on a whole server: tokens, proxy, socket and switch.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import PouchDB from 'pouchdb';
import memory from 'pouchdb-adapter-memory';
import { io } from 'socket.io-client';
import { Database, follow } from '../dist/index.js';
import { eventually, next } from './restaurant.js';

PouchDB.plugin(memory);

/** Starts `rollingd dev` and returns what it prints: its URL, and tokens of the administration and of a till. */
async function startServer(t) {
  // Not a folder of mkdtemp: a Postgres that may not run as root cannot enter one.
  const data = join(tmpdir(), `rollingd-sdk-${randomUUID()}`);
  const binary = fileURLToPath(new URL('../build/rollingd', import.meta.url));
  const child = spawn(binary, ['dev', '--data', data, '--listen', '127.0.0.1:0'], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const exited = once(child, 'exit');
  t.after(async () => {
    child.kill('SIGINT');
    await exited;
    await rm(data, { recursive: true, force: true });
  });
  const printed = {};
  const patterns = { url: /ROLLINGD_URL=(\S+)/, admin: /ROLLINGD_TOKEN=(\S+)/, till: / TILL=(\S+)/ };
  const lines = createInterface({ input: child.stderr });
  await Promise.race([
    exited.then(() => Promise.reject(new Error('the server did not start'))),
    new Promise((resolve) => {
      lines.on('line', (line) => {
        for (const [name, pattern] of Object.entries(patterns)) printed[name] ??= pattern.exec(line)?.[1];
        if (printed.till) resolve();
      });
    }),
  ]);
  return printed;
}

test('two tills on a whole server', async (t) => {
  const server = await startServer(t);
  const admin = async (method, path, body) => {
    const answer = await fetch(`${server.url}/admin/${path}`, {
      method,
      headers: { authorization: `Bearer ${server.admin}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    assert.equal(answer.status, 200, `${path}: ${await answer.text()}`);
  };
  const stored = async (suffix, id) => {
    const answer = await fetch(`${server.url}/db/${suffix}/${id}`, { headers: { authorization: `Bearer ${server.till}` } });
    return answer.status === 200 ? answer.json() : null;
  };
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

  await admin('PUT', 'flags/demo', { rollingDb: false, rollingDbDrop: false });
  await eventually(() => tills.every((each) => !each.rolling));
  await till.put(order('o2'));
  await eventually(() => stored('legacy', 'o2'));

  await admin('PUT', 'flags/demo', { rollingDb: true, rollingDbDrop: false });
  await admin('POST', 'crons/rolling-db-rotate/run', { companyId: 'demo', wait: true });
  await eventually(() => tills.every((each) => each.rolling));
  await till.put(order('o3'));
  await eventually(() => stored(day, 'o3'));
  await eventually(() => bar.get('o3'));
  for (const each of tills) await eventually(async () => (await each.unsynced()).length === 0);
});
