// A device before, during and after the switch to core and day databases.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, manifestOf, next, off, on, Restaurant, unsynced } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

const DAY = '20261130';

test('with everything off there is the single database and nothing else', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  for (const flags of [undefined, off, { ...on, rollingDbDeviceRouted: false }, { rollingDb: 'true' }]) {
    r.requests.length = 0;
    const till = await r.device(t, { session: { flags, manifest: manifestOf(1, DAY) } });
    assert.equal(till.rolling, false);
    const ids = [`o-${t.name}-${String(flags?.rollingDb)}${flags === off}`, `p${Object.keys(flags ?? {}).length}${flags === off}`];
    await till.put({ _id: ids[0], type: 'order' });
    await till.put({ _id: ids[1], type: 'product' });
    await eventually(async () => (await r.read('legacy', ids[0])) && r.read('legacy', ids[1]));
    await till.close();
    assert.ok(!r.requests.some((line) => !line.includes('/db/legacy')), r.requests.join('\n'));
  }
});

test('the switch loses nothing that was written offline', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  await r.admin('PUT', 'core/p1', { type: 'product' });
  const till = await r.device(t, { session: { flags: off } });
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'open' });
  await till.put({ _id: 'p2', type: 'product' });

  await till.accept({ flags: on, manifest: manifestOf(1, DAY) });
  assert.deepEqual(await unsynced(till), { legacy: 2 });
  assert.ok(await till.get('p2'), 'the catalogue is there until core is');
  await till.put({ _id: 'o2', type: 'order', status: 'open' });
  await till.put({ ...(await till.get('o1')), status: 'closed' });
  assert.deepEqual(await unsynced(till), { legacy: 2, [`daily_${DAY}`]: 1 });

  r.connect();
  await eventually(async () => (await r.read('legacy', 'o1'))?.status === 'closed' && (await r.read('legacy', 'p2')));
  await eventually(() => r.read(`daily_${DAY}`, 'o2'));
  assert.equal(await r.read('legacy', 'o2'), null);
  await eventually(() => till.get('p1'));
  await eventually(async () => (await till.unsynced()).length === 0);

  await r.rotate(DAY, '20261201');
  await till.accept({ manifest: manifestOf(9, DAY, '20261201') });
  await eventually(async () => (await till.get('o1')) === null);
  assert.ok(await till.get('o2'));
});

test('a routed device sells before it knows the day', async (t) => {
  const r = await Restaurant.open(t, store);
  r.disconnect();
  const till = await r.device(t, { session: { flags: on } });
  await till.put({ _id: 'o1', type: 'order', status: 'open' });
  await till.put({ _id: 'p1', type: 'product' });
  assert.equal(till.currentBusinessDay, null);
  r.connect();
  await eventually(async () => (await r.read('legacy', 'o1')) && r.read('core', 'p1'));
  const rotated = next(till, 'rotate');
  await r.rotate(DAY);
  assert.deepEqual(await rotated, { from: null, to: DAY });
  assert.ok(await till.get('o1'));
});

test('switched off, everything goes to the single database again', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'open' });
  await till.put({ _id: 'p1', type: 'product' });
  await till.accept({ flags: off });
  await till.put({ _id: 'o2', type: 'order', status: 'open' });

  r.refuses = (suffix) => (suffix === 'legacy' ? null : 'not_routed');
  const late = next(till, 'late');
  r.connect();
  assert.deepEqual((await late).into, ['legacy']);
  await eventually(async () => (await r.read('legacy', 'o2')) && r.read('legacy', 'p1'));
  const carried = await eventually(() => r.read('legacy', 'o1'));
  assert.deepEqual([carried.status, carried.rollingdFrom], ['open', DAY]);
  await eventually(async () => (await till.unsynced()).length === 0);
});

/** A till of a company that was switched: this order is in its legacy copy, and in the day to which the server carried it. */
async function switchedWith(t, ...orders) {
  const r = await Restaurant.open(t, store, DAY);
  const till = await r.device(t, { session: { flags: off } });
  for (const order of orders) await till.put(order);
  await eventually(async () => (await till.unsynced()).length === 0);
  for (const { _id } of orders) {
    const { body } = await r.admin('GET', `legacy/${_id}?revs=true`);
    await r.admin('POST', `daily_${DAY}/_bulk_docs`, { docs: [body], new_edits: false });
  }
  const fetched = Promise.all(orders.map(({ _id }) => next(till, 'change', ({ id, suffix }) => id === _id && suffix === `daily_${DAY}`)));
  await till.accept({ flags: on, manifest: manifestOf(1, DAY) });
  await fetched;
  return till;
}

test('an order that was carried is found as it is in the day', async (t) => {
  const open = (id) => ({ _id: id, type: 'order', status: 'open' });
  const till = await switchedWith(t, open('o1'), open('o2'), open('o3'), open('o4'));
  await till.put({ ...(await till.get('o1')), status: 'closed' });
  await till.remove(await till.get('o2'));
  const ids = async (request) => (await till.find({ selector: { type: 'order', status: 'open' }, ...request })).map(({ _id }) => _id);
  assert.deepEqual(await ids(), ['o3', 'o4']);
  assert.deepEqual(await ids({ limit: 2 }), ['o3', 'o4']);
  assert.deepEqual(await ids({ limit: 1, skip: 1 }), ['o4']);
});

test('what was carried out of a day is not delivered there as well when the day is back', async (t) => {
  const r = await Restaurant.open(t, store, DAY);
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await eventually(() => till.currentBusinessDay === DAY);
  await till.put({ _id: 'before', type: 'order', status: 'closed' });
  await eventually(async () => (await till.unsynced()).length === 0);
  await r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await till.accept({ flags: off });
  r.refuses = (suffix) => (suffix === 'legacy' ? null : 'not_routed');
  const late = next(till, 'late');
  await r.connect();
  await late;
  await eventually(async () => (await till.unsynced()).length === 0);

  r.refuses = () => null;
  await till.accept({ flags: on });
  await eventually(() => till.get('before'));
  await r.disconnect();
  await till.put({ _id: 'o2', type: 'order', status: 'closed' });
  await till.close();
  till = await r.device(t, { name: 'till' });
  await r.connect();
  await eventually(() => r.read(`daily_${DAY}`, 'o2'));
  await eventually(async () => (await till.unsynced()).length === 0);
  assert.equal(await r.read(`daily_${DAY}`, 'o1'), null);
  assert.equal((await r.read('legacy', 'o1')).rollingdFrom, DAY);
  assert.equal((await till.get('o1')).status, 'closed', 'the legacy copy is read on the day of the switch');
});
