// The two replicas and the hand that changes what they tell devices. The Go test
// starts all three and names them in the environment.
import { io } from 'socket.io-client';

export const [A, B] = [process.env.SOCKET_A, process.env.SOCKET_B];

// One second is what is promised. A machine that runs everything else at the same
// time may stand still for longer itself.
export const WITHIN = Number(process.env.SOCKET_WITHIN_MS ?? 30_000);

let companies = 0;

// unknownCompany names a company that has no restaurant.
export const unknownCompany = () => `company-${process.pid}-${++companies}`;

// newCompany names a company with a restaurant that no other test uses.
export async function newCompany() {
  const company = unknownCompany();
  await ask('restaurant', { company });
  return company;
}

// ask has the Go test do something, and returns what it answers.
export async function ask(what, fields) {
  const response = await fetch(`${process.env.CONTROL}/${what}`, { method: 'POST', body: JSON.stringify(fields) });
  if (!response.ok) throw new Error(`${what}: ${response.status} ${await response.text()}`);
  return response.json();
}

export const token = async (company, device = 'till-1', ttlMs = 3_600_000) =>
  (await ask('token', { company, device, ttlMs })).token;

// open connects a device and records what it is told from the first moment.
export function open(t, url, auth, options = {}) {
  const socket = io(url, { auth, transports: ['websocket'], forceNew: true, reconnection: false, ...options });
  t.after(() => socket.close());
  const inbox = new Inbox();
  socket.onAny((event, payload) => inbox.add([event, payload]));
  socket.on('connect_error', (error) => inbox.add(['connect_error', error.data ?? error.message]));
  socket.on('disconnect', (reason) => inbox.add(['disconnect', reason]));
  return { socket, inbox };
}

class Inbox {
  #arrived = [];
  #waiting = [];

  add(entry) {
    const next = this.#waiting.shift();
    if (next) next(entry);
    else this.#arrived.push(entry);
  }

  // next returns the next event with its payload.
  next() {
    if (this.#arrived.length > 0) return Promise.resolve(this.#arrived.shift());
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`nothing within ${WITHIN} ms`)), WITHIN);
      this.#waiting.push((entry) => {
        clearTimeout(timer);
        resolve(entry);
      });
    });
  }

  // until drops what comes before an event.
  async until(event) {
    for (;;) {
      const entry = await this.next();
      if (entry[0] === event) return entry[1];
    }
  }

  get left() {
    return this.#arrived;
  }
}
