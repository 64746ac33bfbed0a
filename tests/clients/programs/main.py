"""Submits, reads, cancels and works with the generated Python client."""

import json
import sys

import mainspring_client as m

QUEUE = "clients-python"
client = m.ApiClient(m.Configuration(host=sys.argv[1]))
jobs, runs, workers = m.JobsApi(client), m.RunsApi(client), m.RemoteWorkersApi(client)

job = jobs.create_job(m.JobIn(task="greet", queue=QUEUE, timeout="30s", payload={"name": "Ada"}))
later = jobs.create_job(m.JobIn(task="greet", queue=QUEUE, delay="1h"))
jobs.cancel_job(later.job_id)

nightly = jobs.create_job(
    m.JobIn(
        name="nightly python",
        task="greet",
        queue=QUEUE,
        cronExpression="0 2 * * *",
        catchUp=m.CatchUpIn(mode="all"),
        breaker=m.BreakerIn(failures=3),
        tags=["kept"],
        payload="kept",
    )
)
jobs.change_job(nightly.job_id, m.JobPatch(priority=3))
page = jobs.list_jobs(queue=QUEUE, limit=10)

worker = workers.register(m.RegisterIn(name="worker in Python", queues=[QUEUE]))
claimed = workers.claim(worker.worker_id, m.ClaimIn(waitSeconds=10))
run = claimed.runs[0]
beat = workers.heartbeat(worker.worker_id, m.HeartbeatIn(held=[run.run_id], claim=claimed.claim))
reported = workers.complete(run.run_id, m.CompleteIn(fence=run.fence, result=f"Hello {run.payload['name']}"))

problem = None
try:
    jobs.get_job("0" * 32)
except m.ApiException as error:
    problem = m.Problem.from_json(error.body).title

json.dump(
    {
        "job": job.job_id,
        "cancelled": later.job_id,
        "recurring": nightly.job_id,
        "within": nightly.breaker.within,
        "mode": nightly.catch_up.mode,
        "listed": [item.job_id for item in page.items],
        "fence": run.fence,
        "alive": beat.alive,
        "answer": reported.answer,
        "problem": problem,
        "status": jobs.get_job(job.job_id).status,
        "result": runs.get_run(run.run_id).result,
    },
    sys.stdout,
)
