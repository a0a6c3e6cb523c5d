// The embedded store as a child process, one per test file. `npm test` builds it.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const binary = fileURLToPath(new URL('../build/embeddedcouch', import.meta.url));

/** Returns the address, the administrator's credentials and the secret of proxy authentication. */
export async function startStore() {
  const child = spawn(binary, { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = await Promise.race([
    once(createInterface({ input: child.stdout }), 'line'),
    once(child, 'exit').then(() => Promise.reject(new Error('the store did not start'))),
  ]);
  const [address, secret] = line.split(' ');
  const url = new URL(address);
  const credentials = Buffer.from(`${url.username}:${url.password}`).toString('base64');
  return {
    origin: url.origin,
    secret,
    async admin(method, path, body) {
      const answer = await fetch(url.origin + path, {
        method,
        headers: { authorization: `Basic ${credentials}`, 'content-type': 'application/json', accept: 'application/json' },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      return { status: answer.status, body: await answer.json() };
    },
    async stop() {
      child.stdin.end();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}
