"""Labels and broadcasts over HTTP."""

from typing import Any

import httpx2
import pytest

from tests.api.test_remote import claim, submit


async def register(client: httpx2.AsyncClient, labels: dict[str, str], **fields: Any) -> str:
    body = {"name": "curl", "queues": ["default"], "tasks": ["t"], "labels": labels, **fields}
    response = await client.post("/v1/workers/register", json=body)
    assert response.status_code == 201, response.text
    worker: str = response.json()["workerId"]
    return worker


async def test_a_worker_with_labels_gets_runs_that_require_them(client: httpx2.AsyncClient) -> None:
    plain, gpu = await register(client, {}), await register(client, {"gpu": "a100", "region": "eu"})
    listed = {worker["workerId"]: worker for worker in (await client.get("/v1/workers")).json()["items"]}
    assert listed[gpu]["labels"] == {"gpu": "a100", "region": "eu"}
    assert "labels" not in listed[plain]
    job = await submit(client, requires={"gpu": "a100"})
    assert (await client.get(f"/v1/jobs/{job}")).json()["requires"] == {"gpu": "a100"}
    assert await claim(client, plain) == []
    assert [run["runId"] for run in await claim(client, gpu)] == [job]


async def test_an_explanation_names_the_missing_label(client: httpx2.AsyncClient) -> None:
    await register(client, {"gpu": "h100"})
    job = await submit(client, requires={"gpu": "a100"})
    explained = (await client.get(f"/v1/runs/{job}/explain")).json()
    assert explained["reasons"] == ["no live worker has gpu=a100"]


async def test_the_required_labels_of_a_job_can_be_changed(client: httpx2.AsyncClient) -> None:
    gpu = await register(client, {"gpu": "a100"})
    job = await submit(client, requires={"gpu": "h100"})
    changed = await client.patch(f"/v1/jobs/{job}", json={"priority": 2})
    assert changed.json()["requires"] == {"gpu": "h100"}
    assert await claim(client, gpu) == []
    changed = await client.patch(f"/v1/jobs/{job}", json={"requires": {"gpu": "a100"}})
    assert changed.status_code == 200, changed.text
    assert len(await claim(client, gpu)) == 1


async def test_a_recurring_job_can_require_labels(client: httpx2.AsyncClient) -> None:
    made = await client.post(
        "/v1/jobs", json={"name": "nightly", "task": "t", "cronExpression": "@daily", "requires": {"gpu": "a100"}}
    )
    assert made.status_code == 201, made.text
    read = (await client.get(f"/v1/jobs/{made.json()['jobId']}")).json()
    assert read["requires"] == {"gpu": "a100"}


@pytest.mark.parametrize("requires", [{"gpu": ""}, {"a b": "x"}, {"gpu": 1}, {f"n{n}": "x" for n in range(9)}, ["gpu"]])
async def test_invalid_labels_are_rejected_with_their_field(client: httpx2.AsyncClient, requires: object) -> None:
    refused = await client.post("/v1/jobs", json={"task": "t", "requires": requires})
    assert refused.status_code == 400
    assert refused.json()["field"].startswith("requires")


async def test_a_broadcast_runs_once_on_every_worker_that_knows_the_task(client: httpx2.AsyncClient) -> None:
    one, other = await register(client, {}), await register(client, {}, queues=["mail"])
    stranger = await register(client, {}, tasks=["else"])
    made = await client.post("/v1/broadcasts", json={"task": "t", "payload": {"a": 1}})
    assert made.status_code == 201, made.text
    runs = {run["workerId"]: run["runId"] for run in made.json()["runs"]}
    assert runs.keys() == {one, other}
    assert await claim(client, stranger) == []
    for worker in (one, other):
        assert [(run["runId"], run["payload"]) for run in await claim(client, worker, limit=5)] == [
            (runs[worker], {"a": 1})
        ]
        assert await claim(client, worker, limit=5) == []


async def test_a_repeated_broadcast_returns_the_same_runs(client: httpx2.AsyncClient) -> None:
    await register(client, {})
    job = await submit(client)
    body = {"task": "t", "broadcastId": job}
    first, second = [(await client.post("/v1/broadcasts", json=body)).json() for _ in range(2)]
    assert first == second
    assert len(first["runs"]) == 1


async def test_a_broadcast_without_workers_creates_no_runs(client: httpx2.AsyncClient) -> None:
    made = await client.post("/v1/broadcasts", json={"task": "t"})
    assert (made.status_code, made.json()) == (201, {"runs": []})


@pytest.mark.parametrize(
    "wrong", [{"every": "1m", "name": "x"}, {"broadcastId": "x"}, {"task": ""}, {"overlap": "skip"}]
)
async def test_an_invalid_broadcast_is_rejected(client: httpx2.AsyncClient, wrong: dict[str, str]) -> None:
    refused = await client.post("/v1/broadcasts", json={"task": "t", **wrong})
    assert refused.status_code == 400, refused.text
