// A till before the device proxy, and what others do meanwhile: the test that
// started this script does it, when it is asked over CONTROL_URL.
import PouchDB from 'pouchdb'
import memory from 'pouchdb-adapter-memory'
import { randomBytes } from 'node:crypto'

PouchDB.plugin(memory)

const { PROXY_URL, CONTROL_URL, COUCH_URL } = process.env

// ask has the other side do something, and returns what it says.
export async function ask (what, parameters = {}) {
  const response = await fetch(`${CONTROL_URL}/${what}?${new URLSearchParams(parameters)}`, { method: 'POST' })
  if (!response.ok) throw new Error(`${what}: ${response.status} ${await response.text()}`)
  return response.json()
}

// issue returns a token of a till.
export const issue = async (ttl = 3600) => (await ask('token', { ttl })).token

// remote is a till's handle of a database by its suffix; it asks for its token at
// every request. It is not told to skip the set-up, as an old client is not.
export function remote (suffix, token) {
  const current = typeof token === 'function' ? token : () => token
  return new PouchDB(`${PROXY_URL}/db/${suffix}`, {
    fetch (url, options) {
      options.headers.set('Authorization', 'Bearer ' + current())
      return PouchDB.fetch(url, options)
    }
  })
}

// local is a database in memory, optionally with documents.
export async function local (t, ...docs) {
  const db = new PouchDB('local_' + randomBytes(6).toString('hex'), { adapter: 'memory' })
  t.after(() => db.destroy())
  if (docs.length > 0) await db.bulkDocs(docs)
  return db
}

const couch = new URL(COUCH_URL)
const authorization = 'Basic ' + Buffer.from(`${couch.username}:${couch.password}`).toString('base64')

// call asks CouchDB itself, as its administrator, about a physical database.
export async function call (method, path, body) {
  const response = await fetch(couch.origin + path, {
    method,
    headers: { authorization, 'content-type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body)
  })
  return { status: response.status, body: await response.json() }
}

// ids lists the documents of a physical database.
export async function ids (name) {
  const { body } = await call('GET', `/${name}/_all_docs`)
  return body.rows.map((r) => r.id)
}

// ended resolves with the error of a replication, or with its result.
export function ended (replication) {
  return new Promise((resolve) => {
    replication.on('complete', resolve)
    replication.on('error', resolve)
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

// refusal is what PouchDB makes of a refusal of the proxy.
export function refusal (error) {
  const found = error.result?.errors?.[0] ?? error
  return { status: error.status ?? found.status, code: error.code ?? found.code, reason: error.reason ?? found.reason }
}
