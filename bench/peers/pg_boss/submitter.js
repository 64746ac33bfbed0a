const { PgBoss } = require("pg-boss");
const { url, submitter } = require("../node.js");

async function main() {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false });
  boss.on("error", console.error);
  await boss.start();
  await submitter({
    install: async () => {
      await boss.createQueue("nothing", { notify: true });
      await boss.createQueue("stamp", { notify: true });
    },
    add: ({ task, data, at }) => boss.send(task, data, at ? { startAfter: at } : {}),
    addMany: (jobs) => boss.insert(jobs[0].task, jobs.map(({ data, at }) => ({ data, startAfter: at }))),
    close: () => boss.stop({ graceful: false }),
  });
}

main();
