// The server under test and what an administrator does to it.
import PouchDB from 'pouchdb'
import memory from 'pouchdb-adapter-memory'
import { randomBytes } from 'node:crypto'
import { request } from 'node:http'

PouchDB.plugin(memory)

const url = new URL(process.env.COUCH_URL ?? '')
const adminAuth = { username: url.username, password: url.password }
const origin = url.origin

export const device = { username: 'rollingd_pouchdb_device', password: 'device-secret' }
export const admin = adminAuth

const members = (role) => ({ admins: { names: [], roles: ['_admin'] }, members: { names: [], roles: [role] } })
export const open = members('pos')
export const sealed = members('sealed_nobody')
export const refuseAll = { validate_doc_update: "function(n,o,u,s){throw({forbidden:'day sealed'})}" }

const basic = ({ username, password }) => 'Basic ' + Buffer.from(`${username}:${password}`).toString('base64')

// call sends a request as the administrator.
export async function call (method, path, body) {
  const response = await fetch(origin + path, {
    method,
    headers: { authorization: basic(adminAuth), 'content-type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body)
  })
  return { status: response.status, body: await response.json() }
}

// must is call that has to succeed.
export async function must (method, path, body) {
  const answer = await call(method, path, body)
  if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
  return answer.body
}

// prepare makes the device's user; every test file calls it first.
export async function prepare () {
  await call('PUT', '/_users')
  const { status } = await call('PUT', '/_users/org.couchdb.user:' + device.username, {
    name: device.username, password: device.password, roles: ['pos'], type: 'user'
  })
  if (status !== 201 && status !== 409) throw new Error('create user: ' + status)
}

// freshName is a database name that nobody uses; it is dropped after the test.
export function freshName (t) {
  const name = 'pouchdb_' + randomBytes(6).toString('hex')
  t.after(() => call('DELETE', '/' + name))
  return name
}

// create makes a database and opens it to devices.
export async function create (name, security = open) {
  while ((await call('PUT', '/' + name)).status !== 201) { /* A name is taken for a moment after its drop. */ }
  await must('PUT', `/${name}/_security`, security)
}

export async function seal (name) {
  await must('PUT', `/${name}/_security`, sealed)
}

export async function unseal (name) {
  await must('PUT', `/${name}/_security`, open)
}

export async function addValidation (name) {
  return (await must('PUT', `/${name}/_design/seal`, refuseAll)).rev
}

export async function removeValidation (name, rev) {
  await must('DELETE', `/${name}/_design/seal?rev=${rev}`)
}

// ids lists the documents of a remote database without design documents.
export async function ids (name) {
  const { rows } = await must('GET', `/${name}/_all_docs`)
  return rows.map((r) => r.id).filter((id) => !id.startsWith('_design/'))
}

// remote is the device's handle of a remote database.
export function remote (name, options = {}) {
  return new PouchDB(`${origin}/${name}`, { auth: device, ...options })
}

// local is a database in memory, optionally with documents.
export async function local (t, ...docs) {
  const db = new PouchDB('local_' + randomBytes(6).toString('hex'), { adapter: 'memory' })
  t.after(() => db.destroy())
  if (docs.length > 0) await db.bulkDocs(docs)
  return db
}

// settle waits for the end of a replication and returns its events in order,
// the last of which is "complete" or "error".
export function settle (replication) {
  const events = []
  for (const name of ['denied', 'paused', 'active', 'change']) replication.on(name, (value) => events.push({ name, value }))
  return new Promise((resolve) => {
    replication.on('complete', (value) => resolve([...events, { name: 'complete', value }]))
    replication.on('error', (value) => resolve([...events, { name: 'error', value }]))
    replication.catch(() => {}) // The events tell.
  })
}

// event waits for one event of a replication that satisfies a condition.
export function event (replication, name, condition = () => true) {
  return new Promise((resolve) => {
    replication.on(name, (value) => { if (condition(value)) resolve(value) })
    replication.catch(() => {})
  })
}

// holdBulkDocs is a fetch that runs a step between the moment when the server
// has admitted a _bulk_docs request and the moment when it gets the body.
export function holdBulkDocs (between) {
  return (target, options) => {
    if (!String(target).includes('/_bulk_docs')) return PouchDB.fetch(target, options)
    return new Promise((resolve, reject) => {
      const headers = Object.fromEntries(options.headers.entries())
      const body = Buffer.from(options.body)
      const req = request(target, {
        method: 'POST',
        insecureHTTPParser: true, // CouchDB's interim answer announces the end of the connection.
        headers: { ...headers, authorization: basic(device), expect: '100-continue', 'content-length': body.length }
      })
      req.on('error', reject)
      req.on('continue', () => between().then(() => req.end(body), reject))
      req.on('response', async (response) => {
        const chunks = []
        for await (const chunk of response) chunks.push(chunk)
        resolve(new Response(Buffer.concat(chunks), { status: response.statusCode, headers: { 'content-type': 'application/json' } }))
      })
      req.flushHeaders()
    })
  }
}
