import assert from 'node:assert/strict';
import { test } from 'node:test';
import { A, B, ask, newCompany, open, token, unknownCompany } from './server.js';

const off = { rollingDbEnabled: false, rollingDbDeviceRouted: false, rollingDbDropEnabled: false };

test('a device learns flags and manifest when it connects', async (t) => {
  const company = await newCompany();
  await ask('flags', { company, rollingDb: true });
  await ask('day', { company, day: '20261130' });
  const { inbox } = open(t, A, { token: await token(company) });
  const [event, state] = await inbox.next();
  assert.equal(event, 'sdk:init:ready');
  assert.deepEqual(state.flags, { ...off, rollingDbEnabled: true });
  assert.equal(state.manifest._id, 'day_manifest');
  assert.equal(state.manifest.currentDayDb, 'daily_20261130');
  assert.deepEqual(state.manifest.overlays, []);
  assert.ok(state.manifest.generation > 0);
  assert.ok(Date.parse(state.manifest.updatedAt));
});

test('all flags are off and there is no manifest before anybody asks for them', async (t) => {
  for (const company of [await newCompany(), unknownCompany()]) {
    const { inbox } = open(t, A, { token: await token(company) });
    assert.deepEqual(await inbox.next(), ['sdk:init:ready', { flags: off, manifest: null }]);
  }
});

test('a change on one replica reaches the devices on the other', async (t) => {
  const company = await newCompany();
  const here = open(t, A, { token: await token(company, 'till-1') });
  const there = open(t, B, { token: await token(company, 'till-2') });
  const stranger = open(t, B, { token: await token(await newCompany()) });
  for (const { inbox } of [here, there, stranger]) assert.equal((await inbox.next())[0], 'sdk:init:ready');

  await ask('flags', { company, rollingDb: true });
  for (const { inbox } of [here, there]) {
    assert.deepEqual(await inbox.next(), ['sdk:updates', { flags: { ...off, rollingDbEnabled: true } }]);
  }

  await ask('day', { company, day: '20261130' });
  for (const { inbox } of [here, there]) {
    const { flags, manifest } = await inbox.until('sdk:updates');
    assert.equal(flags, undefined, 'what did not change is not sent');
    assert.equal(manifest.currentDayDb, 'daily_20261130');
  }

  await ask('day', { company, day: '20261201' });
  for (const { inbox } of [here, there]) {
    let update;
    do update = await inbox.until('sdk:updates');
    while (update.manifest.currentDayDb !== 'daily_20261201');
    assert.deepEqual(update.manifest.overlays, [{ businessDay: '20261130', dbName: 'daily_20261130' }]);
  }
  assert.deepEqual(stranger.inbox.left, [], 'another company is told nothing');
});

test('the client as it comes begins with polling and upgrades', async (t) => {
  const company = await newCompany();
  const { socket, inbox } = open(t, A, { token: await token(company) }, { transports: undefined });
  const upgraded = new Promise((resolve) => socket.io.engine.once('upgrade', resolve));
  assert.equal((await inbox.next())[0], 'sdk:init:ready');
  assert.equal((await upgraded).name, 'websocket');
  await ask('flags', { company, rollingDb: true });
  assert.equal((await inbox.next())[0], 'sdk:updates');
});

test('a device that can only poll is told the same', async (t) => {
  const company = await newCompany();
  const { inbox } = open(t, A, { token: await token(company) }, { transports: ['polling'] });
  assert.equal((await inbox.next())[0], 'sdk:init:ready');
  await ask('flags', { company, rollingDb: true });
  assert.equal((await inbox.next())[0], 'sdk:updates');
});

test('pages connect from the origins that are configured, and from no other', async (t) => {
  const auth = { token: await token(await newCompany()) };
  const from = (Origin) => open(t, A, auth, { extraHeaders: { Origin } }).inbox.next();
  assert.equal((await from('https://till.example'))[0], 'sdk:init:ready');
  assert.equal((await from('https://other.example'))[0], 'connect_error');

  const answer = async (Origin) => {
    const response = await fetch(`${A}/socket.io/?EIO=4&transport=polling`, { headers: { Origin } });
    await response.text();
    return response.headers.get('access-control-allow-origin');
  };
  assert.equal(await answer('https://till.example'), 'https://till.example');
  assert.equal(await answer('https://other.example'), null);
});
