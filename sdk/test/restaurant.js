// A restaurant as its devices see it: the device plane in front of the embedded
// store, with a switch for everything that the server decides.
import { createHmac, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import PouchDB from 'pouchdb';
import memory from 'pouchdb-adapter-memory';
import find from 'pouchdb-find';
import { Database } from '../dist/index.js';

PouchDB.plugin(memory).plugin(find);

export const on = { rollingDbEnabled: true, rollingDbDeviceRouted: true, rollingDbDropEnabled: false };
export const off = { rollingDbEnabled: false, rollingDbDeviceRouted: false, rollingDbDropEnabled: false };

const ROLE = 'restaurant';
const OPEN = { admins: { names: [], roles: ['_admin'] }, members: { names: [], roles: [ROLE] } };

export class Restaurant {
  /** What the server answers for a suffix instead of the database: a code, or null. */
  refuses = () => null;
  /** Whether the server answers that it has no time for a request, by its path. */
  busy = () => false;
  /** Whether a request, by its path, is too large for whatever stands in front of the server. */
  tooLarge = () => false;
  /** The tokens that count; every other one is answered 401. */
  tokens = new Set(['t1']);
  /** All but reports. */
  requests = [];
  /** What the devices of this restaurant, all under one id, have reported: the last one, and how many counted. */
  reported = { sequence: 0, unsynced: null, counted: 0 };
  #generation = 0;
  #away = false;

  /** Has core, legacy and these days; the last one is current and the others are overlays. */
  static async open(t, store, ...days) {
    const r = new Restaurant();
    r.store = store;
    r.name = 'sdk' + randomBytes(5).toString('hex');
    r.folder = await mkdtemp(join(tmpdir(), 'rollingd-sdk-'));
    t.after(() => rm(r.folder, { recursive: true, force: true }));
    for (const suffix of ['core', 'legacy']) await r.create(suffix);
    await r.#listen(t);
    if (days.length > 0) await r.rotate(...days);
    return r;
  }

  async create(suffix) {
    await this.admin('PUT', suffix);
    await this.admin('PUT', `${suffix}/_security`, OPEN);
  }

  /** Publishes the manifest of these days, creating those that are new. */
  async rotate(...days) {
    for (const day of days) {
      if ((await this.admin('GET', `daily_${day}`)).status === 404) await this.create(`daily_${day}`);
    }
    const before = await this.admin('GET', 'core/day_manifest');
    const manifest = manifestOf(++this.#generation, ...days);
    await this.admin('PUT', 'core/day_manifest', { ...manifest, _rev: before.body._rev });
    return manifest;
  }

  /** A request of the administrator to a path that begins with a suffix. */
  admin(method, path, body) {
    return this.store.admin(method, `/${this.name}_${path}`, body);
  }

  async read(suffix, id) {
    const { status, body } = await this.admin('GET', `${suffix}/${id}`);
    return status === 200 ? body : null;
  }

  /** Answers devices at this.url until the test ends. */
  async #listen(t) {
    this.server = createServer((req, res) => this.#answer(req, res));
    this.server.on('connection', (socket) => this.#away && socket.destroy());
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    this.url = `http://127.0.0.1:${this.server.address().port}`;
    t.after(async () => {
      this.server.close();
      this.server.closeAllConnections();
      await once(this.server, 'close');
    });
  }

  connect() {
    this.#away = false;
  }

  /** Cuts every connection off, the next ones too. The port stays taken, or another process might have it meanwhile. */
  disconnect() {
    this.#away = true;
    this.server.closeAllConnections();
  }

  /** Opens a device. With a name its databases are files that a later one finds. */
  async device(t, { name, ...options } = {}) {
    const database = await Database.open({
      PouchDB,
      url: this.url,
      token: () => 't1',
      companyId: 'acme',
      restaurantId: this.name,
      prefix: join(this.folder, name ?? randomBytes(4).toString('hex')) + '_',
      local: name === undefined ? { adapter: 'memory' } : {},
      retryDelay: () => 50,
      reportAfter: 100,
      ...options,
    });
    t.after(() => database.close().catch(() => {}));
    database.on('error', (error) => t.diagnostic(String(error.stack)));
    return database;
  }

  async #takeReport(req, res) {
    const { sequence, unsynced } = await json(req);
    const { reported } = this;
    if (sequence <= reported.sequence) return refuse(res, 409, 'conflict', 'report_stale', { sequence: reported.sequence });
    this.reported = { sequence, unsynced, counted: reported.counted + 1 };
    res.writeHead(200, { 'content-type': 'application/json' });
    res.end('{"ok":true}');
  }

  #answer(req, res) {
    const [, db, suffix, ...rest] = req.url.split('/');
    const token = req.headers.authorization?.replace('Bearer ', '');
    if (!this.tokens.has(token)) return refuse(res, 401, 'unauthorized', 'token_expired');
    if (req.url === '/device/unsynced') return this.#takeReport(req, res);
    this.requests.push(`${req.method} ${req.url}`);
    const code = this.refuses(suffix?.split('?')[0]);
    if (this.busy(req.url.split('?')[0])) return refuse(res, 429, 'too_many_requests', 'rate_limited');
    if (this.tooLarge(req.url)) return refuse(res, 413, 'too_large');
    if (db !== 'db' || code !== null) return refuse(res, 403, 'forbidden', code ?? 'not_allowed');
    const { authorization: _token, host: _host, ...headers } = req.headers;
    const upstream = request(`${this.store.origin}/${this.name}_${[suffix, ...rest].join('/')}`, {
      method: req.method,
      headers: {
        ...headers,
        'x-auth-couchdb-username': 'device',
        'x-auth-couchdb-roles': ROLE,
        'x-auth-couchdb-token': createHmac('sha256', this.store.secret).update('device').digest('hex'),
      },
    });
    upstream.on('response', (answer) => {
      res.writeHead(answer.statusCode, answer.headers);
      answer.pipe(res);
    });
    upstream.on('error', () => res.destroy());
    res.on('close', () => upstream.destroy());
    req.pipe(upstream);
  }
}

function refuse(res, status, error, code, more = {}) {
  res.writeHead(status, { 'content-type': 'application/json' });
  res.end(JSON.stringify({ error, reason: `refused: ${code}`, code, ...more }));
}

export function manifestOf(generation, ...days) {
  const [current, ...overlays] = days.toReversed();
  return {
    _id: 'day_manifest',
    type: 'day_manifest',
    schemaVersion: 1,
    currentBusinessDay: current,
    currentDayDb: `daily_${current}`,
    overlays: overlays.map((day) => ({ businessDay: day, dbName: `daily_${day}` })),
    generation,
    updatedAt: '2026-11-30T08:00:00Z',
  };
}

/** Resolves with what an event of a database carries, the first time that it satisfies a condition. */
export function next(database, event, condition = () => true) {
  return new Promise((resolve) => {
    const end = database.on(event, (value) => {
      if (!condition(value)) return;
      end();
      resolve(value);
    });
  });
}

/** Looks again until there is something; for what no event of the device tells. */
export async function eventually(look) {
  for (;;) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Unsynced documents by suffix. */
export async function unsynced(database) {
  return Object.fromEntries((await database.unsynced()).map(({ suffix, documents }) => [suffix, documents]));
}
