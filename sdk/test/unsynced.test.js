// What a device knows of what the server lacks, across restarts without a network.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, manifestOf, on, Restaurant, unsynced } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

const [YESTERDAY, TODAY] = ['20261129', '20261130'];
const idle = (till) => eventually(async () => (await till.unsynced()).length === 0);

test('restarts without a network keep documents, flags, manifest and counts', async (t) => {
  const r = await Restaurant.open(t, store, YESTERDAY, TODAY);
  for (let i = 0; i < 20; i++) await r.admin('PUT', `daily_${TODAY}/theirs${i}`, { type: 'order' });
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await eventually(() => till.get('theirs19'));
  await till.put({ _id: 'mine', type: 'order', status: 'open' });
  await idle(till);
  r.disconnect();

  const counts = {};
  for (let start = 1; start <= 3; start++) {
    await till.close();
    till = await r.device(t, { name: 'till' });
    assert.deepEqual([till.rolling, till.currentBusinessDay], [true, TODAY]);
    assert.deepEqual(await unsynced(till), counts);
    await till.put({ ...(await till.get('mine')), start });
    await till.put({ _id: `o${start}`, type: 'order' });
    await till.put({ ...(await till.get('theirs0')), start });
    counts[`daily_${TODAY}`] = 2 + start;
    assert.deepEqual(await unsynced(till), counts);
  }
  r.connect();
  await idle(till);
  assert.equal((await r.read(`daily_${TODAY}`, 'mine')).start, 3);
  assert.ok((await r.read(`daily_${TODAY}`, 'o1')) && (await r.read(`daily_${TODAY}`, 'o3')));
});

test('a day that was left before a restart is delivered after it', async (t) => {
  const r = await Restaurant.open(t, store, YESTERDAY);
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await eventually(() => till.currentBusinessDay === YESTERDAY);
  await idle(till);
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await till.accept({ manifest: manifestOf(50, TODAY) });
  await till.close();

  await r.rotate(TODAY);
  till = await r.device(t, { name: 'till' });
  assert.deepEqual(await unsynced(till), { [`daily_${YESTERDAY}`]: 1 });
  r.connect();
  await eventually(() => r.read(`daily_${YESTERDAY}`, 'o1'));
  await eventually(async () => (await till.get('o1')) === null);
  await till.close();

  till = await r.device(t, { name: 'till' });
  assert.equal(await till.get('o1'), null);
  assert.equal(till.currentBusinessDay, TODAY);
});

test('a device that is told to wait asks again whether everything has arrived', async (t) => {
  const r = await Restaurant.open(t, store, TODAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === TODAY);
  await idle(till);
  // The push needs one answer to _revs_diff, and the device's own question another one.
  let left = 1;
  r.busy = (path) => path.endsWith('_revs_diff') && left-- <= 0 && left > -4;
  await till.put({ _id: 'o1', type: 'order' });
  await idle(till);
  assert.ok(left <= -4, `${left}`);
});

test('a device that is away for long keeps no feeds of what it has tried', async (t) => {
  const crowded = [];
  const listen = (warning) => warning.name === 'MaxListenersExceededWarning' && warning.message.includes('[Changes]') && crowded.push(warning.message);
  process.on('warning', listen);
  t.after(() => process.off('warning', listen));
  const r = await Restaurant.open(t, store, TODAY);
  const till = await r.device(t, { session: { flags: on }, retryDelay: () => 5 });
  await eventually(() => till.currentBusinessDay === TODAY);
  let refused = 0;
  r.busy = (path) => path.endsWith('_revs_diff') && ++refused > 0;
  await till.put({ _id: 'o1', type: 'order' });
  await eventually(() => refused > 30);
  r.busy = () => false;
  await idle(till);
  assert.deepEqual(crowded, []);
});

test('a late day is carried after a restart', async (t) => {
  const r = await Restaurant.open(t, store, YESTERDAY);
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await eventually(() => till.currentBusinessDay === YESTERDAY);
  await idle(till);
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await till.close();

  await r.rotate(TODAY);
  r.refuses = (suffix) => (suffix === `daily_${YESTERDAY}` ? 'day_dropped' : null);
  r.connect();
  till = await r.device(t, { name: 'till' });
  await eventually(async () => (await r.read(`daily_${TODAY}`, 'o1'))?.rollingdFrom === YESTERDAY);
  await idle(till);
  await till.close();
  till = await r.device(t, { name: 'till' });
  assert.deepEqual((await till.late()).map(({ documents }) => documents), [1]);
  assert.deepEqual(await unsynced(till), {});
});

test('a document that the server refuses by itself stays unsynced', async (t) => {
  const r = await Restaurant.open(t, store, TODAY);
  const rule = "function (doc) { if (doc.bad) { throw ({ forbidden: 'bad' }); } }";
  const design = await r.admin('PUT', `daily_${TODAY}/_design/rule`, { validate_doc_update: rule });
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await eventually(() => till.currentBusinessDay === TODAY);
  await till.put({ _id: 'bad', type: 'order', bad: true });
  await till.put({ _id: 'good', type: 'order' });
  await eventually(() => r.read(`daily_${TODAY}`, 'good'));
  await eventually(async () => (await unsynced(till))[`daily_${TODAY}`] === 1);
  await till.close();
  till = await r.device(t, { name: 'till' });
  assert.deepEqual(await unsynced(till), { [`daily_${TODAY}`]: 1 });
  await r.admin('DELETE', `daily_${TODAY}/_design/rule?rev=${design.body.rev}`);
  await till.put({ ...(await till.get('bad')), bad: false });
  await idle(till);
});
