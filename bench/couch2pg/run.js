'use strict';
// Copies one CouchDB database to an empty Postgres database with couch2pg's own
// importer, and prints {"seconds", "documents"}: the import alone, without the
// start of Node and the migrations.
//
// Addresses come as one line of JSON on standard input, since they hold
// passwords: {"couchdb", "postgres", "documentsAtOnce", "changesAtOnce"}. Its
// command line is not used because it does not get far on a present Node: its
// migrations go through a driver that knows no SCRAM. The files are applied here
// instead, in their order, by the driver that the importer itself uses.

const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');

const entry = require.resolve('couch2pg');
const root = path.dirname(entry);
const its = createRequire(entry);

async function migrate(db) {
  const folder = path.join(root, 'migrations');
  for (const file of fs.readdirSync(folder).sort()) {
    await db.none(fs.readFileSync(path.join(folder, file), 'utf8'));
  }
}

async function main() {
  const task = JSON.parse(fs.readFileSync(0, 'utf8'));
  const pgp = its('pg-promise')({ promiseLib: its('rsvp').Promise });
  const db = pgp(task.postgres);
  await migrate(db);

  its('loglevel').setLevel('silent');
  const couchdb = its('./db')(task.couchdb);
  const importer = its('./lib/importer')(db, couchdb, task.documentsAtOnce, task.changesAtOnce, 'bench');

  const start = process.hrtime.bigint();
  await importer.importAll();
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;

  const { count } = await db.one('select count(*)::int as count from couchdb');
  console.log(JSON.stringify({ seconds, documents: count }));
  pgp.end();
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
