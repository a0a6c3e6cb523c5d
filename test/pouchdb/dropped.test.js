// What a device makes of a database that is not there yet, or not any more.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { admin, call, create, event, freshName, ids, local, must, prepare, remote, seal, settle } from './server.js'

before(prepare)

const docs = (n) => Array.from({ length: n }, (_, i) => ({ _id: 'd' + String(i).padStart(2, '0'), i }))
const status = (error) => error.status ?? error.result?.status
const exists = async (name) => (await call('GET', '/' + name)).status === 200

test('an administrator brings a dropped database back', async (t) => {
  const name = freshName(t)
  const db = await local(t, ...docs(20))
  const result = await db.replicate.to(remote(name, { auth: admin }))
  assert.equal(result.docs_written, 20)
  assert.equal((await ids(name)).length, 20)
})

test('an ordinary user gets 401, which is final', async (t) => {
  const name = freshName(t)
  const db = await local(t, ...docs(2))
  for (const options of [{}, { live: true, retry: true }]) {
    const last = (await settle(db.replicate.to(remote(name), options))).at(-1)
    assert.equal(last.name, 'error')
    assert.equal(status(last.value), 401)
  }
  assert.equal(await exists(name), false)
})

test('skip_setup gets 404 and creates nothing', async (t) => {
  const name = freshName(t)
  const db = await local(t, ...docs(2))
  for (const auth of [undefined, admin]) {
    const options = auth ? { skip_setup: true, auth } : { skip_setup: true }
    const last = (await settle(db.replicate.to(remote(name, options)))).at(-1)
    assert.equal(last.name, 'error')
    assert.equal(status(last.value), 404)
  }
  assert.equal(await exists(name), false)
})

test('skip_setup waits for the database when live with retry', async (t) => {
  const name = freshName(t)
  const db = await local(t, ...docs(3))
  const replication = db.replicate.to(remote(name, { skip_setup: true }), { live: true, retry: true })
  const paused = await event(replication, 'paused', (error) => error !== undefined)
  assert.equal(status(paused), 404)
  // Created behind the device's back in one step, as far as it can see.
  const arrived = event(replication, 'change', (c) => c.docs_written === 3)
  const secured = event(replication, 'error')
  await create(name)
  const winner = await Promise.race([arrived.then(() => 'change'), secured.then((e) => 'error ' + status(e))])
  if (winner === 'change') {
    assert.equal((await ids(name)).length, 3)
    const ended = settle(replication)
    replication.cancel()
    await ended
  } else {
    // The device came between creation and security object, which is final.
    assert.equal(winner, 'error 403')
  }
})

test('a device that comes before the security object gives up', async (t) => {
  const name = freshName(t)
  await must('PUT', '/' + name)
  const db = await local(t, ...docs(2))
  const last = (await settle(db.replicate.to(remote(name, { skip_setup: true }), { live: true, retry: true }))).at(-1)
  assert.equal(last.name, 'error')
  assert.equal(status(last.value), 403)
})

test('a successor that is open gets everything again', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, ...docs(20))
  await db.replicate.to(remote(name))
  await must('DELETE', '/' + name)
  await create(name)
  assert.equal((await db.replicate.to(remote(name))).docs_written, 20)
})

test('a successor that is sealed gets nothing', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, ...docs(5))
  await db.replicate.to(remote(name))
  await must('DELETE', '/' + name)
  await create(name)
  await seal(name)
  const last = (await settle(db.replicate.to(remote(name)))).at(-1)
  assert.equal(last.name, 'error')
  assert.equal(status(last.value), 403)
  assert.deepEqual(await ids(name), [])
})

test('a restored database conflicts unless revisions are kept', async (t) => {
  for (const keep of [true, false]) {
    const name = freshName(t)
    await create(name)
    const db = await local(t, ...docs(3))
    await db.replicate.to(remote(name))
    const archived = []
    for (const id of await ids(name)) archived.push(await must('GET', `/${name}/${id}?revs=true`))
    await must('DELETE', '/' + name)
    await create(name)
    if (keep) {
      await must('POST', `/${name}/_bulk_docs`, { new_edits: false, docs: archived })
    } else {
      const fresh = archived.map(({ _rev, _revisions, ...doc }) => ({ ...doc, restored: true }))
      await must('POST', `/${name}/_bulk_docs`, { docs: fresh })
    }
    const result = await db.replicate.to(remote(name))
    assert.equal(result.docs_written, keep ? 0 : 3)
    for (const id of await ids(name)) {
      const { _conflicts } = await must('GET', `/${name}/${id}?conflicts=true`)
      assert.equal(_conflicts?.length ?? 0, keep ? 0 : 1)
    }
  }
})
