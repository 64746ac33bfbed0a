"""Schedules as code over the API, on every store."""

from typing import Any

import httpx2

from mainspring.core.model.access.access import Quotas, Role, Tenant
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter
from tests.api.conftest import Service, memory_only

HOURLY = {"task": "t", "every": "1h"}


async def reconcile(client: httpx2.AsyncClient, source: str, *schedules: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"source": source, "schedules": list(schedules), **more}
    response = await client.post("/v1/schedules/reconcile", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def steps(answer: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(step["action"], step["name"], step["done"]) for step in answer["steps"]]


@memory_only
async def test_strict_refuses_schedules_with_the_number_of_obstacles(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    every = {"task": "bill", "every": "1h"}
    served, first, second, third = ({"name": name, "queue": name, **every} for name in ("billing", "a", "b", "c"))
    for schedules, more in (
        ([served, first], ""),
        ([first, second], "; 1 more obstacle"),
        ([first, second, third], "; 2 more obstacles"),
    ):
        body = {"source": "app:me", "schedules": schedules, "strict": True, "dryRun": False}
        refused = await client.post("/v1/schedules/reconcile", json=body)
        assert refused.status_code == 409
        detail = refused.json()["detail"]
        assert detail.startswith("no live worker serves queue 'a'; ")
        assert detail.endswith(f"(schedule a){more} (refused because of strict)")


async def test_reconcile_adds_changes_takes_over_and_removes_schedules(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/jobs", json={"name": "by-hand", **HOURLY})
    await reconcile(client, "app:other", {"name": "theirs", **HOURLY}, {"name": "shared", **HOURLY})
    a, b = {"name": "a", **HOURLY, "payload": {"x": 1}}, {"name": "b", **HOURLY}
    assert steps(await reconcile(client, "app:me", a, b, dryRun=True)) == [("add", "a", False), ("add", "b", False)]
    assert steps(await reconcile(client, "app:me", a, b)) == [("add", "a", True), ("add", "b", True)]
    again = await reconcile(client, "app:me", a, b)
    assert (again["steps"], again["unchanged"]) == ([], ["a", "b"])

    changed = await reconcile(client, "app:me", {**a, "payload": {"x": 2}}, {"name": "shared", **HOURLY})
    assert steps(changed) == [("change", "a", True), ("take over", "shared", False), ("remove", "b", False)]
    assert changed["steps"][0]["changes"] == {"payload": {"before": {"x": 1}, "after": {"x": 2}}}
    rest = await reconcile(
        client, "app:me", {**a, "payload": {"x": 2}}, {"name": "shared", **HOURLY}, remove=True, takeOver=True
    )
    assert steps(rest) == [("take over", "shared", True), ("remove", "b", True)]

    mine = (await client.get("/v1/jobs?source=app:me&status=scheduled")).json()["items"]
    assert {job["name"]: job["source"] for job in mine} == {"a": "app:me", "shared": "app:me"}
    others = (await client.get("/v1/jobs?kind=recurring&status=scheduled")).json()["items"]
    assert {job["name"] for job in others} == {"a", "shared", "theirs", "by-hand"}
    # A job that is changed by hand stays declared; the change is reported as drift.
    [job] = [job for job in mine if job["name"] == "a"]
    await client.patch(f"/v1/jobs/{job['jobId']}", json={"every": "2h"})
    [drift] = (await reconcile(client, "app:me", {**a, "payload": {"x": 2}}, {"name": "shared", **HOURLY}))["steps"]
    assert drift["changes"] == {"every": {"before": "2h", "after": "1h"}}
    versions = (await client.get(f"/v1/jobs/{job['jobId']}/versions")).json()["items"]
    assert versions[0]["why"] == "declared by app:me"


@memory_only
async def test_reconcile_with_an_invalid_schedule_names_it_and_changes_nothing(
    service: Service, client: httpx2.AsyncClient
) -> None:
    for wrong, field in (
        ({"name": "x", "task": "t"}, "schedules[1].cronExpression"),
        ({"name": "x", "task": "t", "every": "1h", "speed": 9}, "schedules[1].speed"),
        ({"name": "x", "task": "t", "cronExpression": "61 * * * *"}, "schedules[1].cronExpression"),
    ):
        body = {"source": "app:me", "schedules": [{"name": "a", **HOURLY}, wrong]}
        response = await client.post("/v1/schedules/reconcile", json=body)
        assert (response.status_code, response.json()["field"]) == (400, field), response.text
    body = {"source": "app:me", "schedules": [{"name": "a", **HOURLY}] * 2}
    assert (await client.post("/v1/schedules/reconcile", json=body)).status_code == 409
    assert (await service.store.list_jobs(JobFilter(tenant=None), None, 10)).items == []


@memory_only
async def test_reconcile_affects_only_the_tenant_of_the_key(guarded: Service) -> None:
    one, other = await guarded.key(Role.OPERATOR, "one"), await guarded.key(Role.OPERATOR, "other")
    await guarded.store.put_tenant(Tenant(name="other", quotas=Quotas(jobs=1)), Author("test"))
    async with guarded.client(one) as mine, guarded.client(other) as theirs:
        await reconcile(mine, "app:a", {"name": "x", **HOURLY})
        assert steps(await reconcile(theirs, "app:a", {"name": "x", **HOURLY})) == [("add", "x", True)]
        assert steps(await reconcile(theirs, "app:a", remove=True)) == [("remove", "x", True)]
        assert (await reconcile(mine, "app:a", {"name": "x", **HOURLY}))["unchanged"] == ["x"]
        two = {"source": "app:a", "schedules": [{"name": "y", **HOURLY}, {"name": "z", **HOURLY}]}
        assert (await theirs.post("/v1/schedules/reconcile", json=two)).status_code == 429
