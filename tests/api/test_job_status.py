"""What a job says of itself: its status, its runs, and what can be done with it when it is cancelled."""

from typing import Any

import httpx2
import pytest

from tests.api.conftest import memory_only
from tests.api.test_remote import claim, register

LATER = "2999-12-31T23:59:59Z"


async def create(client: httpx2.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["jobId"])


async def status(client: httpx2.AsyncClient, job: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/jobs/{job}/status")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def run_now(client: httpx2.AsyncClient, job: str) -> str:
    answer = await client.post(f"/v1/jobs/{job}/run")
    assert answer.status_code == 201, answer.text
    assert answer.json()["jobId"] == job
    return str(answer.json()["runId"])


async def run_ids(client: httpx2.AsyncClient, path: str, **query: str) -> list[str]:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return [run["runId"] for run in answer.json()["items"]]


async def complete(client: httpx2.AsyncClient, worker: str, run: str) -> None:
    [held] = [one for one in await claim(client, worker, limit=10) if one["runId"] == run]
    done = await client.post(f"/v1/runs/{run}/complete", json={"fence": held["fence"]})
    assert done.status_code == 200, done.text


async def test_a_paused_or_cancelled_job_says_so_beside_its_last_run(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await create(client, name="n", cronExpression="0 3 * * *")
    assert await status(client, job) == {"jobId": job, "status": "scheduled"}
    run = await run_now(client, job)
    await complete(client, worker, run)
    found = await status(client, job)
    assert (found["status"], found["runId"], found["runStatus"]) == ("succeeded", run, "succeeded")
    await client.post(f"/v1/jobs/{job}/pause")
    found = await status(client, job)
    assert (found["status"], found["runId"], found["runStatus"]) == ("paused", run, "succeeded")
    assert found["endTime"] is not None
    await client.post(f"/v1/jobs/{job}/resume")
    assert (await status(client, job))["status"] == "succeeded"
    await client.delete(f"/v1/jobs/{job}")
    found = await status(client, job)
    assert (found["status"], found["runId"], found["runStatus"]) == ("cancelled", run, "succeeded")


@pytest.mark.parametrize("fields", [{"name": "n", "every": "1h"}, {"scheduleTime": LATER}])
async def test_a_cancelled_job_cannot_be_run(client: httpx2.AsyncClient, fields: dict[str, Any]) -> None:
    job = await create(client, **fields)
    assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"
    answer = await client.post(f"/v1/jobs/{job}/run")
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert "the job is cancelled" in answer.json()["detail"]
    assert (await status(client, job))["status"] == "cancelled"


async def test_a_run_of_a_one_off_job_belongs_to_it(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job, other = await create(client, scheduleTime=LATER, name="one", tags=["a"]), await create(client, delay="1h")
    assert await run_ids(client, "/v1/runs", jobId=job) == await run_ids(client, f"/v1/jobs/{job}/runs") == [job]
    runs = [await run_now(client, job), await run_now(client, job)]
    newest_first = sorted([job, *runs], reverse=True)
    assert await run_ids(client, "/v1/runs", jobId=job) == newest_first
    assert await run_ids(client, f"/v1/jobs/{job}/runs") == newest_first
    assert await run_ids(client, "/v1/runs", jobId=job, status="queued") == sorted(runs, reverse=True)
    assert await run_ids(client, "/v1/runs", jobId=other) == [other]
    assert {run["jobId"] for run in (await client.get(f"/v1/jobs/{job}/runs")).json()["items"]} == {job}
    # They are no jobs of their own.
    assert (await client.get(f"/v1/jobs/{runs[0]}")).status_code == 404
    jobs = (await client.get("/v1/jobs")).json()["items"]
    assert sorted(one["jobId"] for one in jobs) == sorted([job, other])
    newest = max(runs)
    await complete(client, worker, newest)
    found = await status(client, job)
    assert (found["jobId"], found["status"], found["runId"]) == (job, "succeeded", newest)
    log = await client.get(f"/v1/jobs/{job}/logs")
    assert log.json()["runId"] == newest
    read = (await client.get(f"/v1/runs/{newest}")).json()
    assert (read["jobId"], read["name"], read["tags"]) == (job, "one", ["a"])


async def test_pages_of_the_runs_of_a_one_off_job(client: httpx2.AsyncClient) -> None:
    job = await create(client, scheduleTime=LATER)
    expected = sorted([job, *[await run_now(client, job) for _ in range(4)]], reverse=True)
    found: list[str] = []
    query: dict[str, str] = {"limit": "2"}
    while True:
        page = (await client.get(f"/v1/jobs/{job}/runs", params=query)).json()
        found += [run["runId"] for run in page["items"]]
        if page["nextCursor"] is None:
            break
        query["cursor"] = page["nextCursor"]
    assert found == expected


async def test_cancelling_a_one_off_job_cancels_the_runs_that_were_added(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await create(client)
    await complete(client, worker, job)
    assert (await client.delete(f"/v1/jobs/{job}")).status_code == 409
    waiting, running = await run_now(client, job), await run_now(client, job)
    [first, second] = await claim(client, worker, limit=10)
    assert {first["runId"], second["runId"]} == {waiting, running}
    answer = await client.delete(f"/v1/jobs/{job}")
    assert (answer.status_code, answer.json()) == (202, {"jobId": job, "status": "cancelling"})
    for held in (first, second):
        ended = await client.post(f"/v1/runs/{held['runId']}/cancelled", json={"fence": held["fence"]})
        assert ended.status_code == 200, ended.text
    assert await run_ids(client, "/v1/runs", jobId=job, status="cancelled") == sorted([waiting, running], reverse=True)


@memory_only
async def test_a_log_without_an_address_is_refused(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    recurring, job = await create(client, name="n", every="1h"), await create(client)
    await complete(client, worker, job)
    for path in (f"/v1/jobs/{recurring}/logs", f"/v1/jobs/{job}/logs", f"/v1/runs/{job}/logs"):
        assert (await client.get(path)).status_code == 200
        answer = await client.get(path, params={"url": "true"})
        assert (answer.status_code, answer.json()["title"]) == (409, "No address"), answer.text
        assert "omit url" in answer.json()["hint"]


@memory_only
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("success", {"succeeded"}),
        ("SUCCESS", {"succeeded"}),
        ("Completed", {"succeeded"}),
        ("PENDING", {"scheduled", "queued"}),
        ("IN_PROGRESS", {"running"}),
        ("FAILED, success", {"failed", "succeeded"}),
        ("canceled", {"cancelled"}),
    ],
)
async def test_filters_take_the_words_of_other_schedulers(
    client: httpx2.AsyncClient, words: str, expected: set[str]
) -> None:
    worker = await register(client)
    for outcome, body in (("complete", {}), ("fail", {"error": "E: x", "retry": False})):
        job = await create(client)
        [held] = await claim(client, worker)
        ended = await client.post(f"/v1/runs/{job}/{outcome}", json={"fence": held["fence"], **body})
        assert ended.status_code == 200, ended.text
    await client.delete(f"/v1/jobs/{await create(client)}")
    await create(client)
    await claim(client, worker)
    await create(client)
    await create(client, scheduleTime=LATER)
    for path in ("/v1/runs", "/v1/jobs"):
        found = (await client.get(path, params={"status": words})).json()["items"]
        assert {one["status"] for one in found} == expected, path
    bulk = {"action": "retag", "addTags": ["x"], "target": "runs", "status": words, "dryRun": True}
    assert (await client.post("/v1/bulk", json={**bulk, "task": "t"})).json()["matched"] == len(expected)
