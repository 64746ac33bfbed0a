// Submits, reads, cancels and works with the generated TypeScript client.
import { Configuration, JobsApi, RemoteWorkersApi, ResponseError, RunsApi, type Problem } from "./client/index.js";

declare const process: { argv: string[] };

const queue = "clients-typescript";
const configuration = new Configuration({ basePath: process.argv[2] });
const jobs = new JobsApi(configuration);
const runs = new RunsApi(configuration);
const workers = new RemoteWorkersApi(configuration);

const job = await jobs.createJob({
  jobIn: { task: "greet", queue, timeout: "30s", payload: { name: "Ada" } },
});
const later = await jobs.createJob({ jobIn: { task: "greet", queue, delay: "1h" } });
await jobs.cancelJob({ id: later.jobId });

const nightly = await jobs.createJob({
  jobIn: {
    name: "nightly typescript",
    task: "greet",
    queue,
    cronExpression: "0 2 * * *",
    catchUp: { mode: "all" },
    breaker: { failures: 3 },
    tags: ["kept"],
    payload: "kept",
  },
});
await jobs.changeJob({ id: nightly.jobId, jobPatch: { priority: 3 } });
const page = await jobs.listJobs({ queue, limit: 10 });

const worker = await workers.register({ registerIn: { name: "worker in TypeScript", queues: [queue] } });
const claimed = await workers.claim({ id: worker.workerId, claimIn: { waitSeconds: 10 } });
const run = claimed.runs[0];
const beat = await workers.heartbeat({
  id: worker.workerId,
  heartbeatIn: { held: [run.runId], claim: claimed.claim },
});
const reported = await workers.complete({
  id: run.runId,
  completeIn: { fence: run.fence, result: `Hello ${run.payload.name}` },
});

let problem: Problem | undefined;
try {
  await jobs.getJob({ id: "0".repeat(32) });
} catch (error) {
  if (!(error instanceof ResponseError)) throw error;
  problem = await error.response.json();
}

console.log(
  JSON.stringify({
    job: job.jobId,
    cancelled: later.jobId,
    recurring: nightly.jobId,
    within: nightly.breaker?.within,
    mode: nightly.catchUp?.mode,
    listed: page.items.map((item) => item.jobId),
    fence: run.fence,
    alive: beat.alive,
    answer: reported.answer,
    problem: problem?.title,
    status: (await jobs.getJob({ id: job.jobId })).status,
    result: (await runs.getRun({ id: run.runId })).result,
  }),
);
