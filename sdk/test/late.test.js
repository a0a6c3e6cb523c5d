// A device whose day was sealed or dropped while it was away.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually, manifestOf, next, on, Restaurant, unsynced } from './restaurant.js';
import { startStore } from './store.js';

let store;
before(async () => (store = await startStore()));
after(() => store.stop());

const [OLD, NEW] = ['20261029', '20261130'];

/** A till that has sold offline on a day that the server has closed since. */
async function lateTill(t, code, options) {
  const r = await Restaurant.open(t, store, OLD);
  const till = await r.device(t, { session: { flags: on }, ...options });
  await eventually(() => till.currentBusinessDay === OLD);
  await till.put({ _id: 'old', type: 'order', status: 'open' });
  await till.put({ _id: 'void', type: 'order', status: 'open' });
  await r.admin('PUT', `daily_${OLD}/other`, { type: 'order', status: 'closed' });
  await eventually(async () => (await till.get('other')) && (await till.unsynced()).length === 0);
  r.disconnect();

  const receipt = { content_type: 'text/plain', data: Buffer.from('thank you').toString('base64') };
  await till.put({ ...(await till.get('old')), status: 'closed' });
  await till.put({ _id: 'new', type: 'payment', status: 'approved', _attachments: { receipt } });
  await till.put({ _id: 'dish', type: 'product' });
  await till.remove(await till.get('void'));
  assert.deepEqual(await unsynced(till), { [`daily_${OLD}`]: 3, core: 1 });

  await r.rotate(NEW);
  r.refuses = (suffix) => (suffix === `daily_${OLD}` ? code : null);
  return { r, till };
}

async function checkCarried(r) {
  const current = `daily_${NEW}`;
  for (const [id, generation] of [['old', 3], ['new', 2]]) {
    const doc = await eventually(() => r.read(current, `${id}?revs=true`));
    assert.equal(doc.rollingdFrom, OLD);
    assert.equal(doc._revisions.start, generation);
    assert.equal(doc._revisions.ids.length, generation, 'the history came along');
  }
  const receipt = await r.store.admin('GET', `/${r.name}_${current}/new?attachments=true`);
  assert.equal(Buffer.from(receipt.body._attachments.receipt.data, 'base64').toString(), 'thank you');
  const tombstone = await eventually(async () => {
    const { body } = await r.admin('POST', `${current}/_bulk_get`, { docs: [{ id: 'void' }] });
    return body.results[0].docs[0].ok;
  });
  assert.deepEqual([tombstone._deleted, tombstone.type, tombstone.rollingdFrom], [true, 'order', OLD]);
  assert.equal(await r.read(current, 'other'), null, 'what the server has already is not carried');
  assert.equal(await r.read(current, 'dish'), null);
  assert.equal((await r.read(`daily_${OLD}`, 'old')).status, 'open');
}

for (const code of ['day_sealed', 'day_dropped', 'day_unknown']) {
  test(`documents go on in the current day: ${code}`, async (t) => {
    const { r, till } = await lateTill(t, code);
    const [refused, late] = [next(till, 'refused'), next(till, 'late')];
    r.connect();
    assert.deepEqual(await refused, { suffix: `daily_${OLD}`, businessDay: OLD, code, reason: `refused: ${code}` });
    const report = {
      suffix: `daily_${OLD}`,
      businessDay: OLD,
      documents: 3,
      into: [`daily_${NEW}`],
      code,
      reason: `refused: ${code}`,
    };
    assert.deepEqual(await late, report);
    assert.deepEqual(await till.late(), [report]);
    await checkCarried(r);
    await eventually(async () => (await till.unsynced()).length === 0);
    assert.equal((await till.get('old')).status, 'closed');
  });
}

test('a refusal for another reason carries nothing', async (t) => {
  const { r, till } = await lateTill(t, 'restaurant_unknown');
  r.connect();
  await eventually(async () => (await till.unsynced()).some(({ refusal }) => refusal?.code === 'restaurant_unknown'));
  await eventually(() => r.read('core', 'dish'));
  await eventually(async () => till.currentBusinessDay === NEW);
  assert.deepEqual(await till.late(), []);
  await eventually(async () => JSON.stringify(await unsynced(till)) === `{"daily_${OLD}":3}`);
  r.refuses = () => null;
  await eventually(async () => (await r.read(`daily_${OLD}`, 'old')).status === 'closed');
  await eventually(async () => (await till.unsynced()).length === 0);
});

test('two devices that carry the same revision make one', async (t) => {
  const r = await Restaurant.open(t, store, OLD);
  const tills = [await r.device(t, { session: { flags: on } }), await r.device(t, { session: { flags: on } })];
  await eventually(() => tills.every((till) => till.currentBusinessDay === OLD));
  r.disconnect();
  for (const till of tills) await till.put({ _id: 'same', type: 'order', status: 'closed' });
  await r.rotate(NEW);
  r.refuses = (suffix) => (suffix === `daily_${OLD}` ? 'day_sealed' : null);
  r.connect();
  await eventually(async () => (await Promise.all(tills.map((till) => till.unsynced()))).flat().length === 0);
  const doc = await r.read(`daily_${NEW}`, 'same?conflicts=true');
  assert.equal(doc.rollingdFrom, OLD);
  assert.equal(doc._conflicts, undefined);
});

test('a day that the manifest still names is waited for', async (t) => {
  const r = await Restaurant.open(t, store, OLD);
  const till = await r.device(t, { session: { flags: on } });
  await eventually(() => till.currentBusinessDay === OLD);
  r.refuses = (suffix) => (suffix === `daily_${OLD}` ? 'day_sealed' : null);
  const refused = next(till, 'refused');
  r.disconnect();
  r.connect();
  await till.put({ _id: 'o1', type: 'order', status: 'closed' });
  await refused;
  assert.deepEqual(await unsynced(till), { [`daily_${OLD}`]: 1 });
  r.refuses = () => null;
  await eventually(() => r.read(`daily_${OLD}`, 'o1'));
  assert.deepEqual(await till.late(), []);
});
