"""Explanations of runs and ticks, as data."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec

from mainspring.core.model.base.instant import HOUR, isoformat
from mainspring.core.model.schedules.plan import plan
from mainspring.core.store import NewSession
from tests.api.conftest import Service
from tests.api.test_remote import claim, register, submit
from tests.api.test_resources import get

SPAN = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T06:00:00Z"}


async def an_hourly_job(client: httpx2.AsyncClient, name: str = "report") -> str:
    fields = {"task": "t", "name": name, "every": "1h", "scheduleTime": "2026-01-01T00:00:00Z"}
    answer = await client.post("/v1/jobs", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["jobId"])


def codes(found: dict[str, Any]) -> tuple[str, list[str]]:
    return found["answer"], [reason["code"] for reason in found["because"]]


async def test_the_reasons_why_a_run_waits_have_codes_and_holders(client: httpx2.AsyncClient) -> None:
    first = (await client.post("/v1/jobs", json={"task": "t", "orderingKey": "k"})).json()["jobId"]
    second = (await client.post("/v1/jobs", json={"task": "t", "orderingKey": "k"})).json()["jobId"]
    [reason] = (await get(client, f"/v1/runs/{second}/explain"))["because"]
    assert (reason["code"], reason["holders"]) == ("ordering-key", [{"kind": "run", "id": first}])
    [reason] = (await get(client, f"/v1/runs/{first}/explain"))["because"]
    assert (reason["code"], "mainspring worker" in reason["hint"]) == ("no-worker", True)


async def test_an_unserved_queue_and_an_unknown_task_are_both_reasons(service: Service) -> None:
    async with service.client() as client:
        await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"], "tasks": ["known"]})
        found = {}
        for task in ("known", "unknown"):
            run = (await client.post("/v1/jobs", json={"task": task, "queue": "nowhere"})).json()["jobId"]
            because = (await get(client, f"/v1/runs/{run}/explain"))["because"]
            found[task] = [reason["code"] for reason in because]
        assert found == {"known": ["no-worker"], "unknown": ["no-worker", "unknown-task"]}
        assert because[1]["words"] == "no live worker of any queue knows task 'unknown'"


async def test_a_run_for_later_has_the_reasons_why_no_worker_could_start_it(service: Service) -> None:
    later = {"scheduleTime": "2099-01-01T00:00:00Z"}
    async with service.client() as client:
        await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"], "tasks": ["known"]})
        for fields, codes_of in (
            ({"task": "known"}, ["not-due"]),
            ({"task": "knwon"}, ["not-due", "no-worker"]),
            ({"task": "known", "queue": "nowhere"}, ["not-due", "no-worker"]),
        ):
            made = (await client.post("/v1/jobs", json=fields | later)).json()
            because = (await get(client, f"/v1/runs/{made['jobId']}/explain"))["because"]
            assert [reason["code"] for reason in because] == codes_of
            assert [reason["words"] for reason in because[1:]] == made.get("warnings", [])


async def test_a_run_is_explained_by_the_quota_of_its_tenant(service: Service, client: httpx2.AsyncClient) -> None:
    await client.put("/v1/tenants", json={"name": "default", "quotas": {"running": 0}})
    service.api.admission._quotas.forget()
    run = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
    found = (await get(client, f"/v1/runs/{run}/explain"))["because"]
    assert [reason["code"] for reason in found] == ["no-worker", "quota"]


async def test_a_time_in_the_schedule_of_a_job_is_explained(client: httpx2.AsyncClient) -> None:
    job = await an_hourly_job(client)
    before = await get(client, f"/v1/jobs/{job}/explain", at="2026-01-01T01:00:00Z")
    assert codes(before) == ("no-tick", ["before-the-job"])
    soon = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    found = await get(client, f"/v1/jobs/{job}/explain", at=soon.isoformat())
    assert codes(found) == ("ahead", ["not-due"])
    beside = soon + timedelta(minutes=1)
    found = await get(client, f"/v1/jobs/{job}/explain", at=beside.isoformat())
    assert codes(found) == ("no-tick", ["no-tick"])
    assert found["tickBefore"] == soon.isoformat().replace("+00:00", "Z")
    await client.post(f"/v1/jobs/{job}/pause")
    assert codes(await get(client, f"/v1/jobs/{job}/explain", at=soon.isoformat())) == ("ahead", ["paused"])
    assert (await get(client, f"/v1/jobs/{job}/explain"))["answer"] == "ahead"


async def test_fired_ticks_are_explained_by_the_ledger(service: Service) -> None:
    """The schedule of the job is three hours behind, as after an outage."""
    async with service.client() as client:
        job = await an_hourly_job(client)
        stored = (await service.store.jobs([job]))[0]  # type: ignore[list-item]
        assert stored is not None
        assert stored.next_fire is not None
        newest = stored.next_fire - HOUR
        owner = await service.store.join("node-1", HOUR)  # type: ignore[union-attr]
        await service.store.take(owner, range(service.store.shards))  # type: ignore[union-attr]
        behind = msgspec.structs.replace(stored, next_fire=stored.next_fire - 3 * HOUR)
        [fired] = await service.store.fire(owner, plan([behind], newest))
        assert fired.runs == 1
        # These ticks are older than the version of the job, but they are in the ledger.
        ran = await get(client, f"/v1/jobs/{job}/explain", at=isoformat(newest))
        assert codes(ran) == ("waiting", ["queued"])
        assert ran["run"]["runId"] == ran["tick"]["runId"]
        older = await get(client, f"/v1/jobs/{job}/explain", at=isoformat(newest - HOUR))
        assert codes(older) == ("skipped", ["superseded"])
        assert (await get(client, f"/v1/jobs/{job}/explain"))["time"] == isoformat(newest)


async def test_explaining_an_invalid_time_or_a_one_off_job_is_rejected(client: httpx2.AsyncClient) -> None:
    job = await an_hourly_job(client)
    for at in ("soon", "2026-13-01T00:00:00Z"):
        answer = await client.get(f"/v1/jobs/{job}/explain", params={"at": at})
        assert (answer.status_code, answer.json()["field"]) == (400, "at")
    one_off = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
    assert (await client.get(f"/v1/jobs/{one_off}/explain")).status_code == 409


async def test_a_backfilled_run_is_listed_as_new_and_found_by_its_tick(client: httpx2.AsyncClient) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)
    job = await an_hourly_job(client)
    done = (await client.post(f"/v1/jobs/{job}/backfill", json=SPAN)).json()
    assert (done["made"], len(done["scheduledFor"])) == (6, 6)
    listed = await get(client, "/v1/runs", createdAfter=began.isoformat(), jobId=job)
    assert len(listed["items"]) == 6
    found = await get(client, f"/v1/jobs/{job}/explain", at="2026-01-01T03:00:00Z")
    assert codes(found) == ("waiting", ["backfilled", "before-the-job"])
    assert found["run"]["tick"] == "2026-01-01T03:00:00Z"
    again = (await client.post(f"/v1/jobs/{job}/backfill", json=SPAN)).json()
    assert (again["ticks"], again["made"], again["scheduledFor"]) == (6, 0, [])


async def test_concurrent_backfills_create_one_run_for_each_tick(client: httpx2.AsyncClient) -> None:
    job = await an_hourly_job(client)
    answers = await asyncio.gather(*(client.post(f"/v1/jobs/{job}/backfill", json=SPAN) for _ in range(4)))
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert sum(answer.json()["made"] for answer in answers) == 6


async def test_a_run_is_explained_by_the_concurrency_of_its_queue(service: Service) -> None:
    async with service.client() as client:
        worker = await register(client, "mail")
        runs = [await submit(client, queue="mail") for _ in range(2)]
        assert (await client.put("/v1/queues/mail", json={"concurrency": 1})).status_code == 200
        [held] = await claim(client, worker, limit=5)
        assert held["runId"] == runs[0]
        found = (await get(client, f"/v1/runs/{runs[1]}/explain"))["because"]
        assert found[0]["code"] == "queue-full"
        assert found[0]["words"] == f"queue 'mail' runs 1 at a time, held by {runs[0]}"
        assert found[0]["holders"] == [{"kind": "run", "id": runs[0]}]
        await client.put("/v1/tenants", json={"name": "acme"})
        foreign = await submit(client, queue="mail", tenant="acme")
        [reason, *_] = (await get(client, f"/v1/runs/{foreign}/explain"))["because"]
        assert reason["words"] == "queue 'mail' runs 1 at a time, held by runs of other tenants"
        assert "holders" not in reason or reason["holders"] == []


async def test_a_run_is_explained_by_a_priority_that_no_worker_takes(service: Service) -> None:
    async with service.client() as client:
        pools = NewSession(name="pools", kind="worker", ttl=HOUR, queues=("pp",), tasks=("t",), priorities=(1, 5))
        await service.store.open_session(pools)
        service.api.workers.forget()
        taken, left = [await submit(client, queue="pp", priority=priority) for priority in (5, 7)]
        assert (await get(client, f"/v1/runs/{taken}/explain"))["because"][0]["code"] == "next"
        found = await get(client, f"/v1/runs/{left}/explain")
        [reason] = found["because"]
        assert (reason["code"], found.get("estimatedStart")) == ("no-worker", None)
        assert reason["words"] == "no live worker of queue 'pp' takes priority 7: they have slots for 1, 5 only"
        assert "--queue pp --priority 7:1" in reason["hint"]
        [worker] = (await get(client, "/v1/workers"))["items"]
        assert worker["priorities"] == [1, 5]
        await service.store.open_session(msgspec.structs.replace(pools, priorities=()))
        service.api.workers.forget()
        assert (await get(client, f"/v1/runs/{left}/explain"))["because"][0]["code"] == "behind"


async def test_a_blocked_run_shows_the_reason_it_waits(client: httpx2.AsyncClient) -> None:
    limits = [{"key": "api", "most": 1}]
    first, limited = [await submit(client, limits=limits) for _ in range(2)]
    _, keyed = [await submit(client, orderingKey="k") for _ in range(2)]
    child = await submit(client, dependsOn=[first], when="all-done")
    both = await submit(client, dependsOn=[first, keyed], orderingKey="k")
    for run, words in {
        first: "",
        limited: "waits: limit 'api': 1 at a time",
        keyed: "waits for ordering key 'k'",
        child: "waits for another run (all-done)",
        both: "waits for 2 other runs (all-succeeded), then ordering key 'k'",
    }.items():
        assert (await get(client, f"/v1/runs/{run}")).get("reason", "") == words
