// PouchDB 9 through the device proxy: whatever becomes of its day or its token,
// a till loses no document, and creates no database.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ask, call, ended, event, ids, issue, local, refusal, remote } from './shop.js'

test('documents go both ways, also odd ones, in batches', async (t) => {
  const { suffix, name } = await ask('day')
  const token = await issue()
  const docs = Array.from({ length: 250 }, (_, i) => ({ _id: `order:${String(i).padStart(4, '0')}`, i }))
  docs.push({ _id: 'slash/and space+plus', v: 'a\u0000b' }, { _id: 'é😀?#%25', n: 1.5 })
  const till = await local(t, ...docs)
  assert.equal((await till.replicate.to(remote(suffix, token), { batch_size: 50 })).docs_written, 252)
  assert.equal((await ids(name)).length, 252)
  const other = await local(t)
  assert.equal((await other.replicate.from(remote(suffix, token), { batch_size: 70 })).docs_written, 252)
  assert.equal((await other.get('slash/and space+plus')).v, 'a\u0000b')
  assert.equal((await till.replicate.to(remote(suffix, token))).docs_read, 0, 'the checkpoint holds')

  const direct = remote(suffix, token)
  const doc = await direct.get('slash/and space+plus')
  await direct.put({ ...doc, v: 2 })
  assert.equal((await direct.get('é😀?#%25')).n, 1.5)
  await direct.remove(await direct.get('order:0000'))
  await other.replicate.from(direct)
  assert.equal((await other.get('slash/and space+plus')).v, 2)
  await assert.rejects(other.get('order:0000'), { status: 404 })
})

test('live in both directions', async (t) => {
  const { suffix, name } = await ask('day')
  const till = await local(t, { _id: 'first' })
  const sync = till.sync(remote(suffix, await issue()), { live: true, retry: true })
  await event(sync, 'change', (c) => c.direction === 'push')
  assert.deepEqual(await ids(name), ['first'])
  const pulled = event(sync, 'change', (c) => c.direction === 'pull' && c.change.docs.some((d) => d._id === 'theirs'))
  await call('PUT', `/${name}/theirs`, { n: 1 })
  await pulled
  const end = ended(sync)
  sync.cancel()
  await end
})

test('attachments', async (t) => {
  const { suffix } = await ask('day')
  const token = await issue()
  const picture = Buffer.alloc(3 * 1024 * 1024, 'photo')
  const till = await local(t, {
    _id: 'receipt',
    _attachments: {
      'a/b c.txt': { content_type: 'text/plain', data: Buffer.from('hello').toString('base64') },
      'photo.jpg': { content_type: 'image/jpeg', data: picture.toString('base64') }
    }
  })
  await till.replicate.to(remote(suffix, token))
  const direct = remote(suffix, token)
  assert.equal(String(await direct.getAttachment('receipt', 'a/b c.txt')), 'hello')
  const { _rev } = await direct.get('receipt')
  await direct.putAttachment('receipt', 'more.bin', _rev, picture, 'application/octet-stream')
  const other = await local(t)
  await other.replicate.from(direct)
  for (const file of ['photo.jpg', 'more.bin']) {
    assert.ok(picture.equals(await other.getAttachment('receipt', file)), file)
  }
})

test('conflicts are kept on both sides', async (t) => {
  const { suffix } = await ask('day')
  const token = await issue()
  const one = await local(t, { _id: 'order', by: 'one' })
  const two = await local(t, { _id: 'order', by: 'two' })
  await one.sync(remote(suffix, token))
  await two.sync(remote(suffix, token))
  await one.sync(remote(suffix, token))
  const [a, b] = [await one.get('order', { conflicts: true }), await two.get('order', { conflicts: true })]
  assert.deepEqual(a, b)
  assert.equal(a._conflicts.length, 1)
})

test('a day that is sealed under a live till keeps what is unsent on the till', async (t) => {
  const { suffix, name, day } = await ask('day')
  const token = await issue()
  const till = await local(t, { _id: 'before' })
  const push = till.replicate.to(remote(suffix, token), { live: true, retry: true })
  await event(push, 'change')
  const end = ended(push)
  await ask('seal', { day })
  await till.put({ _id: 'after' })
  const refused = refusal(await end)
  assert.equal(refused.status, 403)
  // CouchDB may refuse before the proxy has heard of it.
  assert.match(refused.code, /^(day_sealed|database_closed)$/)
  assert.match(refused.reason, /documents stay on the device/)
  assert.deepEqual(await ids(name), ['before'])

  await ask('reopen', { day })
  assert.equal((await till.replicate.to(remote(suffix, token))).docs_written, 1, 'the checkpoint had not moved')
  assert.deepEqual(await ids(name), ['after', 'before'])
})

test('a day that was dropped while the till was offline is not created again', async (t) => {
  const { suffix, name, day } = await ask('day')
  const token = await issue()
  const till = await local(t, { _id: 'sent' })
  await till.replicate.to(remote(suffix, token))
  await till.put({ _id: 'late' })
  await ask('drop', { day })
  for (const options of [{}, { live: true, retry: true }]) {
    const refused = refusal(await ended(till.replicate.to(remote(suffix, token), options)))
    assert.equal(refused.status, 403)
    assert.equal(refused.code, 'day_dropped')
  }
  await assert.rejects(remote(suffix, token).info(), { status: 403 })
  await assert.rejects(remote(suffix, token).destroy())
  assert.equal((await call('GET', `/${name}`)).status, 404)
  assert.deepEqual((await till.allDocs()).rows.map((r) => r.id), ['late', 'sent'])
  const current = await ask('day')
  await till.replicate.to(remote(current.suffix, token))
  assert.deepEqual(await ids(current.name), ['late', 'sent'], 'they can be brought to another day')
})

test('a database that is missing for a while is waited for, not created', async (t) => {
  const { suffix, name } = await ask('day')
  await call('DELETE', `/${name}`)
  const till = await local(t, { _id: 'a' })
  await assert.rejects(till.replicate.to(remote(suffix, await issue())), (error) => refusal(error).status === 503)
  assert.equal((await call('GET', `/${name}`)).status, 404)
})

test('a day that has not begun is waited for', async (t) => {
  const { suffix, name, day } = await ask('day', { state: 'PREWARMED' })
  const till = await local(t, { _id: 'early' })
  const push = till.replicate.to(remote(suffix, await issue()), { live: true, retry: true, back_off_function: () => 50 })
  await event(push, 'paused', (error) => error?.status === 503)
  assert.deepEqual(await ids(name), [])
  const arrived = event(push, 'change')
  await ask('begin', { day })
  await arrived
  assert.deepEqual(await ids(name), ['early'])
  const end = ended(push)
  push.cancel()
  await end
})

test('a token that expires in the middle ends replication, and a new one goes on', async (t) => {
  const { suffix, name } = await ask('day')
  let token = await issue(10) // Time enough for the first document, on a slow machine too.
  const till = await local(t, { _id: 'a' })
  const sync = till.sync(remote(suffix, () => token), { live: true, retry: true })
  const end = ended(sync)
  await event(sync, 'change')
  const refused = refusal(await end)
  assert.equal(refused.status, 401)
  assert.equal(refused.code, 'token_expired')
  await till.put({ _id: 'b' })
  token = await issue()
  assert.equal((await till.replicate.to(remote(suffix, () => token))).docs_written, 1)
  assert.deepEqual(await ids(name), ['a', 'b'])
})

// It changes the flags of the company, and therefore comes last.
test('switching on and off under connected tills loses no write', async (t) => {
  const { suffix, name } = await ask('day')
  const token = await issue()
  await ask('flags', { rolling: false, routed: false })
  const old = await local(t, { _id: 'switch-1' })
  const push = old.replicate.to(remote('legacy', token), { live: true, retry: true })
  await event(push, 'change')
  const refused = refusal(await ended(old.replicate.to(remote(suffix, token))))
  assert.equal(refused.code, 'not_routed')

  await ask('flags', { rolling: true, routed: true })
  const delivered = event(push, 'change')
  await old.put({ _id: 'switch-2' })
  await delivered
  const { legacy } = await ask('names')
  assert.deepEqual((await ids(legacy)).filter((id) => id.startsWith('switch')), ['switch-1', 'switch-2'])
  const end = ended(push)
  push.cancel()
  await end

  const till = await local(t, { _id: 'routed-1' })
  const rolling = till.replicate.to(remote(suffix, token), { live: true, retry: true })
  await event(rolling, 'change')
  const off = ended(rolling)
  await ask('flags', { rolling: false, routed: false })
  await till.put({ _id: 'routed-2' })
  assert.equal(refusal(await off).code, 'not_routed')
  await till.replicate.to(remote('legacy', token))
  assert.ok((await ids(legacy)).includes('routed-2'), 'it goes to the legacy database')
  await ask('flags', { rolling: true, routed: true })
  await till.replicate.to(remote(suffix, token))
  assert.deepEqual(await ids(name), ['routed-1', 'routed-2'], 'and nothing was passed over')
})
