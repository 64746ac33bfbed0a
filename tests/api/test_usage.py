"""Usage and budgets over HTTP."""

import csv
from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import HOUR
from mainspring.core.store import NewSession
from mainspring.features.usage.service import BudgetKeeper
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service, memory_only
from tests.api.test_remote import claim, register, submit
from tests.support.virtual import in_virtual_time

#: The other stores roll up usage after 15 s; the contract tests, which control the time, cover them.


async def work(client: httpx2.AsyncClient, how: str = "complete", **usage: Any) -> str:
    worker, job = await register(client), await submit(client)
    [run] = await claim(client, worker)
    body = {"fence": run["fence"], **usage} if how == "complete" else {"fence": run["fence"], "error": "x", **usage}
    answer = await client.post(f"/v1/runs/{job}/{how}", json=body)
    assert answer.status_code == 200, answer.text
    return job


@in_virtual_time
async def test_usage_that_workers_report_is_summed_by_day() -> None:
    client = Service(auth=False, clock=VirtualClock()).client()
    await work(client, cpuSeconds=1.5, units={"tokens": 1200})
    await work(client, "fail", units={"tokens": 300}, retry=False)
    found = (await client.get("/v1/usage")).json()
    [line] = found["items"]
    assert (line["tenant"], line["key"]) == ("default", "t")
    assert (line["cost"]["attempts"], line["cost"]["cpuSeconds"]) == (2, 1.5)
    assert line["cost"]["units"] == {"tokens": 1500}
    assert found["total"] == line["cost"]
    assert line["day"] == "2026-03-01"
    table = list(csv.DictReader((await client.get("/v1/usage.csv", params={"by": "tenant"})).text.splitlines()))
    assert [(row["key"], row["attempts"], row["tokens"]) for row in table] == [("default", "2", "1500.0")]
    for query, items in (
        ({"key": "nobody"}, 0),
        ({"since": "2020-01-01", "until": "2020-02-01"}, 0),
        ({"key": "t"}, 1),
    ):
        assert len((await client.get("/v1/usage", params=query)).json()["items"]) == items
    by_job = (await client.get("/v1/usage", params={"by": "job"})).json()["items"]
    assert [line["key"] for line in by_job] == [""]


@pytest.mark.parametrize(
    ("usage", "field"),
    [
        ({"units": {"Tokens": 1}}, "units"),
        ({"units": {"cpu": 1}}, "units"),
        ({"units": {"tokens": -1}}, "units.tokens"),
        ({"cpuSeconds": -1}, "cpuSeconds"),
    ],
)
@memory_only
async def test_invalid_usage_is_rejected_and_the_run_stays_running(
    client: httpx2.AsyncClient, usage: dict[str, Any], field: str
) -> None:
    worker, job = await register(client), await submit(client)
    [run] = await claim(client, worker)
    refused = await client.post(f"/v1/runs/{job}/complete", json={"fence": run["fence"], **usage})
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await client.get(f"/v1/runs/{job}")).json()["status"] == "running"


@memory_only
@pytest.mark.parametrize(
    ("query", "field"),
    [({"since": "soon"}, "since"), ({"by": "day"}, "by"), ({"since": "2026-02-01", "until": "2026-02-01"}, "until")],
)
async def test_an_invalid_usage_query_is_rejected_with_its_field(
    client: httpx2.AsyncClient, query: dict[str, str], field: str
) -> None:
    refused = await client.get("/v1/usage", params=query)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


async def test_a_budget_is_set_listed_and_deleted(client: httpx2.AsyncClient) -> None:
    body = {"unit": "wall", "limit": 3600, "period": "day", "of": "job", "target": "nightly", "then": "pause"}
    missing = await client.put("/v1/budgets/nightly", json=body)
    assert (missing.status_code, missing.json()["field"]) == (400, "target")
    assert (await client.get("/v1/budgets")).json()["items"] == []
    await client.post("/v1/jobs", json={"name": "nightly", "task": "t", "every": "1d"})
    made = (await client.put("/v1/budgets/nightly", json=body)).json()
    assert (made["limit"], made["state"], made["spent"], made["target"]) == (3600, "ok", 0, "nightly")
    assert (await client.get("/v1/budgets")).json()["items"] == [made]
    changed = (await client.put("/v1/budgets/nightly", json={"unit": "tokens", "limit": 5})).json()
    assert (changed["budgetId"], changed["of"]) == (made["budgetId"], "tenant")
    refused = await client.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1, "of": "task"})
    assert (refused.status_code, refused.json()["field"]) == (400, "target")
    assert (await client.delete("/v1/budgets/nightly")).status_code == 200
    assert (await client.delete("/v1/budgets/nightly")).status_code == 404
    assert (await client.get("/v1/budgets")).json()["items"] == []


@memory_only
async def test_deleting_a_budget_ends_its_pause(service: Service) -> None:
    async with service.client() as client:
        await client.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1, "then": "pause"})
        await work(client, units={"tokens": 1})
        await BudgetKeeper(service.store, service.wakeups, service.clock, service.jobs._random).tick()
        [budget] = (await client.get("/v1/budgets")).json()["items"]
        assert (budget["state"], budget["held"], budget["spent"]) == ("over", True, 1)
        run = await submit(client)
        reason = (await client.get(f"/v1/runs/{run}/explain")).json()["because"][0]
        assert (reason["code"], "over budget 'b'" in reason["words"]) == ("paused", True)
        assert "resume" not in reason["hint"], "the budget would pause it again"
        assert reason["hint"].startswith("budget 'b' holds it until its period ends; raise its limit")
        assert reason["holders"] == [{"kind": "budget", "id": "b"}]
        await client.delete("/v1/budgets/b")
        assert await service.store.pauses() == []


@memory_only
@pytest.mark.parametrize("of", [{"of": "tenant"}, {"of": "task", "target": "t"}, {"of": "job", "target": "nightly"}])
async def test_a_run_that_a_budget_puts_last_is_explained_by_the_budget(service: Service, of: dict[str, str]) -> None:
    async with service.client() as client:
        job = (await client.post("/v1/jobs", json={"task": "t", "name": "nightly", "every": "1h"})).json()["jobId"]
        run = (await client.post(f"/v1/jobs/{job}/run")).json()["runId"]
        [held] = await claim(client, await register(client))
        assert held["runId"] == run
        await client.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1, "then": "lower", **of})
        await client.post(f"/v1/runs/{run}/complete", json={"fence": held["fence"], "units": {"tokens": 1}})
        run = (await client.post(f"/v1/jobs/{job}/run")).json()["runId"]
        await BudgetKeeper(service.store, service.wakeups, service.clock, service.jobs._random).tick()
        worker = NewSession(name="w", kind="worker", ttl=HOUR, queues=("default",), tasks=("t",))
        await service.store.open_session(worker)
        service.api.workers.forget()
        [reason] = (await client.get(f"/v1/runs/{run}/explain")).json()["because"]
        assert (reason["code"], reason["holders"]) == ("next", [{"kind": "budget", "id": "b"}])
        assert reason["words"].endswith("; budget 'b' is used up and puts queued runs behind all others")
        assert "raise its limit" in reason["hint"]
        await client.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1, "then": "warn", **of})
        [reason] = (await client.get(f"/v1/runs/{run}/explain")).json()["because"]
        assert "budget" not in reason["words"]


@memory_only
async def test_a_tenant_sees_and_sets_its_own_budgets_only(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, "a")) as a:
        assert (await a.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1})).json()["tenant"] == "a"
        refused = await a.put("/v1/budgets/b", json={"unit": "tokens", "limit": 1, "tenant": "b"})
        assert (refused.status_code, refused.json()["field"]) == (400, "tenant")
    async with guarded.client(await guarded.key(Role.ADMIN, "b")) as b:
        assert (await b.get("/v1/budgets")).json()["items"] == []
        assert (await b.get("/v1/usage", params={"tenant": "a"})).json()["items"] == []
    async with guarded.client(await guarded.key(Role.ADMIN, "a", ("mail",))) as bound:
        assert (await bound.put("/v1/budgets/c", json={"unit": "tokens", "limit": 1})).status_code == 403
    async with guarded.client(await guarded.key(Role.OPERATOR, "a")) as operator:
        assert (await operator.put("/v1/budgets/c", json={"unit": "tokens", "limit": 1})).status_code == 403
