// Compares the sets and limits that are written down in several languages and
// prints one line per difference:
//
//   node contract-sets.mjs ROOT BUILD
//
// ROOT is the tree, BUILD the folder where its contracts/*.ts were built. The
// TypeScript is loaded; the Go map and the SQL are read by expressions that know
// one form each, and a form that they do not know is reported as a difference.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [root, build] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${build}/${name}.js`).href);

const TYPES_TS = 'contracts/doc-types.ts';
const TYPES_GO = 'contracts/doctypes.go';
const QUEUE_TS = 'contracts/continuity-queue.ts';
const PRIMARY = 'migrations/primary';
const QUEUE_SQL = 'migrations/hosted/046_continuity_transport.sql';
const CONSTRAINT = 'constraint archived_docs_type_dynamic';
const FUNCTION = 'function is_terminal';

try {
  await compareTypes();
  await compareQueue();
} catch (error) {
  console.log(`sets: no verdict: ${error.message.split('\n')[0]}`);
}

/** The types that rotate are those that are archived, with the same statuses. */
async function compareTypes() {
  const { DYNAMIC_DOC_TYPES: rotated, TERMINAL_STATUSES } = await load('doc-types');
  const statuses = new Set();
  for (const [type, ends] of TERMINAL_STATUSES) {
    for (const status of ends === 'always' ? ['always'] : ends) statuses.add(`${type} ${status}`);
  }
  compareSets('rotated set', `DYNAMIC_DOC_TYPES of ${TYPES_TS}`, rotated,
    `its TERMINAL_STATUSES`, new Set(TERMINAL_STATUSES.keys()));

  const code = readGoTypes();
  if (code !== null) {
    compareSets('archived set', TYPES_TS, rotated, TYPES_GO, code.types);
    compareStatuses(TYPES_GO, code);
  }
  const sql = readMigrations(PRIMARY);
  const types = readConstraint(sql);
  if (types !== null) compareSets('archived set', TYPES_TS, rotated, CONSTRAINT, types);
  const terminal = readIsTerminal(sql);
  if (terminal !== null) compareStatuses(FUNCTION, { types: types ?? rotated, statuses: terminal });

  // A type that only one side has is reported once, not again by its statuses.
  function compareStatuses(title, other) {
    const shared = (pair) => rotated.has(pair.split(' ')[0]) === other.types.has(pair.split(' ')[0]);
    compareSets('terminal statuses', TYPES_TS, new Set([...statuses].filter(shared)),
      title, new Set([...other.statuses].filter(shared)));
  }
}

/** The keys and the pairs "type status" of the map terminalStatuses. */
function readGoTypes() {
  const source = readFileSync(`${root}/${TYPES_GO}`, 'utf8');
  const map = /\nvar terminalStatuses = map\[string\]\[\]string\{\n((?:\t.*\n)+)\}\n/.exec(source);
  const entries = map?.[1].trimEnd().split('\n').map((line) => /^\t"([a-z_]+)": +(?:nil|\{([^{}]+)\}),$/.exec(line));
  if (!entries?.every(Boolean)) return unreadable('archived set', TYPES_GO, 'var terminalStatuses');
  const statuses = new Set();
  for (const [, type, list] of entries) {
    const ends = list === undefined ? ['always'] : readList(list, '"');
    if (ends === null) return unreadable('archived set', TYPES_GO, 'var terminalStatuses');
    for (const status of ends) statuses.add(`${type} ${status}`);
  }
  return { types: new Set(entries.map(([, type]) => type)), statuses };
}

/** The types that the last definition of the constraint admits. */
function readConstraint(sql) {
  const form = /constraint archived_docs_type_dynamic check ?\(\(?(?:doc_type is null or )?doc_type in \(([^()]*)\)\)/g;
  const list = [...sql.matchAll(form)].at(-1);
  const types = list && readList(list[1], "'");
  const dropped = sql.lastIndexOf('drop constraint archived_docs_type_dynamic');
  if (!types || dropped > list.index) return unreadable('archived set', PRIMARY, CONSTRAINT);
  return new Set(types);
}

/** The pairs "type status" for which the last definition of is_terminal is true. */
function readIsTerminal(sql) {
  const form = /function is_terminal\(doc_type text, status text\) [^$]*\$\$ ?select (?:coalesce\()?case doc_type (.*?) else false end(?:, false\))? ?;? ?\$\$/g;
  const clause = /^when '([a-z_]+)' then (?:(true)|status = ('[a-z_]+')|status in \(([^()]*)\))$/;
  const cases = [...sql.matchAll(form)].at(-1)?.[1].split(/ (?=when )/);
  const pairs = new Set();
  for (const text of cases ?? ['']) {
    const [, type, always, one, several] = clause.exec(text) ?? [];
    const ends = always ? ['always'] : readList(one ?? several ?? '', "'");
    if (ends === null) return unreadable('terminal statuses', PRIMARY, FUNCTION);
    for (const status of ends) pairs.add(`${type} ${status}`);
  }
  return pairs;
}

/** The queue's contract is what the hosted migration created. */
async function compareQueue() {
  if (!existsSync(`${root}/${QUEUE_SQL}`)) {
    console.error('continuity: hosted migration not present yet');
    return;
  }
  const queue = await load('continuity-queue');
  const sql = normalise(readFileSync(`${root}/${QUEUE_SQL}`, 'utf8'));
  const table = (name) => new RegExp(`create table (?:if not exists )?(?:public\\.)?${name} ?\\(([^;]*);`).exec(sql)?.[1] ?? '';
  const body = (name) => new RegExp(`function (?:public\\.)?${name}\\(.*?\\$\\$(.*?)\\$\\$`).exec(sql)?.[1] ?? '';

  const sets = [
    ['continuity_commands', 'status', queue.COMMAND_STATUSES],
    ['continuity_outbox', 'status', queue.OUTBOX_STATUSES],
    ['continuity_replication_state', 'mode', queue.REPLICATION_MODES],
  ];
  for (const [name, column, want] of sets) {
    const list = new RegExp(`\\b${column} in \\(([^()]*)\\)`).exec(table(name))?.[1];
    const got = readList(list ?? '', "'");
    if (got === null) unreadable('continuity', QUEUE_SQL, `${name}.${column}`);
    else compareSets(`continuity: ${name}.${column}`, QUEUE_TS, new Set(want), QUEUE_SQL, new Set(got));
  }

  const attempts = /\bmax_attempts (?:int|integer|smallint)\b[^,]*? default ([0-9]+)/;
  const bytes = /octet_length\(payload::text\) <= ([0-9]+(?: \* [0-9]+)*)/;
  const backoff = /\bleast\(([0-9]+), ([0-9]+) \* power\(2, /.exec(body('continuity_fail_command'));
  const limits = [
    ['continuity_commands.max_attempts', queue.MAX_ATTEMPTS, attempts.exec(table('continuity_commands'))?.[1]],
    ['continuity_commands.payload', queue.MAX_COMMAND_PAYLOAD_BYTES, bytes.exec(table('continuity_commands'))?.[1]],
    ['continuity_outbox.payload', queue.MAX_OUTBOX_PAYLOAD_BYTES, bytes.exec(table('continuity_outbox'))?.[1]],
    ['continuity_snapshots.payload', queue.MAX_SNAPSHOT_PAYLOAD_BYTES, bytes.exec(table('continuity_snapshots'))?.[1]],
    ['continuity_fail_command.cap', queue.BACKOFF_CAP_SECONDS, backoff?.[1]],
    ['continuity_fail_command.base', queue.BACKOFF_BASE_SECONDS, backoff?.[2]],
  ];
  for (const [name, want, text] of limits) {
    if (text === undefined) {
      unreadable('continuity', QUEUE_SQL, name);
      continue;
    }
    const got = text.split(' * ').map(Number).reduce((a, b) => a * b);
    if (got !== want) console.log(`continuity: ${name}: ${want} in ${QUEUE_TS} but ${got} in ${QUEUE_SQL}`);
  }
}

function compareSets(topic, leftTitle, left, rightTitle, right) {
  for (const item of left) {
    if (!right.has(item)) console.log(`${topic}: ${item} is in ${leftTitle} but not in ${rightTitle}`);
  }
  for (const item of right) {
    if (!left.has(item)) console.log(`${topic}: ${item} is in ${rightTitle} but not in ${leftTitle}`);
  }
}

function unreadable(topic, where, what) {
  console.log(`${topic}: ${where} has no ${what} of the known form`);
  return null;
}

/** The items of a list of quoted words, or null when it is anything else. */
function readList(text, quote) {
  const items = text.split(', ').map((item) => new RegExp(`^${quote}([a-z_]+)${quote}$`).exec(item)?.[1]);
  return items.includes(undefined) ? null : items;
}

/** All migrations of a folder in their order, as one line. */
function readMigrations(folder) {
  if (!existsSync(`${root}/${folder}`)) return '';
  const files = readdirSync(`${root}/${folder}`).filter((name) => name.endsWith('.sql')).sort();
  return normalise(files.map((name) => readFileSync(`${root}/${folder}/${name}`, 'utf8')).join('\n'));
}

/** SQL without comments, in lower case, with single spaces and none inside brackets. */
function normalise(sql) {
  return sql
    .replace(/--.*$/gm, '')
    .toLowerCase()
    .replace(/\s+/g, ' ')
    .replace(/\( /g, '(')
    .replace(/ \)/g, ')');
}
