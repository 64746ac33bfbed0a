"""Pauses with an end time and a reason, and versions of a job."""

from typing import Any

import httpx2
import pytest


@pytest.fixture
async def job(client: httpx2.AsyncClient) -> str:
    made = await client.post(
        "/v1/jobs", json={"name": "report", "task": "t", "every": "1h", "payload": {"to": "board"}}
    )
    assert made.status_code == 201, made.text
    identifier: str = made.json()["jobId"]
    return identifier


async def test_a_job_is_paused_with_an_end_time_and_a_reason(client: httpx2.AsyncClient, job: str) -> None:
    body = {"until": "2090-01-01T00:00:00Z", "why": "the bank is closed"}
    paused = await client.post(f"/v1/jobs/{job}/pause", json=body)
    assert paused.json() == {"jobId": job, "status": "paused", "resumeAt": "2090-01-01T00:00:00Z"}
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    assert (shown["status"], shown["pauseReason"], shown["resumeAt"]) == ("paused", body["why"], body["until"])
    assert (await client.post(f"/v1/jobs/{job}/resume")).status_code == 200
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    assert (shown["status"], shown.get("pauseReason"), shown.get("resumeAt")) == ("scheduled", None, None)


@pytest.mark.parametrize(
    "body", [{"until": "2020-01-01T00:00:00Z"}, {"until": "18:00"}, {"until": 5}, {"untill": "2090-01-01T00:00:00Z"}]
)
@pytest.mark.parametrize("path", ["/v1/jobs/{job}/pause", "/v1/queues/mail/pause", "/v1/pause"])
async def test_an_invalid_pause_is_rejected_with_its_field(
    client: httpx2.AsyncClient, job: str, path: str, body: dict[str, Any]
) -> None:
    refused = await client.post(path.format(job=job), json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, next(iter(body)))
    assert (await client.get(f"/v1/jobs/{job}")).json()["status"] == "scheduled"


async def test_a_queue_is_paused_with_an_end_time(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/jobs", json={"task": "t", "queue": "mail"})
    body = {"until": "2090-01-01T00:00:00Z", "why": "closed"}
    answer = (await client.post("/v1/queues/mail/pause", json=body)).json()
    assert answer == {"name": "mail", "paused": True, "resumeAt": "2090-01-01T00:00:00Z"}
    [queue] = (await client.get("/v1/queues")).json()["items"]
    assert (queue["paused"], queue["pauseReason"], queue["resumeAt"]) == (True, "closed", "2090-01-01T00:00:00Z")


async def test_versions_are_compared_and_restored(client: httpx2.AsyncClient, job: str) -> None:
    path = f"/v1/jobs/{job}"
    await client.patch(path, json={"every": "2h", "why": "less often"})
    await client.patch(path, json={"payload": {"to": "all"}, "priority": 2})
    newest = (await client.get(f"{path}/diff")).json()
    assert newest == {
        "jobId": job,
        "from": 2,
        "to": 3,
        "changes": {
            "payload": {"before": {"to": "board"}, "after": {"to": "all"}},
            "priority": {"before": 5, "after": 2},
        },
    }
    assert set((await client.get(f"{path}/diff?from=1&to=3")).json()["changes"]) == {"every", "payload", "priority"}
    backwards = (await client.get(f"{path}/diff?from=2&to=1")).json()["changes"]
    assert backwards == {"every": {"before": "2h", "after": "1h"}}
    for missing in (await client.get(f"{path}/diff?from=1&to=9"), await client.post(f"{path}/versions/9/restore")):
        assert (missing.status_code, missing.json()["detail"]) == (404, "the job has no version 9, only 1 to 3")
    assert (await client.get(f"{path}/diff?from=0")).status_code == 400
    stale = await client.post(f"{path}/versions/1/restore", json={"expectedVersion": 2})
    assert stale.status_code == 409
    restored = await client.post(f"{path}/versions/1/restore", json={"why": "it was better", "expectedVersion": 3})
    assert (restored.status_code, restored.json()["version"], restored.json()["every"]) == (200, 4, "1h")
    assert (await client.get(f"{path}/diff?from=1&to=4")).json()["changes"] == {}
    [first, *_] = (await client.get(f"{path}/versions")).json()["items"]
    assert first["why"] == "restored version 1: it was better"
    assert (await client.post(f"{path}/versions/9/restore")).status_code == 404
