// What an app does wrong must not end what delivers its documents.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, manifestOf, next, on, Restaurant } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

const DAY = '20261130';

/** Collects what nobody has caught instead of failing the test. */
function uncaught(t) {
  const errors = [];
  const others = process.listeners('uncaughtException');
  process.removeAllListeners('uncaughtException');
  process.on('uncaughtException', (error) => errors.push(error.message));
  t.after(() => {
    process.removeAllListeners('uncaughtException');
    for (const other of others) process.on('uncaughtException', other);
  });
  return errors;
}

test('listeners that throw stop neither feeds nor replications', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  const errors = uncaught(t);
  for (const event of ['change', 'refused', 'rotate', 'late']) {
    till.on(event, () => {
      throw new Error(event);
    });
  }
  r.refuses = (suffix) => (suffix === `daily_${DAY}` ? 'restaurant_unknown' : null);
  await r.disconnect();
  await r.connect();
  const refused = next(till, 'refused');
  const changes = ['o1', 'o2'].map((id) => next(till, 'change', (change) => change.id === id));
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await refused;
  r.refuses = () => null;
  await till.put({ _id: 'o2', type: 'order', status: 'closed' });
  await Promise.all(changes);
  await eventually(async () => (await r.read(`daily_${DAY}`, 'o1')) && r.read(`daily_${DAY}`, 'o2'));
  const rotated = next(till, 'rotate');
  await r.rotate(DAY, '20261201');
  await rotated;
  await eventually(() => errors.includes('change') && errors.includes('refused') && errors.includes('rotate'));
});

test('a closed database answers nothing', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  await till.put({ _id: 'o1', type: 'order' });
  const closing = till.close();
  const closed = /the database is closed/;
  const asks = [() => till.get('o1'), () => till.get('none'), () => till.find({ selector: { type: 'order' } })];
  // Whatever is asked meanwhile is answered, or refused for that reason.
  const meanwhile = [];
  let done = false;
  closing.then(() => (done = true));
  while (!done) {
    for (const ask of asks) meanwhile.push(ask().catch((error) => assert.match(error.message, closed)));
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(meanwhile);
  for (const ask of asks) await assert.rejects(ask(), closed);
  await assert.rejects(till.put({ _id: 'o2', type: 'order' }), closed);
});

test('a token supplier that never answers keeps nobody from selling', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  let asked = 0;
  const token = () => (++asked === 1 ? 't1' : new Promise(() => {}));
  const till = await r.device(t, { token, session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  r.tokens = new Set();
  await till.put({ _id: 'o1', type: 'order' });
  await eventually(() => asked > 1);
  await till.accept({ manifest: manifestOf(50, '20261201') });
  await till.put({ _id: 'o2', type: 'order' });
  assert.deepEqual((await till.unsynced()).map(({ suffix }) => suffix), ['daily_20261201', `daily_${DAY}`]);
  await till.close();
});

test('what the server would never take is not written', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  const order = (id, more) => ({ _id: id, type: 'order', status: 'closed', ...more });
  for (const [status, doc] of [
    [413, order('large', { text: 'x'.repeat(8_000_000) })],
    [413, order('wide', { text: 'ñ'.repeat(4_000_000) })],
    [400, order('half', { lines: [{ text: 'a\ud83cb' }] })],
    [400, order('field', { 'a\udf7a': 1 })],
    [400, order('id\udf7a')],
    [400, order('file', { _attachments: { '\ud83c': { content_type: 'text/plain', data: '' } } })],
  ]) {
    await assert.rejects(till.put(doc), { status }, doc._id);
    assert.equal(await till.get(doc._id), null);
  }
  await till.put(order('fits', { text: 'x'.repeat(3_000_000), drink: '\u{1f37a}', escaped: '\\ud83c' }));
  await eventually(() => r.read(`daily_${DAY}`, 'fits'));
});

test('a push that is too large is told', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  r.tooLarge = (path) => path.includes('_bulk_docs');
  const refused = next(till, 'refused');
  await till.put({ _id: 'o1', type: 'order' });
  assert.deepEqual((({ suffix, code }) => [suffix, code])(await refused), [`daily_${DAY}`, 'too_large']);
  assert.equal((await till.unsynced())[0].refusal.code, 'too_large');
  r.tooLarge = () => false;
  await eventually(async () => (await till.unsynced()).length === 0);
});
