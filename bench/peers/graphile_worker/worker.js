// Settings of https://worker.graphile.org/docs/performance: local queue, batched completions.
const { run, Logger } = require("graphile-worker");
const { url, recorder, ready } = require("../node.js");

const { count, stamp } = recorder();

run({
  preset: {
    worker: {
      connectionString: url,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: new Logger(() => () => {}),
    },
  },
  taskList: {
    nothing: async () => count(),
    stamp: async (payload) => stamp(payload),
  },
}).then(ready);
