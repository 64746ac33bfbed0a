const { makeWorkerUtils, Logger } = require("graphile-worker");
const { url, submitter } = require("../node.js");

async function main() {
  const utils = await makeWorkerUtils({ connectionString: url, logger: new Logger(() => () => {}) });
  await submitter({
    install: () => utils.migrate(),
    add: ({ task, data, at }) => utils.addJob(task, data, { runAt: at }),
    addMany: (jobs) => utils.addJobs(jobs.map(({ task, data, at }) => ({ identifier: task, payload: data, runAt: at }))),
    close: () => utils.release(),
  });
}

main();
