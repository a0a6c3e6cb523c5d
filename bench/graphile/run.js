'use strict';
// Puts jobs that do nothing through graphile-worker, and prints {"seconds",
// "latencyMs"}: from the first enqueue until the last job was completed, and what
// each took of that.
//
// The task is one line of JSON on standard input, since the address holds a
// password: {"postgres", "jobs", "everyMs", "batch", "senders", "connections",
// "payload"}. The worker takes jobs and completes them in batches, as it is told
// to for much work.

const fs = require('node:fs');
const { EventEmitter } = require('node:events');
const { run, makeWorkerUtils, runMigrations, Logger } = require('graphile-worker');

async function main() {
  const task = JSON.parse(fs.readFileSync(0, 'utf8'));
  const logger = new Logger(() => () => {});
  const common = { connectionString: task.postgres, maxPoolSize: task.connections, logger };
  await runMigrations(common);
  const utils = await makeWorkerUtils(common);

  const sent = new Float64Array(task.jobs);
  const latencyMs = new Array(task.jobs);
  let left = task.jobs;
  let finish;
  const finished = new Promise((resolve) => { finish = resolve; });
  const events = new EventEmitter();
  events.on('job:complete', ({ job, error }) => {
    if (error) throw error;
    const i = job.payload.index;
    latencyMs[i] = performance.now() - sent[i];
    if (--left === 0) finish();
  });
  const fast = task.everyMs === 0;
  const runner = await run({
    ...common,
    events,
    noHandleSignals: true,
    taskList: { nothing: async () => {} },
    preset: {
      worker: {
        concurrentJobs: 24,
        ...(fast ? { localQueue: { size: 500 }, completeJobBatchDelay: 0 } : {}),
      },
    },
  });

  const start = performance.now();
  let next = 0;
  async function send() {
    while (next < task.jobs) {
      const specs = [];
      for (; specs.length < task.batch && next < task.jobs; next++) {
        specs.push({ identifier: 'nothing', payload: { index: next, payload: task.payload } });
      }
      const first = specs[0].payload.index;
      const early = start + first * task.everyMs - performance.now();
      if (early > 0) await new Promise((resolve) => { setTimeout(resolve, early); });
      for (let i = first; i < first + specs.length; i++) sent[i] = performance.now();
      if (task.batch === 1) await utils.addJob('nothing', specs[0].payload);
      else await utils.addJobs(specs);
    }
  }
  await Promise.all(Array.from({ length: task.senders }, send));
  await finished;
  const seconds = (performance.now() - start) / 1000;
  await runner.stop();
  await utils.release();
  console.log(JSON.stringify({ seconds, latencyMs }));
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
