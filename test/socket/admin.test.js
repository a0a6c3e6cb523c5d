// Two whole servers on one Postgres and one CouchDB: what an operator changes on
// one reaches the device on the other.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { A, B, open } from './server.js';

async function admin(method, path, body) {
  const response = await fetch(`${A}/admin${path}`, {
    method,
    headers: { Authorization: `Bearer ${process.env.ADMIN_TOKEN}`, 'Content-Type': 'application/json' },
    body: body && JSON.stringify(body),
  });
  const text = await response.text();
  assert.equal(response.status, 200, `${method} ${path}: ${text}`);
  return JSON.parse(text);
}

test('an operator and a device on different replicas', async (t) => {
  await admin('PUT', '/restaurants/acme/centro', {});
  const { token } = await admin('POST', '/device-tokens', {
    companyId: 'acme', restaurantId: 'centro', deviceId: 'till-1', ttlSeconds: 3600,
  });
  const { socket, inbox } = open(t, B, { token });
  const [event, first] = await inbox.next();
  assert.equal(event, 'sdk:init:ready');
  assert.equal(first.flags.rollingDbEnabled, false);
  assert.equal(first.manifest, null);

  const began = performance.now();
  await admin('PUT', '/flags/acme', { rollingDb: true });
  assert.equal((await inbox.until('sdk:updates')).flags.rollingDbEnabled, true);
  t.diagnostic(`flags reached the other replica in ${Math.round(performance.now() - began)} ms, PUT included`);

  await admin('POST', '/crons/rolling-db-rotate/run', { companyId: 'acme', wait: true });
  let { flags, manifest } = first;
  while (!flags.rollingDbDeviceRouted || manifest === null || manifest.currentDayDb === null) {
    const update = await inbox.until('sdk:updates');
    flags = update.flags ?? flags;
    manifest = update.manifest ?? manifest;
  }
  assert.match(manifest.currentDayDb, /^daily_\d{8}$/);
  assert.equal(manifest.currentDayDb, `daily_${manifest.currentBusinessDay}`);

  const core = await fetch(`${B}/db/core/day_manifest`, { headers: { Authorization: `Bearer ${token}` } });
  const held = await core.json();
  assert.equal(manifest.generation, held.generation, 'the socket and core tell the same');
  assert.equal(manifest.currentDayDb, held.currentDayDb);
  assert.deepEqual(manifest.overlays, held.overlays);

  await admin('PUT', '/flags/acme', { rollingDb: false });
  assert.deepEqual((await inbox.until('sdk:updates')).flags, {
    rollingDbEnabled: false, rollingDbDeviceRouted: false, rollingDbDropEnabled: false,
  });

  await admin('DELETE', '/device-tokens/acme/centro/till-1');
  await inbox.until('sdk:auth:revoked');
  assert.equal(await inbox.until('disconnect'), 'io server disconnect');
  assert.equal(socket.connected, false);
  const again = open(t, B, { token });
  assert.deepEqual(await again.inbox.next(), ['connect_error', { code: 'invalid' }]);
});
