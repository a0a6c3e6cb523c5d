// What an app in TypeScript writes; `npm test` compiles it and does not run it.
import PouchDB from 'pouchdb';
import { io } from 'socket.io-client';
import { Database, follow } from '../dist/index.js';

interface Order {
  _id: string;
  _rev?: string;
  type: 'order';
  status: string;
}

export async function sell(url: string, deviceToken: (refused: string | null) => Promise<string>): Promise<void> {
  const database = await Database.open({ PouchDB, url, token: deviceToken, companyId: 'acme', restaurantId: 'centro' });
  follow(io(url), database);
  const order: Order = { _id: 'order-1', type: 'order', status: 'open' };
  await database.put(order);
  await database.put({ ...order, status: 'closed' });
  await database.put({ _id: 'payment-1', type: 'payment', status: 'approved' });
  const found = await database.get('order-1');
  if (found !== null) await database.remove(found);
  await database.remove(order);
}
