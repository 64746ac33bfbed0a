"""Statistics: counts by state, start delays and durations, the last ticks of jobs, the forecast."""

from typing import Any

import httpx2

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.plan import plan
from tests.api.conftest import Service
from tests.api.test_remote import claim, register, submit
from tests.api.test_resources import get
from tests.support.waiting import eventually


async def find_due(service: Service) -> list[Job]:
    store: Any = service.store
    jobs: list[Job] = await store.due_jobs(list(range(store.shards)), await store.now(), 100)
    return jobs


async def fire_due(service: Service) -> None:
    """Fire every job that is due, as a scheduler does."""
    store: Any = service.store
    owner = await store.join("node-1", HOUR)
    await store.take(owner, range(store.shards))
    await store.fire(owner, plan(await find_due(service), await store.now()))


async def test_runs_are_counted_by_state(client: httpx2.AsyncClient) -> None:
    for _ in range(3):
        await submit(client)
    await client.post("/v1/jobs", json={"task": "t", "delay": "1h"})
    worker = await register(client)
    [run] = await claim(client, worker)
    await client.post(f"/v1/runs/{run['runId']}/fail", json={"fence": run["fence"], "error": "x", "retry": False})
    found = await get(client, "/v1/stats/runs")
    assert {name: count for name, count in found["counts"].items() if count} == {
        "queued": 2,
        "scheduled": 1,
        "failed": 1,
    }
    assert (await get(client, "/v1/stats/runs", atMost=1))["counts"]["queued"] == 1
    assert (await get(client, "/v1/stats/runs", queue="nowhere"))["counts"]["queued"] == 0


async def test_queued_and_running_runs_are_reported_by_step(service: Service, client: httpx2.AsyncClient) -> None:
    before = await get(client, "/v1/stats")
    assert not any("queued" in point or "lagMs" in point for point in before["points"])
    assert before["lagMs"] == 0
    for _ in range(3):
        await submit(client, queue="mail")
    await claim(client, await register(client, "mail"))
    await service.clock.sleep(20_000)
    await service.store.sample_load()
    for query, expected in (({}, (2, 1)), ({"queue": "mail"}, (2, 1)), ({"queue": "other"}, (0, 0))):
        for step in ("1m", "1h"):
            found = await get(client, "/v1/stats", step=step, **query)
            [point] = [point for point in found["points"] if "queued" in point]
            assert (point["queued"], point["running"]) == expected == (found["queued"], found["running"])
            assert (point["lagMs"] >= 20) == (found["lagMs"] >= 20) == bool(expected[0])


async def test_percentiles_cover_the_requested_period(service: Service, client: httpx2.AsyncClient) -> None:
    assert "lateMsP50" not in await get(client, "/v1/stats")
    worker = await register(client, "mail")
    for _ in range(3):
        await submit(client, queue="mail")
        [run] = await claim(client, worker)
        await service.clock.sleep(20_000)
        await client.post(f"/v1/runs/{run['runId']}/complete", json={"fence": run["fence"]})
    store: Any = service.store
    now = await store.now()
    for query in ({}, {"queue": "mail"}):
        timings = await store.timings("default", query.get("queue"), now - HOUR, now + HOUR)
        found = await get(client, "/v1/stats", **query)
        # Some stores roll up completed runs later.
        assert ("tookMsP95" in found) == bool(timings.took)
        if timings.took:
            assert 14 < found["tookMsP50"] <= found["tookMsP95"] <= max(point["tookMsMax"] for point in found["points"])
            assert 0 <= found["lateMsP50"] <= found["lateMsP95"]
    long_ago = await get(client, "/v1/stats", since="2020-01-01T00:00:00Z", until="2020-01-01T01:00:00Z")
    assert "tookMsP95" not in long_ago


async def test_the_last_ticks_of_jobs_show_the_outcome_of_their_runs(
    service: Service, client: httpx2.AsyncClient
) -> None:
    fields = {"task": "t", "every": "1s"}
    job = (await client.post("/v1/jobs", json={**fields, "name": "report"})).json()["jobId"]
    other = (await client.post("/v1/jobs", json={"task": "t", "every": "1h", "name": "never"})).json()["jobId"]
    query = {"jobs": f"{other},{job},nonsense"}
    assert (await get(client, "/v1/stats/ticks", **query))["items"] == []
    await eventually(lambda: find_due(service))
    await fire_due(service)
    worker = await register(client)
    [run, *_] = await claim(client, worker)
    await client.post(f"/v1/runs/{run['runId']}/fail", json={"fence": run["fence"], "error": "x", "retry": False})
    [found] = (await get(client, "/v1/stats/ticks", **query))["items"]
    assert found["jobId"] == job
    [tick] = [tick for tick in found["ticks"] if tick["runId"] == run["runId"]]
    assert (tick["status"], tick["attemptNumber"]) == ("failed", 1)
    assert tick["lateMs"] >= 0
    assert tick["tookMs"] >= 0


async def test_statistics_do_not_show_other_tenants(guarded: Service) -> None:
    mine, theirs = await guarded.key(Role.OPERATOR, "acme"), await guarded.key(Role.OPERATOR, "globex")
    async with guarded.client(mine) as client:
        job = (await client.post("/v1/jobs", json={"task": "t", "name": "n", "every": "1h"})).json()["jobId"]
        await client.post("/v1/jobs", json={"task": "t"})
    async with guarded.client(theirs) as client:
        assert (await get(client, "/v1/stats/ticks", jobs=job))["items"] == []
        assert not any((await get(client, "/v1/stats/runs"))["counts"].values())
        assert (await get(client, "/v1/forecast"))["runs"] == 0
    async with guarded.client(mine) as client:
        assert (await get(client, "/v1/forecast", hours=2))["runs"] == 2


async def test_the_forecast_counts_upcoming_runs_by_minute(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/jobs", json={"task": "t", "name": "every minute", "cronExpression": "* * * * *"})
    paused = await client.post("/v1/jobs", json={"task": "t", "name": "paused", "cronExpression": "* * * * *"})
    await client.post(f"/v1/jobs/{paused.json()['jobId']}/pause")
    await client.post("/v1/jobs", json={"task": "t", "delay": "30m"})
    found = await get(client, "/v1/forecast", hours=1)
    assert len(found["perMinute"]) == 60
    assert (found["runs"], found["schedules"], found["waiting"], found["complete"]) == (61, 1, 1, True)
    assert found["peaks"][0]["runs"] == 2
    assert found["totals"] == [{"name": "every minute", "runs": 60}]


async def test_a_slot_of_the_forecast_lists_the_schedules_that_fire_in_it(client: httpx2.AsyncClient) -> None:
    often = await client.post("/v1/jobs", json={"task": "t", "name": "often", "cronExpression": "* * * * *"})
    await client.post("/v1/jobs", json={"task": "t", "name": "hourly", "cronExpression": "30 * * * *"})
    await client.post("/v1/jobs", json={"task": "t", "delay": "90m"})
    start = (await get(client, "/v1/forecast", hours=1))["start"]
    found = await get(client, "/v1/forecast/slot", since=start, minutes=120)
    assert (found["runs"], found["waiting"], found["schedules"], found["complete"]) == (123, 1, 2, True)
    assert found["makers"][0] == {"jobId": often.json()["jobId"], "name": "often", "runs": 120, "first": start}
    assert (found["makers"][1]["name"], found["makers"][1]["runs"]) == ("hourly", 2)
    for wrong in ({"since": "2020-01-01T00:00:00Z"}, {"since": start, "minutes": 0}, {"since": "soon"}):
        assert (await client.get("/v1/forecast/slot", params=wrong)).status_code == 400
