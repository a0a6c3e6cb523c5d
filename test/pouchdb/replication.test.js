import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { create, event, freshName, ids, local, must, prepare, remote, settle } from './server.js'

before(prepare)

test('documents go both ways once', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, { _id: 'a', n: 1 }, { _id: 'b', n: 2.5 })
  await must('PUT', `/${name}/c`, { n: 3 })
  const pushed = await db.replicate.to(remote(name))
  assert.equal(pushed.docs_written, 2)
  const pulled = await db.replicate.from(remote(name))
  assert.equal(pulled.ok, true)
  assert.deepEqual((await db.allDocs()).rows.map((r) => r.id), ['a', 'b', 'c'])
  assert.deepEqual(await ids(name), ['a', 'b', 'c'])

  await db.remove(await db.get('a'))
  await db.put({ ...(await db.get('b')), n: 4 })
  await db.sync(remote(name))
  assert.deepEqual(await ids(name), ['b', 'c'])
  assert.equal((await must('GET', `/${name}/b`)).n, 4)
  const again = await db.replicate.to(remote(name))
  assert.equal(again.docs_read, 0, 'the checkpoint holds')
})

test('many documents in batches, among them odd ones', async (t) => {
  const name = freshName(t)
  await create(name)
  const docs = Array.from({ length: 350 }, (_, i) => ({ _id: `doc${String(i).padStart(4, '0')}`, i }))
  docs.push({ _id: 'slash/and space', v: 'a\u0000b' }, { _id: 'é😀', deep: { list: [[[{}]]] } })
  const source = await local(t, ...docs)
  await source.replicate.to(remote(name), { batch_size: 50 })
  const target = await local(t)
  const result = await target.replicate.from(remote(name), { batch_size: 70 })
  assert.equal(result.docs_written, 352)
  assert.equal((await target.get('slash/and space')).v, 'a\u0000b')
  assert.deepEqual((await target.get('é😀')).deep, { list: [[[{}]]] })
})

test('live replication in both directions', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, { _id: 'first' })
  const sync = db.sync(remote(name), { live: true, retry: true })
  const pushed = event(sync, 'change', (c) => c.direction === 'push')
  await pushed
  assert.deepEqual(await ids(name), ['first'])

  const pulled = event(sync, 'change', (c) => c.direction === 'pull' && c.change.docs.some((d) => d._id === 'theirs'))
  await must('PUT', `/${name}/theirs`, { n: 1 })
  await pulled
  assert.equal((await db.get('theirs')).n, 1)

  const late = event(sync, 'change', (c) => c.direction === 'push' && c.change.docs.some((d) => d._id === 'late'))
  await db.put({ _id: 'late' })
  await late
  assert.deepEqual(await ids(name), ['first', 'late', 'theirs'])
  const ended = settle(sync)
  sync.cancel()
  assert.equal((await ended).at(-1).name, 'complete')
})

test('conflicting edits end the same everywhere', async (t) => {
  const name = freshName(t)
  await create(name)
  const one = await local(t, { _id: 'doc', by: 'nobody' }, { _id: 'gone', by: 'nobody' })
  await one.replicate.to(remote(name))
  const two = await local(t)
  await two.replicate.from(remote(name))
  await one.put({ ...(await one.get('doc')), by: 'one' })
  await two.put({ ...(await two.get('doc')), by: 'two' })
  await one.put({ ...(await one.get('gone')), by: 'one' })
  await two.remove(await two.get('gone'))
  await one.sync(remote(name))
  await two.sync(remote(name))
  await one.sync(remote(name))

  const theirs = await must('GET', `/${name}/doc?conflicts=true`)
  for (const db of [one, two]) {
    const mine = await db.get('doc', { conflicts: true })
    assert.equal(mine._rev, theirs._rev)
    assert.equal(mine.by, theirs.by)
    assert.deepEqual(mine._conflicts, theirs._conflicts)
  }
  assert.equal(theirs._conflicts.length, 1)
  assert.equal((await must('GET', `/${name}/gone`)).by, 'one', 'a live revision beats a deletion')
})

test('attachments arrive as they were', async (t) => {
  const name = freshName(t)
  await create(name)
  const binary = Buffer.from(Array.from({ length: 300_000 }, (_, i) => (i * 31) % 256))
  const text = 'receipt line\n'.repeat(1000)
  const source = await local(t)
  await source.put({
    _id: 'order',
    _attachments: {
      'receipt.txt': { content_type: 'text/plain', data: Buffer.from(text) },
      'signature.png': { content_type: 'image/png', data: binary }
    }
  })
  await source.replicate.to(remote(name))
  const stubs = (await must('GET', `/${name}/order`))._attachments
  assert.equal(stubs['receipt.txt'].length, text.length)
  assert.equal(stubs['signature.png'].length, binary.length)

  // A second edit sends the attachments along again, as PouchDB does.
  await source.put({ ...(await source.get('order')), status: 'closed' })
  await source.replicate.to(remote(name))
  const target = await local(t)
  await target.replicate.from(remote(name))
  const got = await target.get('order', { attachments: true, binary: true })
  assert.equal(got.status, 'closed')
  assert.equal(got._attachments['receipt.txt'].data.toString(), text)
  assert.equal(Buffer.compare(got._attachments['signature.png'].data, binary), 0)
  assert.equal(Buffer.compare(await remote(name).getAttachment('order', 'signature.png'), binary), 0)
})

test('one document that the server cannot read blocks its batch', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, { _id: 'a' }, { _id: 'b', v: '\ud800' }, { _id: 'c' })
  const last = (await settle(db.replicate.to(remote(name)))).at(-1)
  assert.equal(last.name, 'error')
  assert.equal(last.value.status ?? last.value.result.status, 400)
  assert.deepEqual(await ids(name), [])
})

test('one document that is too large blocks its batch', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, { _id: 'a' }, { _id: 'b', v: 'x'.repeat(8_100_000) }, { _id: 'c' })
  const last = (await settle(db.replicate.to(remote(name)))).at(-1)
  assert.equal(last.name, 'error')
  assert.deepEqual(await ids(name), [])
})
