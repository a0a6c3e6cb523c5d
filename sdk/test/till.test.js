// The example till sells through a night.
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
import { startServer } from './server.js';

test('the example till sells through a night', async (t) => {
  const server = await startServer(t);
  const data = join(tmpdir(), `rollingd-till-${randomUUID()}`);
  const till = spawn(process.execPath, [fileURLToPath(new URL('../examples/till.mjs', import.meta.url)), server.url], {
    env: { ...process.env, TILL: server.till, TILL_DATA: data },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(till, 'exit');
  t.after(async () => {
    till.kill();
    await exited;
    await rm(data, { recursive: true, force: true });
  });
  const said = [];
  const listeners = new Set();
  createInterface({ input: till.stdout }).on('line', (line) => {
    said.push(line);
    for (const look of listeners) look();
  });
  const says = (pattern) =>
    new Promise((resolve) => {
      const look = () => said.some((line) => pattern.test(line)) && listeners.delete(look) | resolve();
      listeners.add(look);
      look();
    });

  await says(/stays open/);
  await server.rotate();
  await says(/closed there/);
  till.kill('SIGINT');
  assert.deepEqual(await exited, [0, null]);

  const log = said.join('\n');
  assert.match(log, /-- everything is delivered/);
  const [, yesterday, today] = /-- (\d{8}) -> (\d{8})/.exec(log);
  const sold = [...log.matchAll(/^\d{8} {2}(order-\S+) {2}\d+ {2}(.*)$/gm)];
  assert.ok(sold.length >= 6, log);
  for (const [line, id, fate] of sold) {
    const kept = await Promise.all([yesterday, today].map((day) => server.stored(`daily_${day}`, id)));
    const where = kept.filter((doc) => doc !== null);
    assert.equal(where.length, 1, line);
    if (!fate.startsWith('stays open')) assert.equal(where[0].status, 'closed', line);
    if (fate.startsWith(`of ${yesterday}`)) assert.equal(kept[0]?.status, 'closed', line);
  }
});
