// A simulated till: it opens, pays and closes orders until Ctrl-C, offline too.
// Some tables stay until the next business day, and pay then.
//
//   make sdk
//   TILL=<device token> node sdk/examples/till.mjs [URL]
//
// `rollingd dev` prints a token; URL is http://127.0.0.1:8080 by default. What is
// not delivered yet stays in TILL_DATA (./till-data) for the next start.
import { mkdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import PouchDB from 'pouchdb';
import find from 'pouchdb-find';
import { io } from 'socket.io-client';
import { Database, follow } from '../dist/index.js';

PouchDB.plugin(find);

/** Each of so many tables stays until the next day. */
const LINGERS = 5;

const token = process.env.TILL;
if (!token) {
  console.error('TILL is not set: a device token, as rollingd dev prints one');
  process.exit(2);
}
const url = process.argv[2] ?? 'http://127.0.0.1:8080';
const data = process.env.TILL_DATA ?? 'till-data';
mkdirSync(data, { recursive: true });

// The token names the restaurant; whether it is good is for the server to say.
const { companyId, restaurantId, deviceId } = JSON.parse(Buffer.from(token.split('.')[1], 'base64url'));

const database = await Database.open({ PouchDB, url, token: () => token, companyId, restaurantId, prefix: `${data}/` });
const day = () => database.currentBusinessDay ?? 'no day yet';
let rotated = false;
database.on('rotate', ({ from, to }) => {
  rotated = true;
  console.log(`-- ${from ?? 'the single database'} -> ${to ?? 'the single database'}`);
});
database.on('refused', ({ suffix, reason }) => console.log(`-- ${suffix} is refused: ${reason}`));
database.on('late', ({ documents, suffix, into }) => console.log(`-- ${documents} of ${suffix} carried into ${into.join(', ')}`));
database.on('error', (error) => console.error(error));

const ended = new AbortController();
const socket = io(url, { transports: ['websocket'] });
const unfollow = follow(socket, database);
socket.on('connect', () => console.log('-- connected'));
socket.on('connect_error', ({ data }) => data && console.log(`-- the token is refused: ${data.code}; rollingd dev prints another one at each start`));
socket.on('disconnect', () => ended.signal.aborted || console.log('-- offline, still selling'));

process.once('SIGINT', () => ended.abort());
try {
  for (let table = 1; ; table++) {
    await sell(table % LINGERS === 0);
    if (rotated) await payLingering();
  }
} catch (error) {
  if (!ended.signal.aborted) throw error;
}
let left = await database.unsynced();
for (let tries = 0; left.length > 0 && tries < 30; tries++) {
  await sleep(100); // The last order is on its way.
  left = await database.unsynced();
}
console.log(left.length === 0 ? '-- everything is delivered' : `-- not delivered: ${left.map((l) => `${l.documents} of ${l.suffix}`).join(', ')}`);
unfollow();
socket.close();
await database.close();

async function sell(lingers) {
  const id = `order-${crypto.randomUUID()}`;
  const total = 1000 + Math.floor(Math.random() * 90) * 100;
  const businessDay = database.currentBusinessDay;
  await database.put({ _id: id, type: 'order', status: 'open', companyId, restaurantId, deviceId, businessDay, total });
  await sleep(300, undefined, { signal: ended.signal });
  if (!lingers) await pay(await database.get(id));
  const waiting = (await database.unsynced()).reduce((sum, { documents }) => sum + documents, 0);
  console.log(`${day()}  ${id}  ${total}  ${lingers ? 'stays open' : 'closed'}, ${waiting} to deliver`);
  await sleep(700, undefined, { signal: ended.signal });
}

async function pay(order) {
  const { companyId, restaurantId, total, _id } = order;
  await database.put({ _id: `payment-${crypto.randomUUID()}`, type: 'payment', status: 'approved', companyId, restaurantId, order: _id, amount: total });
  await database.put({ ...order, status: 'closed' });
}

/** Pays what this till left open on earlier days: each order where it is, in the database of its day. */
async function payLingering() {
  rotated = false;
  for (const order of await database.find({ selector: { type: 'order', status: 'open', deviceId } })) {
    if (order.businessDay === database.currentBusinessDay) continue;
    await pay(order);
    console.log(`${day()}  ${order._id}  ${order.total}  of ${order.businessDay}, closed there`);
  }
}
