// graphile-worker: jobs fetched and completed in batches, as its documentation advises for throughput.
import { main, require } from "./tally.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");

const logger = new Logger(() => () => {});
const preset = { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
const at = (due) => (due === null ? {} : { runAt: new Date(due * 1000) });

await main(async (store) => {
  const pgPool = new Pool({ connectionString: store, max: 10 });
  let utils;
  const opened = async () => (utils ??= await makeWorkerUtils({ pgPool, logger }));
  return {
    setup: () => runMigrations({ pgPool, logger }),
    add: async (dues) =>
      (await opened()).addJobs(dues.map((due) => ({ identifier: "noop", payload: { due: due ?? 0 }, ...at(due) }))),
    addOne: async (due) => (await opened()).addJob("noop", { due: due ?? 0 }, at(due)),
    left: async () =>
      Number((await pgPool.query("SELECT count(*) FROM graphile_worker._private_jobs")).rows[0].count),
    work: (started) =>
      run({
        pgPool,
        logger,
        preset,
        concurrency: 24,
        noHandleSignals: true,
        taskList: { noop: async ({ due }) => started(due) },
      }),
  };
});
