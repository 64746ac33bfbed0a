// LISTEN/NOTIFY on, the shortest polling interval, large batches that are fetched again at once while they are full.
const { PgBoss } = require("pg-boss");
const { url, recorder, ready } = require("../node.js");

const { count, stamp } = recorder();
const options = {
  batchSize: 500,
  localConcurrency: 2,
  pollingIntervalSeconds: 0.5,
  notifyPollingIntervalSeconds: 0.5,
  burstWhenBatchFull: true,
};

async function main() {
  const boss = new PgBoss({ connectionString: url, useListenNotify: true, schedule: false });
  boss.on("error", console.error);
  await boss.start();
  await boss.work("nothing", options, async (jobs) => count(jobs.length));
  await boss.work("stamp", options, async (jobs) => jobs.forEach((job) => stamp(job.data)));
  process.on("SIGTERM", () => boss.stop({ graceful: false }).then(() => process.exit()));
  ready();
}

main();
