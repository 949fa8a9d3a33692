// pg-boss: jobs fetched and completed in batches of 500, polled as often as it allows.
import { main, require } from "./tally.mjs";

const { PgBoss } = require("pg-boss");
const { Pool } = require("pg");

const QUEUE = "bench";
const at = (due) => (due === null ? {} : { startAfter: new Date(due * 1000) });

await main(async (store) => {
  const pool = new Pool({ connectionString: store, max: 2 });
  const boss = new PgBoss({ connectionString: store, max: 10 });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return {
    setup: () => boss.createQueue(QUEUE),
    add: (dues) => boss.insert(QUEUE, dues.map((due) => ({ data: { due: due ?? 0 }, ...at(due) }))),
    addOne: (due) => boss.send(QUEUE, { due: due ?? 0 }, at(due)),
    left: async () => {
      const sql = "SELECT count(*) FROM pgboss.job WHERE name = $1 AND state < 'completed'";
      return Number((await pool.query(sql, [QUEUE])).rows[0].count);
    },
    work: (started) =>
      boss.work(QUEUE, { batchSize: 500, pollingIntervalSeconds: 0.5 }, async (jobs) => {
        for (const { data } of jobs) started(data.due);
      }),
  };
});
