// A till that is a page in a browser: IndexedDB, CORS, and a night.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { eventually } from './restaurant.js';
import { startServer } from './server.js';

const BROWSER = process.env.CHROMIUM ?? '/usr/bin/chromium';
// A machine that runs everything else at the same time takes long to start one.
const PATIENCE = 180_000;
// Nothing that would reach out of this machine.
const ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

const FILES = {
  '/': 'test/browser.html',
  '/pouchdb.js': 'node_modules/pouchdb/dist/pouchdb.min.js',
  '/socket.io.js': 'node_modules/socket.io-client/dist/socket.io.esm.min.js',
};
const TYPES = { '.html': 'text/html', '.js': 'text/javascript' };

/** Serves the page, and the SDK as it was built. */
async function startPage(t) {
  const server = createServer(async (req, res) => {
    const path = FILES[req.url] ?? (/^\/dist\/[\w/-]+\.js$/.test(req.url) ? req.url.slice(1) : null);
    if (path === null) return res.writeHead(404).end();
    const file = fileURLToPath(new URL(`../${path}`, import.meta.url));
    res.writeHead(200, { 'content-type': TYPES[extname(file)] });
    res.end(await readFile(file));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${server.address().port}/`;
}

test('a till in a browser', { skip: !existsSync(BROWSER) && `${BROWSER} is not there; CHROMIUM names another` }, async (t) => {
  const server = await startServer(t);
  const address = await startPage(t);
  const browser = await chromium.launch({ executablePath: BROWSER, args: ARGS, timeout: PATIENCE });
  t.after(() => browser.close());
  const context = await browser.newContext();
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.on('pageerror', (error) => t.diagnostic(String(error)));

  const start = async () => {
    await page.goto(address);
    await page.waitForFunction(() => globalThis.start !== undefined);
    await page.evaluate((options) => globalThis.start(options), { url: server.url, token: server.till });
    await page.waitForFunction(() => globalThis.till.currentBusinessDay !== null);
    return page.evaluate(() => globalThis.till.currentBusinessDay);
  };
  const put = (id, status) =>
    page.evaluate(
      async ([_id, status]) => {
        const order = (await globalThis.till.get(_id)) ?? { _id, type: 'order', companyId: 'demo', restaurantId: 'centro' };
        await globalThis.till.put({ ...order, status });
      },
      [id, status],
    );
  const unsynced = () =>
    page.evaluate(async () => (await globalThis.till.unsynced()).reduce((sum, { documents }) => sum + documents, 0));
  const delivered = () => eventually(async () => (await unsynced()) === 0);

  const yesterday = await start();
  await put('o1', 'open');
  await put('o2', 'closed');
  await delivered();
  assert.equal((await server.stored(`daily_${yesterday}`, 'o1')).status, 'open');

  // PouchDB on its own asks otherwise than the SDK.
  const manifest = await page.evaluate(
    ([url, token]) => {
      const fetch = (address, options) => {
        options.headers.set('Authorization', `Bearer ${token}`);
        return PouchDB.fetch(address, options);
      };
      return new PouchDB(`${url}/db/core`, { skip_setup: true, fetch }).get('day_manifest');
    },
    [server.url, server.till],
  );
  assert.equal(manifest.currentBusinessDay, yesterday);

  // Without a network it goes on selling, and what it has sold outlives the page.
  await context.setOffline(true);
  await put('o3', 'closed');
  assert.equal(await unsynced(), 1);
  await context.setOffline(false);
  await page.evaluate(() => globalThis.till.close());
  assert.equal(await start(), yesterday);
  await delivered();
  assert.equal((await server.stored(`daily_${yesterday}`, 'o3')).status, 'closed');

  await server.rotate();
  await page.waitForFunction((before) => globalThis.till.currentBusinessDay !== before, yesterday);
  const today = await page.evaluate(() => globalThis.till.currentBusinessDay);
  await put('o1', 'closed');
  await put('o4', 'closed');
  await delivered();
  assert.equal((await server.stored(`daily_${yesterday}`, 'o1')).status, 'closed');
  assert.equal((await server.stored(`daily_${today}`, 'o4')).status, 'closed');
  assert.equal(await server.stored(`daily_${today}`, 'o1'), null);
  await page.evaluate(() => globalThis.till.close());
});
