import assert from 'node:assert/strict';
import { test } from 'node:test';
import { A, B, ask, newCompany, open, token } from './server.js';

const refusals = [
  ['no token', async () => ({}), 'invalid'],
  ['no token that is text', async () => ({ token: { $gt: '' } }), 'invalid'],
  ['a made-up token', async () => ({ token: 'made-up' }), 'invalid'],
  ['an expired token', async () => ({ token: await token(await newCompany(), 'till-1', -1) }), 'expired'],
];
for (const [name, auth, code] of refusals) {
  test(`${name} is refused`, async (t) => {
    const { socket, inbox } = open(t, A, await auth());
    assert.deepEqual(await inbox.next(), ['connect_error', { code }]);
    assert.equal(socket.connected, false);
    assert.deepEqual(inbox.left, []);
  });
}

test('a device whose token expires is told, then disconnected', async (t) => {
  const company = await newCompany();
  const first = await token(company);
  const { inbox } = open(t, A, { token: first });
  await inbox.until('sdk:init:ready');
  await ask('expire', { company, token: first });
  assert.equal((await inbox.until('sdk:auth:expired')).graceSeconds, 1);
  await ask('flags', { company, rollingDb: true });
  assert.deepEqual(await inbox.next(), ['disconnect', 'io server disconnect'], 'nothing is told without a token');
});

test('a fresh token in the grace brings all that was missed', async (t) => {
  const company = await newCompany();
  const first = await token(company);
  const { socket, inbox } = open(t, B, { token: first });
  await inbox.until('sdk:init:ready');
  await ask('expire', { company, token: first });
  await inbox.until('sdk:auth:expired');
  await ask('flags', { company, rollingDb: true });
  assert.deepEqual(await socket.emitWithAck('sdk:auth', { token: await token(company) }), { ok: true });
  const [event, state] = await inbox.next();
  assert.equal(event, 'sdk:init:ready');
  assert.equal(state.flags.rollingDbEnabled, true);
  await ask('flags', { company, rollingDb: false });
  assert.equal((await inbox.next())[0], 'sdk:updates');
});

test('a fresh token in time changes nothing else', async (t) => {
  const company = await newCompany();
  const first = await token(company);
  const { socket, inbox } = open(t, A, { token: first });
  await inbox.until('sdk:init:ready');
  assert.deepEqual(await socket.emitWithAck('sdk:auth', { token: await token(company) }), { ok: true });
  await ask('expire', { company, token: first });
  await ask('flags', { company, rollingDb: true });
  assert.equal((await inbox.next())[0], 'sdk:updates', 'nothing is said of the first one');
  assert.equal(socket.connected, true);
});

test('a fresh token of another device, or a bad one, is refused and the old one stays', async (t) => {
  const company = await newCompany();
  const { socket, inbox } = open(t, A, { token: await token(company, 'till-1') });
  await inbox.until('sdk:init:ready');
  for (const [bad, code] of [
    [await token(company, 'till-2'), 'invalid'],
    [await token(await newCompany(), 'till-1'), 'invalid'],
    [await token(company, 'till-1', -1), 'expired'],
    ['made-up', 'invalid'],
    [undefined, 'invalid'],
  ]) {
    assert.deepEqual(await socket.emitWithAck('sdk:auth', { token: bad }), { ok: false, code });
  }
  socket.emit('sdk:auth');
  socket.emit('sdk:auth', 'not an object', 7);
  await ask('flags', { company, rollingDb: true });
  assert.equal((await inbox.next())[0], 'sdk:updates');
});

test('a revoked device is disconnected on every replica, the others stay', async (t) => {
  const company = await newCompany();
  const revoked = [open(t, A, { token: await token(company, 'lost') }), open(t, B, { token: await token(company, 'lost') })];
  const kept = open(t, A, { token: await token(company, 'till-1') });
  for (const { inbox } of [...revoked, kept]) await inbox.until('sdk:init:ready');
  await ask('revoke', { company, device: 'lost' });
  for (const { inbox } of revoked) {
    assert.equal((await inbox.next())[0], 'sdk:auth:revoked');
    assert.deepEqual(await inbox.next(), ['disconnect', 'io server disconnect']);
  }
  await ask('flags', { company, rollingDb: true });
  assert.equal((await kept.inbox.next())[0], 'sdk:updates');
});
