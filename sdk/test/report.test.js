// What a device tells the server about documents that it could not deliver.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, on, Restaurant } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

const TODAY = '20261130';
const reports = (r, unsynced) => eventually(() => JSON.stringify(r.reported.unsynced) === JSON.stringify(unsynced));

test('the server hears what stays undelivered, and when it is delivered', async (t) => {
  const r = await Restaurant.open(t, store, TODAY);
  const rule = "function (doc) { if (doc.bad) { throw ({ forbidden: 'bad' }); } }";
  const design = await r.admin('PUT', `daily_${TODAY}/_design/rule`, { validate_doc_update: rule });
  let till = await r.device(t, { name: 'till', session: { flags: on } });
  await reports(r, {});
  await eventually(() => till.currentBusinessDay === TODAY);
  await till.put({ _id: 'bad', type: 'order', bad: true });
  await till.put({ _id: 'of core', type: 'product' });
  await reports(r, { [TODAY]: 1 });

  // A device that starts says it again, and goes on counting.
  const { sequence, counted } = r.reported;
  await till.close();
  till = await r.device(t, { name: 'till' });
  await eventually(() => r.reported.counted > counted);
  assert.deepEqual(r.reported.unsynced, { [TODAY]: 1 });
  assert.ok(r.reported.sequence > sequence);

  await r.admin('DELETE', `daily_${TODAY}/_design/rule?rev=${design.body.rev}`);
  await till.put({ ...(await till.get('bad')), bad: false });
  await reports(r, {});
});

test('a device that was set up anew goes on from what the server has counted', async (t) => {
  const r = await Restaurant.open(t, store, TODAY);
  r.reported = { sequence: 41, unsynced: { [TODAY]: 7 }, counted: 0 };
  await r.device(t, { session: { flags: on } });
  await reports(r, {});
  assert.equal(r.reported.sequence, 42);
});

test('a report is sent again after the server was away', async (t) => {
  const r = await Restaurant.open(t, store, TODAY);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === TODAY);
  await reports(r, {});
  r.disconnect();
  await till.put({ _id: 'o1', type: 'order' });
  r.refuses = (suffix) => (suffix === `daily_${TODAY}` ? 'day_not_begun' : null);
  r.connect();
  await reports(r, { [TODAY]: 1 });
  r.refuses = () => null;
  await reports(r, {});
});
