"""A worker in any language, spoken over HTTP."""

import asyncio
from typing import Any

import httpx2

from mainspring.domain.access import Role
from tests.api.conftest import Service


async def register(client: httpx2.AsyncClient, *queues: str) -> str:
    response = await client.post("/v1/workers/register", json={"name": "curl", "queues": list(queues) or ["default"]})
    assert response.status_code == 201, response.text
    worker: str = response.json()["workerId"]
    return worker


async def submit(client: httpx2.AsyncClient, **fields: Any) -> str:
    made = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert made.status_code == 201, made.text
    job: str = made.json()["jobId"]
    return job


async def claim(client: httpx2.AsyncClient, worker: str, **body: Any) -> list[dict[str, Any]]:
    response = await client.post(f"/v1/workers/{worker}/claim", json=body)
    assert response.status_code == 200, response.text
    runs: list[dict[str, Any]] = response.json()["runs"]
    return runs


async def test_claim_report_complete(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client, payload={"a": 1})
    (run,) = await claim(client, worker, limit=10)
    assert (run["runId"], run["payload"], run["attemptNumber"]) == (job, {"a": 1}, 1)
    fence = run["fence"]
    progress = await client.post(f"/v1/runs/{job}/progress", json={"fence": fence, "done": 1, "total": 2})
    assert progress.status_code == 200, progress.text
    assert (await client.post(f"/v1/runs/{job}/log", json={"fence": fence, "text": "one\ntwo"})).status_code == 200
    status = (await client.get(f"/v1/jobs/{job}/status")).json()
    assert (status["status"], status["progress"], status["progressDone"]) == ("running", "50%", 1)
    assert status["executorId"] == f"curl#{worker}"
    done = await client.post(f"/v1/runs/{job}/complete", json={"fence": fence, "result": {"ok": True}})
    assert done.json()["verdict"] == "applied"
    again = await client.post(f"/v1/runs/{job}/complete", json={"fence": fence, "result": {"ok": True}})
    assert again.json()["verdict"] == "already applied"
    read = (await client.get(f"/v1/runs/{job}")).json()
    assert (read["status"], read["result"], read["progress"]) == ("succeeded", {"ok": True}, "100%")
    log = (await client.get(f"/v1/runs/{job}/logs")).json()
    assert [line["text"] for line in log["items"]] == ["one\ntwo"]
    assert log["ended"]


async def test_an_old_fence_is_refused(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    (run,) = await claim(client, worker)
    for path, body in (
        ("complete", {}),
        ("fail", {"error": "x"}),
        ("progress", {"done": 1}),
        ("log", {"text": "x"}),
        ("release", {}),
    ):
        response = await client.post(f"/v1/runs/{job}/{path}", json={"fence": run["fence"] + 1, **body})
        assert response.status_code == 409, (path, response.text)
        assert response.json()["title"] == "Fenced"
    assert (await client.get(f"/v1/runs/{job}")).json()["status"] == "running"


async def test_failures_are_retried_by_the_policy_or_given_up(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client, maxRetries=1, retry={"backoff": "fixed", "firstDelay": "0s"})
    (run,) = await claim(client, worker)
    await client.post(f"/v1/runs/{job}/fail", json={"fence": run["fence"], "error": "ValueError: no 1"})
    again = (await client.get(f"/v1/runs/{job}")).json()
    assert again["status"] == "scheduled"
    assert again["attempts"][0]["errorMessage"] == "ValueError: no 1"
    other = await submit(client)
    (run,) = await claim(client, worker)
    await client.post(f"/v1/runs/{other}/fail", json={"fence": run["fence"], "error": "ValueError: 2", "retry": False})
    assert (await client.get(f"/v1/runs/{other}")).json()["status"] == "failed"
    groups = (await client.get("/v1/dead-letters")).json()["items"]
    assert [(group["count"], group["sampleRunId"]) for group in groups] == [(1, other)]


async def test_cancel_reaches_the_worker(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    (run,) = await claim(client, worker)
    asked = await client.delete(f"/v1/jobs/{job}")
    assert (asked.status_code, asked.json()["status"]) == (202, "cancelling")
    beat = (await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [job]})).json()
    assert beat["cancel"] == [job]
    stopped = await client.post(f"/v1/runs/{job}/cancelled", json={"fence": run["fence"]})
    assert stopped.status_code == 200, stopped.text
    assert (await client.get(f"/v1/runs/{job}")).json()["status"] == "cancelled"


async def test_a_claim_whose_answer_was_lost_is_given_back(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    lost = (await client.post(f"/v1/workers/{worker}/claim")).json()
    beat = await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [], "claim": lost["claim"]})
    assert beat.json()["returned"] == 1
    (run,) = await claim(client, worker)
    assert (run["runId"], run["attemptNumber"]) == (job, 1)


async def test_long_poll_is_woken_by_a_submit(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    poll = asyncio.create_task(claim(client, worker, waitSeconds=20))
    await asyncio.sleep(0.05)
    assert not poll.done()
    job = await submit(client)
    (run,) = await asyncio.wait_for(poll, 2)
    assert run["runId"] == job


async def test_a_tenants_worker_gets_only_its_tenants_runs(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.SUBMITTER, "a")) as a,
        guarded.client(await guarded.key(Role.SUBMITTER, "b")) as b,
        guarded.client(await guarded.key(Role.WORKER, "b")) as worker_of_b,
    ):
        await submit(a)
        mine = await submit(b)
        worker = await register(worker_of_b)
        assert [run["runId"] for run in await claim(worker_of_b, worker, limit=10)] == [mine]


async def test_a_key_for_some_queues_reaches_no_other(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.WORKER, "a", ("mail",))) as client:
        refused = await client.post("/v1/workers/register", json={"name": "w", "queues": ["mail", "other"]})
        assert refused.status_code == 400
        worker = await register(client, "mail")
        wrong = await client.post(f"/v1/workers/{worker}/claim", json={"queues": ["other"]})
        assert wrong.status_code == 400
    async with guarded.client(await guarded.key(Role.SUBMITTER, "a", ("mail",))) as client:
        assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 403
        assert (await client.post("/v1/jobs", json={"task": "t", "queue": "mail"})).status_code == 201


async def test_a_paused_queue_is_not_claimed(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    await client.post("/v1/queues/default/pause", json={"why": "deploy"})
    assert await claim(client, worker) == []
    why = (await client.get(f"/v1/runs/{job}/explain")).json()
    assert why["reasons"][0] == "its queue 'default' is paused: deploy"
    await client.post("/v1/queues/default/resume")
    await client.post("/v1/pause")
    assert await claim(client, worker) == []
    await client.post("/v1/resume")
    assert len(await claim(client, worker)) == 1
