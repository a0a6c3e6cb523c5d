// Runs the golden cases against the built TypeScript: `npm test`, or with
// CONTRACTS_BUILD naming the folder of another build. A failure's message is
// one line that begins with "mismatch:", like that of the Go side.
import { deepStrictEqual } from 'node:assert';
import { readFileSync, readdirSync } from 'node:fs';
import { resolve } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));
const build = resolve(process.env.CONTRACTS_BUILD ?? `${here}build`);
const load = (name) => import(pathToFileURL(`${build}/${name}.js`).href);

const types = await load('doc-types');
const naming = await load('day-db-naming');
const manifest = await load('day-manifest');
const flags = await load('feature-flags');
const queue = await load('continuity-queue');

const calls = {
  isDynamic: types.isDynamic,
  databaseKindOf: types.databaseKindOf,
  isTerminal: types.isTerminal,

  isBusinessDay: naming.isBusinessDay,
  isId: naming.isId,
  isEnv: naming.isEnv,
  coreDbName: naming.coreDbName,
  dailyDbName: naming.dailyDbName,
  legacyDbName: naming.legacyDbName,
  dailySuffix: naming.dailySuffix,
  parseDbName: naming.parseDbName,
  parseSuffix: naming.parseSuffix,

  parseDayManifest: manifest.parseDayManifest,
  isRollingDb: flags.isRollingDb,
  isRollingDbDrop: flags.isRollingDbDrop,

  commandStatuses: () => queue.COMMAND_STATUSES,
  outboxStatuses: () => queue.OUTBOX_STATUSES,
  replicationModes: () => queue.REPLICATION_MODES,
  errorCodes: () => queue.CONTINUITY_ERROR_CODES,
  essentialCommandTypes: () => queue.ESSENTIAL_COMMAND_TYPES,
  isEssential: queue.isEssential,
  limits: () => ({
    maxAttempts: queue.MAX_ATTEMPTS,
    backoffBaseSeconds: queue.BACKOFF_BASE_SECONDS,
    backoffCapSeconds: queue.BACKOFF_CAP_SECONDS,
    backoffJitter: queue.BACKOFF_JITTER,
    maxCommandPayloadBytes: queue.MAX_COMMAND_PAYLOAD_BYTES,
    maxOutboxPayloadBytes: queue.MAX_OUTBOX_PAYLOAD_BYTES,
    maxSnapshotPayloadBytes: queue.MAX_SNAPSHOT_PAYLOAD_BYTES,
  }),
  backoffSeconds: queue.backoffSeconds,
};

const covered = new Set();
for (const file of readdirSync(`${here}vectors`).filter((name) => name.endsWith('.json'))) {
  const vectors = JSON.parse(readFileSync(`${here}vectors/${file}`, 'utf8'));
  test(file, async (t) => {
    for (const { name, call, args, want } of vectors) {
      covered.add(call);
      await t.test(name, () => check(`${file}: ${name}`, call, args, want));
    }
  });
}

test('every function has a vector', () => {
  for (const name of Object.keys(calls)) {
    if (!covered.has(name)) throw new Error(`mismatch: no vector calls ${name}`);
  }
});

function check(title, call, args, want) {
  if (!Object.hasOwn(calls, call)) throw new Error(`mismatch: ${title}: no function ${call}`);
  const got = calls[call](...args);
  try {
    deepStrictEqual(got, want);
  } catch {
    const gives = `${call} gives ${JSON.stringify(got)}, want ${JSON.stringify(want)}`;
    throw new Error(`mismatch: ${title}: ${gives}`);
  }
}
