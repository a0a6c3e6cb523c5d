// A whole server, as `rollingd dev` starts it. `npm test` builds it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Starts `rollingd dev` and returns what it prints: its URL, tokens of the administration and of a till, and CouchDB. */
export async function startServer(t) {
  // Not a folder of mkdtemp: a Postgres that may not run as root cannot enter one.
  const data = join(tmpdir(), `rollingd-sdk-${randomUUID()}`);
  const binary = fileURLToPath(new URL('../build/rollingd', import.meta.url));
  const child = spawn(binary, ['dev', '--data', data, '--listen', '127.0.0.1:0'], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const exited = once(child, 'exit');
  // The runner ends a file that takes too long before it could clean up.
  const ended = () => child.kill('SIGINT') && process.exit(1);
  process.once('SIGTERM', ended);
  t.after(async () => {
    process.off('SIGTERM', ended);
    child.kill('SIGINT');
    await exited;
    await rm(data, { recursive: true, force: true });
  });
  const printed = {};
  const patterns = { url: /ROLLINGD_URL=(\S+)/, admin: /ROLLINGD_TOKEN=(\S+)/, till: / TILL=(\S+)/, couch: /CouchDB +(\S+)/ };
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
  const admin = async (method, path, body) => {
    const answer = await fetch(`${printed.url}/admin/${path}`, {
      method,
      headers: { authorization: `Bearer ${printed.admin}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    assert.equal(answer.status, 200, `${path}: ${await answer.clone().text()}`);
    return answer.json();
  };
  const stored = async (suffix, id) => {
    const answer = await fetch(`${printed.url}/db/${suffix}/${id}`, { headers: { authorization: `Bearer ${printed.till}` } });
    return answer.status === 200 ? answer.json() : null;
  };
  const couch = new URL(printed.couch);
  const credentials = Buffer.from(`${couch.username}:${couch.password}`).toString('base64');
  const behind = async (path) => {
    const answer = await fetch(`${couch.origin}/${path}`, { headers: { authorization: `Basic ${credentials}` } });
    assert.equal(answer.status, 200, path);
    return answer.json();
  };
  return {
    ...printed,
    admin,
    /** The ids of all documents of the restaurant, whichever database they are in. */
    async ids() {
      const names = (await behind('_all_dbs')).filter((name) => !name.startsWith('_'));
      const lists = await Promise.all(names.map((name) => behind(`${encodeURIComponent(name)}/_all_docs`)));
      return new Set(lists.flatMap(({ rows }) => rows.map(({ id }) => id)));
    },
    /** Reads a document as a device does, or null. */
    stored,
    /** The night: the next business day begins. */
    rotate: () => admin('POST', 'crons/rolling-db-rotate/run', { companyId: 'demo', wait: true }),
  };
}

