// What a device makes of a sealed database. The seal has to be the security
// object first and the validation function second: the other way round the
// device believes that it has delivered what was refused.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import {
  addValidation, create, event, freshName, holdBulkDocs, ids, local, prepare, remote, removeValidation, seal, settle, unseal
} from './server.js'

before(prepare)

const names = (events) => events.map((e) => e.name).filter((n) => n !== 'active' && n !== 'paused' && n !== 'change')
const status = (error) => error.status ?? error.result?.status

test('validation alone loses documents in silence', async (t) => {
  const name = freshName(t)
  await create(name)
  const rev = await addValidation(name)
  const db = await local(t, { _id: 'a' }, { _id: 'b' })
  const events = await settle(db.replicate.to(remote(name)))
  assert.deepEqual(names(events), ['denied', 'denied', 'complete'])
  const result = events.at(-1).value
  assert.equal(result.ok, true)
  assert.equal(result.doc_write_failures, 2)

  await removeValidation(name, rev)
  const again = await db.replicate.to(remote(name))
  assert.equal(again.docs_read, 0, 'the checkpoint went past the refused documents')
  await db.put({ _id: 'new' })
  await db.replicate.to(remote(name))
  assert.deepEqual(await ids(name), ['new'], 'only newer documents arrive')
  await db.replicate.to(remote(name), { checkpoint: false })
  assert.deepEqual(await ids(name), ['a', 'b', 'new'], 'without a checkpoint they do')
})

test('the security object alone keeps everything on the device', async (t) => {
  const name = freshName(t)
  await create(name)
  await seal(name)
  const db = await local(t, { _id: 'a' }, { _id: 'b' })
  const events = await settle(db.replicate.to(remote(name)))
  assert.deepEqual(names(events), ['error'])
  assert.equal(status(events.at(-1).value), 403)
  await unseal(name)
  assert.equal((await db.replicate.to(remote(name))).docs_written, 2)
  assert.deepEqual(await ids(name), ['a', 'b'])
})

test('the security object ends live replication, retry or not', async (t) => {
  const name = freshName(t)
  await create(name)
  const db = await local(t, { _id: 'a' })
  const replication = db.replicate.to(remote(name), { live: true, retry: true })
  const ended = settle(replication)
  await event(replication, 'change')
  await seal(name)
  await db.put({ _id: 'b' })
  const events = await ended
  assert.equal(events.at(-1).name, 'error')
  assert.equal(status(events.at(-1).value), 403)
  await unseal(name)
  await db.replicate.to(remote(name))
  assert.deepEqual(await ids(name), ['a', 'b'])
})

test('security object, then validation, across a batch in flight', async (t) => {
  const name = freshName(t)
  await create(name)
  let rev
  const held = holdBulkDocs(async () => {
    await seal(name)
    rev = await addValidation(name)
  })
  const db = await local(t, { _id: 'a' }, { _id: 'b' })
  const events = await settle(db.replicate.to(remote(name, { fetch: held })))
  assert.deepEqual(names(events), ['denied', 'denied', 'error'], 'the checkpoint is refused')
  assert.equal(status(events.at(-1).value), 403)
  assert.deepEqual(await ids(name), [])

  await removeValidation(name, rev)
  await unseal(name)
  const again = await db.replicate.to(remote(name))
  assert.equal(again.docs_written, 2, 'nothing was lost')
  assert.deepEqual(await ids(name), ['a', 'b'])
})
