// What both programs in Node.js need: counters and stamps as bench/peers/protocol.md describes them.
const fs = require("node:fs");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");

const directory = process.env.PEER_DIRECTORY;
const url = process.env.PEER_URL;
const payload = JSON.parse(process.env.PEER_PAYLOAD ?? "{}");
const BATCH = 1000;

// Counts executions in `<pid>.count`, written every 20 ms; `stamp` appends a record to `<pid>.stamps`.
function recorder() {
  const counts = fs.openSync(path.join(directory, `${process.pid}.count`), "w");
  const stamps = fs.openSync(path.join(directory, `${process.pid}.stamps`), "a");
  const number = Buffer.alloc(8);
  let executed = 0;
  let written = -1;
  setInterval(() => {
    if (executed !== written) {
      written = executed;
      number.writeBigInt64LE(BigInt(executed));
      fs.writeSync(counts, number, 0, 8, 0);
    }
  }, 20);
  return {
    count: (jobs = 1) => {
      executed += jobs;
    },
    stamp: ({ n, due }) => {
      const record = Buffer.alloc(32);
      record.writeBigInt64LE(BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)), 24);
      record.writeBigInt64LE(BigInt(n), 0);
      record.writeBigInt64LE(BigInt(due), 16);
      fs.writeSync(stamps, record);
      executed += 1;
    },
  };
}

function executed() {
  let sum = 0;
  for (const name of fs.readdirSync(directory)) {
    if (name.endsWith(".count")) {
      const data = fs.readFileSync(path.join(directory, name));
      sum += data.length === 8 ? Number(data.readBigInt64LE()) : 0;
    }
  }
  return sum;
}

const nowMicros = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

// `add(job)` submits one, `addMany(jobs)` a batch. A job is {task, data, at?: Date}.
async function submitter({ install, add, addMany, close }) {
  const nothing = { task: "nothing", data: payload };
  const batch = () => Array.from({ length: BATCH }, () => nothing);
  const timed = async (seconds, tasks, each) => {
    let jobs = await each();
    jobs = 0;
    const cpu = process.cpuUsage();
    const started = performance.now();
    const until = started + seconds * 1000;
    await Promise.all(
      Array.from({ length: tasks }, async () => {
        while (performance.now() < until) {
          // In one expression, the sum would be read before the others have added to it.
          const submitted = await each();
          jobs += submitted;
        }
      }),
    );
    const took = (performance.now() - started) / 1000;
    const used = process.cpuUsage(cpu);
    return { jobs, seconds: took, processor_seconds: (used.user + used.system) / 1e6 };
  };
  const one = async () => (await add(nothing), 1);
  const many = async () => (await addMany(batch()), BATCH);
  const commands = {
    install,
    fill: async (jobs) => {
      for (let left = jobs; left > 0; left -= BATCH) await addMany(batch().slice(0, left));
      return jobs;
    },
    single: (seconds) => timed(seconds, 1, one),
    concurrent: (seconds) => timed(seconds, 64, one),
    batches: (seconds) => timed(seconds, 1, many),
    ahead: async (backlog) => {
      let stop = false;
      let submitted = 0;
      process.stdin.on("end", () => (stop = true)).resume();
      while (!stop) {
        if (submitted - executed() + BATCH > backlog) await sleep(5);
        else submitted += await many();
      }
      process.stdin.destroy();
      return submitted;
    },
    idle: async (samples) => {
      for (let n = 0; n < samples; n++) {
        await sleep(20 + Math.random() * 40);
        await add({ task: "stamp", data: { n, due: nowMicros() } });
      }
      return samples;
    },
    herd: async (jobs, due) => {
      const all = Array.from({ length: jobs }, (_, n) => ({ task: "stamp", data: { n, due }, at: new Date(due / 1000) }));
      while (all.length) await addMany(all.splice(0, BATCH));
      return jobs;
    },
  };
  const [what, ...numbers] = process.argv.slice(2);
  const answer = await commands[what](...numbers.map(Number));
  await close();
  process.stdout.write(JSON.stringify(answer ?? null));
}

module.exports = { url, recorder, submitter, ready: () => console.error("mainspring: ready") };
