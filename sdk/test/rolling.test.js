// A device of a restaurant whose days rotate.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, manifestOf, next, on, Restaurant, unsynced } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

test('documents go to the database of their type and to the other devices', async (t) => {
  const r = await Restaurant.open(t, store, '20261129', '20261130');
  const [till, bar] = [await r.device(t, { session: { flags: on } }), await r.device(t, { session: { flags: on } })];
  await eventually(() => till.currentBusinessDay === '20261130' && bar.currentBusinessDay === '20261130');
  const seen = Promise.all(['o1', 'p1', 'x1'].map((id) => next(bar, 'change', (change) => change.id === id)));
  await till.put({ _id: 'o1', type: 'order', status: 'open' });
  await till.put({ _id: 'p1', type: 'product' });
  await till.put({ _id: 'x1' });
  assert.deepEqual((await seen).map(({ suffix, businessDay }) => [suffix, businessDay]), [
    ['daily_20261130', '20261130'],
    ['core', null],
    ['core', null],
  ]);
  assert.ok(await r.read('daily_20261130', 'o1'));
  assert.ok(await r.read('core', 'p1'));
  assert.equal((await bar.get('o1')).status, 'open');
  assert.equal(await bar.get('o2'), null);
  assert.ok(!r.requests.some((line) => line.includes('/db/legacy/_changes')));
});

test("yesterday's order is finished where it is", async (t) => {
  const r = await Restaurant.open(t, store, '20261129');
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === '20261129');
  await till.put({ _id: 'o1', type: 'order', status: 'open' });
  await till.put({ _id: 'o2', type: 'order', status: 'open' });
  const rotated = next(till, 'rotate');
  await r.rotate('20261129', '20261130');
  assert.deepEqual(await rotated, { from: '20261129', to: '20261130' });

  await till.put({ ...(await till.get('o1')), status: 'closed' });
  await till.remove(await till.get('o2'));
  await till.put({ _id: 'o3', type: 'order', status: 'open' });
  await eventually(async () => (await r.read('daily_20261129', 'o1'))?.status === 'closed' && r.read('daily_20261130', 'o3'));
  await eventually(async () => (await r.read('daily_20261129', 'o2')) === null);
  assert.equal(await r.read('daily_20261130', 'o1'), null);
  assert.equal(await till.get('o2'), null);
  await assert.rejects(till.put({ _id: 'o1', type: 'order' }), { status: 409 });
});

test('find merges what is mounted', async (t) => {
  const r = await Restaurant.open(t, store, '20261129', '20261130');
  for (const [suffix, id, total] of [['daily_20261129', 'a', 3], ['daily_20261130', 'b', 1], ['daily_20261130', 'c', 2]]) {
    await r.admin('PUT', `${suffix}/${id}`, { type: 'order', total });
  }
  const till = await r.device(t, { session: { flags: on } });
  await eventually(async () => (await till.get('a')) && (await till.get('b')) && till.get('c'));
  assert.deepEqual(
    await till.find({ selector: { type: 'order', total: { $gt: 1 } }, fields: ['_id'] }),
    [{ _id: 'c' }, { _id: 'a' }],
  );
  assert.equal((await till.find({ selector: { type: 'order' }, skip: 1, limit: 1 })).length, 1);
});

test('find sorts by an index that every database has, by paths too', async (t) => {
  const r = await Restaurant.open(t, store, '20261129');
  const indexes = [{ index: { fields: ['table.number'] } }];
  const till = await r.device(t, { session: { flags: on }, indexes });
  await eventually(() => till.currentBusinessDay === '20261129');
  const place = (id, number) => till.put({ _id: id, type: 'order', table: { number, name: 'x' } });
  await place('a', 3);
  await place('b', 1);
  const rotated = next(till, 'rotate');
  await r.rotate('20261129', '20261130');
  await rotated;
  await place('c', 2);
  const request = { selector: { 'table.number': { $gt: 0 } }, sort: ['table.number'], fields: ['_id', 'table.number', 'none'] };
  assert.deepEqual(await till.find(request), [
    { _id: 'b', table: { number: 1 } },
    { _id: 'c', table: { number: 2 } },
    { _id: 'a', table: { number: 3 } },
  ]);
  await eventually(async () => (await till.unsynced()).length === 0);
});

test('a day that left the manifest leaves the device once the server has all of it', async (t) => {
  const r = await Restaurant.open(t, store, '20261128');
  const till = await r.device(t, { session: { flags: on } });
  await eventually(async () => till.currentBusinessDay === '20261128' && (await till.unsynced()).length === 0);
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await till.accept({ manifest: manifestOf(100, '20261129', '20261130') });
  assert.deepEqual(await unsynced(till), { daily_20261128: 1 });
  assert.ok(await till.get('o1'), 'what only the device has can be read');
  r.connect();
  for (const day of ['20261129', '20261130']) await r.create(`daily_${day}`);
  await eventually(async () => (await till.get('o1')) === null);
  assert.ok(await r.read('daily_20261128', 'o1'));
});

test('a manifest that is damaged or older changes nothing', async (t) => {
  const r = await Restaurant.open(t, store);
  const till = await r.device(t, { session: { flags: on, manifest: manifestOf(7, '20261130') } });
  assert.equal(till.currentBusinessDay, '20261130');
  for (const manifest of [null, {}, manifestOf(6, '20261129'), { ...manifestOf(8, '20261201'), schemaVersion: 2 }]) {
    await till.accept({ manifest });
    assert.equal(till.currentBusinessDay, '20261130');
  }
  await till.accept({ manifest: manifestOf(7, '20261130', '20261201') });
  assert.equal(till.currentBusinessDay, '20261201', 'a session is told moves before core is');
});

test('a repaired manifest of core counts, though its generation is lower', async (t) => {
  const r = await Restaurant.open(t, store, '20261129');
  const { _rev } = await r.read('core', 'day_manifest');
  await r.admin('PUT', 'core/day_manifest', { ...manifestOf(2 ** 40, '20261129'), _rev });
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === '20261129');
  await r.rotate('20261129', '20261130');
  await eventually(() => till.currentBusinessDay === '20261130');
});

test('an expired token is renewed once for all', async (t) => {
  const r = await Restaurant.open(t, store, '20261130');
  const asked = [];
  const token = async (refused) => (asked.push(refused), refused === null ? 't0' : 't1');
  const till = await r.device(t, { token, session: { flags: on } });
  await eventually(() => till.currentBusinessDay === '20261130');
  await till.put({ _id: 'o1', type: 'order' });
  await eventually(() => r.read('daily_20261130', 'o1'));
  assert.deepEqual(asked, [null, 't0']);
  r.tokens = new Set();
  await till.put({ _id: 'o2', type: 'order' });
  await eventually(() => asked.length > 3);
  r.tokens = new Set(['t1']);
  await eventually(() => r.read('daily_20261130', 'o2'));
});
