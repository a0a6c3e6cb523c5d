// Supabase's own client against the stand-in: keys, results and errors are what it expects of PostgREST.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import { PostgrestClient } from '@supabase/postgrest-js';

const { POSTGREST_URL, SECRET_KEY, PUBLISHABLE_KEY, SERVICE_JWT, ANON_JWT, AUTHENTICATED_JWT } = process.env;
const client = (headers) => new PostgrestClient(`${POSTGREST_URL}/rest/v1`, { headers, schema: 'public' });
const service = client({ apikey: SECRET_KEY });

const command = (fields) => ({
  p_command_id: randomUUID(),
  p_idempotency_key: randomUUID(),
  p_command_type: 'order.create',
  p_aggregate_type: 'order',
  p_aggregate_id: randomUUID(),
  p_payload: { total: 12.5, items: ['ñandú'] },
  p_occurred_at: null,
  p_expected_version: null,
  p_epoch: null,
  ...fields,
});

test('a function returns its JSON as data', async () => {
  const { data, error, status } = await service.rpc('continuity_fence_state');
  assert.equal(error, null);
  assert.equal(status, 200);
  assert.equal(data.mode, 'QUEUE');
  assert.equal(data.highWaterMark, null);
});

test('null is a result', async () => {
  const { data, error } = await service.rpc('continuity_read_snapshot', { p_snapshot_key: 'none' });
  assert.equal(error, null);
  assert.equal(data, null);
});

test('a command goes in once', async () => {
  const args = command();
  const first = await service.rpc('continuity_enqueue', args);
  assert.equal(first.error, null);
  assert.equal(first.data.deduplicated, false);
  const again = await service.rpc('continuity_enqueue', { ...args, p_command_id: randomUUID() });
  assert.deepEqual(again.data, { ...first.data, deduplicated: true });
});

test('a code raised by a function arrives as code and details', async () => {
  const { data, error, status } = await service.rpc('continuity_enqueue', command({ p_epoch: 99 }));
  assert.equal(data, null);
  assert.equal(status, 400);
  assert.equal(error.code, 'RC001');
  assert.match(error.details, /^[0-9]+$/);
});

test('a function that is not there is PGRST202, as is one with other arguments', async () => {
  for (const call of [service.rpc('continuity_none'), service.rpc('continuity_fence_state', { p_more: 1 })]) {
    const { error, status } = await call;
    assert.equal(status, 404);
    assert.equal(error.code, 'PGRST202');
  }
});

test('both kinds of service key are taken, and no other', async () => {
  const allowed = [{ apikey: SECRET_KEY }, { apikey: SERVICE_JWT, Authorization: `Bearer ${SERVICE_JWT}` }];
  for (const headers of allowed) {
    assert.equal((await client(headers).rpc('continuity_fence_state')).error, null);
  }
  const refused = [
    [{ apikey: PUBLISHABLE_KEY }, 401, '42501'],
    [{ apikey: ANON_JWT, Authorization: `Bearer ${ANON_JWT}` }, 401, '42501'],
    [{ apikey: ANON_JWT, Authorization: `Bearer ${AUTHENTICATED_JWT}` }, 403, '42501'],
    [{ apikey: SECRET_KEY, Authorization: `Bearer ${SECRET_KEY}` }, 401, 'PGRST301'],
    [{ apikey: 'wrong' }, 401, undefined],
    [{}, 401, undefined],
  ];
  for (const [headers, status, code] of refused) {
    const answer = await client(headers).rpc('continuity_fence_state');
    assert.equal(answer.status, status);
    assert.equal(answer.error.code, code);
  }
});

test('functions that change something are not called by GET', async () => {
  const { error, status } = await service.rpc('continuity_release_expired', {}, { get: true });
  assert.equal(status, 405);
  assert.match(error.code, /^PGRST|^25006$/);
});
