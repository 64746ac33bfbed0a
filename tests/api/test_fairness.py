"""Isolation: one caller, one tenant or one large request must not cost the others much."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Quotas, Role, Tenant
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.http.api_store import ApiStore
from mainspring.http.limits import CountedQuota
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service, memory_only
from tests.support.clock import ManualClock
from tests.support.virtual import in_virtual_time
from tests.support.waiting import eventually


def count_calls(service: Service, monkeypatch: pytest.MonkeyPatch, *methods: str) -> Counter[str]:
    """Count the calls of these methods of the store from now on."""
    calls: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def call(*arguments: object, **named: object) -> object:
            calls[name] += 1
            return await real(*arguments, **named)

        return call

    for method in methods:
        monkeypatch.setattr(service.store, method, counted(method, getattr(service.store, method)))
    return calls


async def start_run(client: httpx2.AsyncClient, worker: str, **fields: Any) -> dict[str, Any]:
    await client.post("/v1/jobs", json={"task": "t", **fields})
    runs: list[dict[str, Any]] = (await client.post(f"/v1/workers/{worker}/claim")).json()["runs"]
    return runs[0]


async def register(client: httpx2.AsyncClient, **fields: Any) -> str:
    made = await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"], **fields})
    worker: str = made.json()["workerId"]
    return worker


# Logs


@pytest.mark.slow
async def test_every_follower_of_a_log_receives_each_line_once(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await start_run(client, await register(client))
    path = f"/v1/runs/{run['runId']}"
    fence = {"fence": run["fence"]}
    reads = count_calls(service, monkeypatch, "logs_after")

    async def wait_for_followers(count: int) -> None:
        """Wait until so many have joined, and the store was read again after that."""

        def have_joined() -> bool:
            followed = service.api.tail._followed.get(RunId(run["runId"]))
            return followed is not None and len(followed.followers) == count

        await eventually(have_joined)
        before = reads["logs_after"]
        await eventually(lambda: reads["logs_after"] > before)

    await client.post(f"{path}/log", json={**fence, "text": "one\n"})
    early = [asyncio.create_task(client.get(f"{path}/logs/follow")) for _ in range(20)]
    await wait_for_followers(20)
    # A follower that names a position in the future must not keep lines from the others.
    ahead = asyncio.create_task(client.get(f"{path}/logs/follow", params={"after": 2**61}))
    await wait_for_followers(21)
    await client.post(f"{path}/log", json={**fence, "text": "two\n"})
    late = asyncio.create_task(client.get(f"{path}/logs/follow"))
    await wait_for_followers(22)
    await client.post(f"{path}/log", json={**fence, "text": "three\n"})
    await client.post(f"{path}/complete", json=fence)
    answers = await asyncio.gather(*early, late)
    assert "event: end" in (await ahead).text
    for answer in answers:
        lines = [line for line in answer.text.split("\n") if line.startswith('data: {"position"')]
        assert ["".join(w for w in ("one", "two", "three") if w in line) for line in lines] == ["one", "two", "three"]
        assert answer.text.count("event: end") == 1
        assert '{"status":"succeeded"}' in answer.text
    assert service.api.streams.taken == 0


@in_virtual_time
async def test_followers_of_logs_share_one_read_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(auth=False, clock=VirtualClock())
    async with service.client() as client:
        runs = [(await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"] for _ in range(50)]
        tasks = [asyncio.create_task(client.get(f"/v1/runs/{run}/logs/follow")) for run in runs * 4]
        await service.clock.sleep(SECOND // 2)
        calls = count_calls(service, monkeypatch, "runs", "logs_after")
        await service.clock.sleep(10 * SECOND)
        assert calls == {"runs": 10, "logs_after": 10}
        assert service.api.streams.taken == 200
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        calls.clear()
        await service.clock.sleep(10 * SECOND)
        assert calls.total() == 0
        assert service.api.tail._reading is None


# Claims that wait


@in_virtual_time
async def test_waiting_claims_share_their_reads_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(auth=False, clock=VirtualClock())
    async with service.client() as client:
        workers = [await register(client) for _ in range(30)]
        polls = [
            asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 20}))
            for worker in workers
        ]
        await service.clock.sleep(SECOND)
        calls = count_calls(service, monkeypatch, "claim", "heartbeat")
        await service.clock.sleep(3 * SECOND)
        assert calls["heartbeat"] == 0
        assert calls["claim"] <= 6
        # One job wakes one worker at once. A second claim finds the queue empty, on behalf of all other workers.
        calls.clear()
        began = service.clock.monotonic()
        job = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert service.clock.monotonic() - began < SECOND // 10
        assert [run["runId"] for poll in done for run in poll.result().json()["runs"]] == [job]
        await service.clock.sleep(SECOND // 5)
        assert calls["claim"] <= 4
        service.api.prepare_stop()
        answers = await asyncio.gather(*waiting)
    assert {answer.status_code for answer in answers} == {200}


@in_virtual_time
async def test_a_waiting_claim_renews_the_lease_of_its_worker() -> None:
    service = Service(auth=False, clock=VirtualClock())
    async with service.client() as client:
        worker = await register(client, leaseSeconds=5)
        assert (await client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 30})).json()["runs"] == []
        alive = await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [], "claim": 0})
        assert alive.json()["alive"] is True


# Large things


async def test_versions_are_paged_and_show_large_changes_as_sizes(client: httpx2.AsyncClient) -> None:
    cron = {"task": "t", "name": "tidy", "cronExpression": "0 3 * * *"}
    job = (await client.post("/v1/jobs", json={**cron, "payload": 1})).json()["jobId"]
    for number in range(2, 12):
        await client.patch(f"/v1/jobs/{job}", json={"payload": f"{number}" + "x" * 100_000})
    await client.patch(f"/v1/jobs/{job}", json={"payload": "small"})
    await client.patch(f"/v1/jobs/{job}", json={"payload": "smaller"})
    path = f"/v1/jobs/{job}/versions"
    seen: list[dict[str, Any]] = []
    cursor: str | None = None
    for size in (5, 5, 3):
        answer = await client.get(path, params={"limit": "5"} | ({} if cursor is None else {"cursor": cursor}))
        assert len(answer.content) < 5_000
        assert len(answer.json()["items"]) == size
        seen += answer.json()["items"]
        cursor = answer.json().get("nextCursor")
    assert cursor is None
    assert [item["version"] for item in seen] == list(range(13, 0, -1))
    assert seen[0]["changes"] == {"payload": {"before": "small", "after": "smaller"}}
    assert seen[1]["changes"] == {"payload": {"bytesBefore": 100_004, "bytesAfter": 7}}
    assert seen[-1].get("changes", {}) == {}
    assert (await client.get(path, params={"cursor": "x"})).status_code == 400
    assert (await client.get(path, params={"limit": 101})).status_code == 400
    assert (await client.post(f"{path}/3/restore")).json()["version"] == 14
    assert (await client.get(f"/v1/jobs/{job}")).json()["payload"] == "3" + "x" * 100_000
    for missing in ("99", "0", "x", "9" * 30):
        assert (await client.post(f"{path}/{missing}/restore")).status_code == 404


@memory_only
async def test_a_replay_holds_few_payloads_at_once(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await register(client)
    await client.post("/v1/jobs/batch", json={"jobs": [{"task": "t", "maxRetries": 0}] * 120})
    for run in (await client.post(f"/v1/workers/{worker}/claim", json={"limit": 200})).json()["runs"]:
        await client.post(f"/v1/runs/{run['runId']}/fail", json={"fence": run["fence"], "error": "no"})
    held: list[int] = []
    real = service.store.runs

    async def runs(ids: Any, *, payloads: bool = False) -> list[RunView | None]:
        if payloads:
            held.append(len(ids))
        return await real(ids, payloads=payloads)

    monkeypatch.setattr(service.store, "runs", runs)
    replayed = (await client.post("/v1/dead-letters/replay", json={"everything": True})).json()
    assert (replayed["count"], replayed["more"]) == (120, False)
    assert held == [50, 50, 20]


# Quotas


async def test_quotas_are_not_counted_for_every_submit(store: ApiStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # This clock stands still: a count never gets too old.
    service = Service(auth=False, store=store, clock=ManualClock(SystemClock().now()))
    client = service.client()
    quotas = Quotas(queued=30, jobs=5)
    await service.store.put_tenant(Tenant(name="default", quotas=quotas), Author("test", None))
    calls = count_calls(service, monkeypatch, "count_runs", "count_jobs", "list_jobs")
    answers = [(await client.post("/v1/jobs", json={"task": "t"})).status_code for _ in range(20)]
    assert answers == [201] * 20
    assert calls["count_runs"] <= 2
    many = await client.post("/v1/jobs/batch", json={"jobs": [{"task": "t"}] * 20})
    assert many.json()["accepted"] == 10
    assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 429
    # A cancelled run makes room at once.
    run = (await client.get("/v1/runs")).json()["items"][0]["runId"]
    await client.post(f"/v1/runs/{run}/cancel")
    assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201
    crons = [
        await client.post("/v1/jobs", json={"task": "t", "name": f"c{number}", "every": "1h"}) for number in range(6)
    ]
    assert [made.status_code for made in crons] == [201] * 5 + [429]
    assert calls["list_jobs"] == 0
    assert calls["count_jobs"] <= 3
    await client.delete(f"/v1/jobs/{crons[0].json()['jobId']}")
    assert (await client.post("/v1/jobs", json={"task": "t", "name": "c9", "every": "1h"})).status_code == 201


async def test_a_slow_count_is_repeated_less_often() -> None:
    clock = ManualClock()
    counts = 0

    async def count(tenant: str, at_most: int) -> int:
        nonlocal counts
        counts += 1
        clock.advance(50 * MILLISECOND)
        return at_most

    counted = CountedQuota(count, clock)
    for _ in range(10):
        assert await counted.count_left("acme", 2_000, 1) == 0
    assert counts == 1
    clock.advance(500 * MILLISECOND)
    assert await counted.count_left("acme", 2_000, 1) == 0
    assert counts == 2
    # A changed quota is counted again.
    assert await counted.count_left("acme", 3_000, 1) == 0
    assert counts == 3


# Visibility of other tenants


async def test_a_tenant_cannot_see_the_workers_of_another_tenant(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as a,
        guarded.client(await guarded.key(Role.ADMIN, "b")) as b,
        guarded.client(await guarded.key(Role.ADMIN, None)) as admin,
    ):
        await a.post("/v1/jobs", json={"task": "t", "queue": "letters"})
        await register(b, name="of b", queues=["secret"], tasks=["secret_task"])
        await register(a, name="of a", queues=["mine"], tasks=["my_task"])
        await register(admin, name="shared", queues=["letters", "secret"], tasks=["secret_task"])

        async def seen(client: httpx2.AsyncClient) -> dict[str, tuple[list[str], list[str]]]:
            items = (await client.get("/v1/workers")).json()["items"]
            return {item["name"]: (item["queues"], item["tasks"]) for item in items}

        assert await seen(a) == {"of a": (["mine"], ["my_task"]), "shared": (["letters"], [])}
        assert (await seen(b))["shared"] == ([], [])
        assert len(await seen(admin)) == 3
        assert (await seen(admin))["shared"] == (["letters", "secret"], ["secret_task"])


async def test_a_worker_makes_its_tasks_known_to_its_own_tenant_only(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as a,
        guarded.client(await guarded.key(Role.ADMIN, "b")) as b,
    ):
        await register(b, tasks=["shell", "t"])
        refused = await a.post("/v1/jobs", json={"task": "shell", "payload": {"script": "x"}})
        assert refused.status_code == 400
        assert (await a.post("/v1/jobs", json={"task": "t"})).json()["warnings"]
        # A built-in task that is off here is accepted if a worker of the tenant offers it.
        assert (await b.post("/v1/jobs", json={"task": "shell", "payload": {"script": "x"}})).status_code == 201
        assert not (await b.post("/v1/jobs", json={"task": "t"})).json().get("warnings")


async def test_the_payload_of_a_built_in_task_is_checked_even_if_a_worker_offers_it(client: httpx2.AsyncClient) -> None:
    await register(client, tasks=["http"])
    for payload in ({"url": "file:///etc/passwd"}, {"url": "https://example.com", "methd": "GET"}, "x"):
        assert (await client.post("/v1/jobs", json={"task": "http", "payload": payload})).status_code == 400


# Web pages


@memory_only
async def test_without_authentication_requests_from_web_pages_are_rejected(
    service: Service, client: httpx2.AsyncClient
) -> None:
    job = {"task": "t"}
    for host in ("evil.example", "evil.example:7070", "127.0.0.1.evil.example", "", "10.0.0.1", "[::2]:7070"):
        refused = await client.get("/v1/jobs", headers={"host": host})
        assert (refused.status_code, refused.json()["title"]) == (403, "Forbidden"), host
    for host in ("localhost", "LOCALHOST:7070", "127.0.0.1", "127.0.0.1:7070", "[::1]:7070"):
        assert (await client.get("/v1/jobs", headers={"host": host})).status_code == 200, host
    for origin in ("https://evil.example", "null", "http://localhost:3000", "http://localhost.evil.example"):
        refused = await client.post("/v1/jobs", json=job, headers={"origin": origin})
        assert (refused.status_code, "auth.mode" in refused.json()["hint"]) == (403, True), origin
    mine = {"host": "localhost:7070", "origin": "http://localhost:7070"}
    assert (await client.post("/v1/jobs", json=job, headers=mine)).status_code == 201
    # Health checks may come from any host.
    assert (await client.get("/healthz", headers={"host": "10.0.0.1"})).status_code == 200


@memory_only
async def test_with_authentication_any_host_and_origin_are_accepted(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None)) as client:
        headers = {"host": "jobs.example", "origin": "https://ui.example"}
        assert (await client.post("/v1/jobs", json={"task": "t"}, headers=headers)).status_code == 201


# Metrics and probes


@memory_only
async def test_metrics_count_rejected_requests(service: Service, client: httpx2.AsyncClient) -> None:
    await client.get("/v1/jobs/00000000000000000000000000000000")
    await client.post("/v1/jobs", json={"tsk": "t"})
    await client.get("/nowhere/at/all")
    await client.put("/v1/runs")
    await client.delete("/v1/jobs/batch")
    metrics = (await client.get("/metrics")).text
    for labels in (
        'operation="get_job",status="404"',
        'operation="create_job",status="400"',
        'operation="none",status="404"',
        'operation="none",status="405"',
    ):
        assert f"mainspring_api_requests_total{{{labels}}}" in metrics, metrics
    assert "nowhere" not in metrics


async def test_probes_use_camel_case_and_support_head(client: httpx2.AsyncClient) -> None:
    ready = await client.get("/readyz")
    assert "clockOffsetMs" in ready.json()
    for path in ("/healthz", "/readyz"):
        assert not [name for name in (await client.get(path)).json() if "_" in name]
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
    assert (await client.head("/v1/jobs")).status_code == 405


# Views of runs and jobs


async def test_a_retried_job_is_not_shown_as_a_future_job(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    run = await start_run(client, worker, maxRetries=3, retry={"backoff": "fixed", "firstDelay": "1h"})
    path = f"/v1/runs/{run['runId']}"
    await client.post(f"{path}/progress", json={"fence": run["fence"], "done": 5, "total": 10})
    assert (await client.get(path)).json()["progress"] == "50%"
    await client.post(f"{path}/fail", json={"fence": run["fence"], "error": "no"})
    shown = (await client.get(f"/v1/jobs/{run['runId']}")).json()
    assert (shown["status"], shown["scheduleType"], shown.get("scheduleTime")) == ("scheduled", "immediate", None)
    later = (await client.post("/v1/jobs", json={"task": "t", "delay": "1h"})).json()
    assert later["scheduleType"] == "future"


async def test_progress_of_an_earlier_attempt_is_not_shown(service: Service, client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    run = await start_run(client, worker)
    path = f"/v1/runs/{run['runId']}"
    await client.post(f"{path}/progress", json={"fence": run["fence"], "done": 5, "total": 10})
    await client.post(f"{path}/release", json={"fence": run["fence"]})
    again = (await client.post(f"/v1/workers/{worker}/claim")).json()["runs"][0]
    assert again["runId"] == run["runId"]
    assert "progress" not in (await client.get(path)).json()
    await client.post(f"{path}/progress", json={"fence": again["fence"], "done": 1, "total": 10})
    assert (await client.get(path)).json()["progress"] == "10%"


async def test_an_explanation_names_the_pause_that_holds_the_run(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as a,
        guarded.client(await guarded.key(Role.ADMIN, None)) as admin,
    ):
        job = (await a.post("/v1/jobs", json={"task": "t"})).json()["jobId"]

        async def why() -> tuple[str, str]:
            found = (await a.get(f"/v1/runs/{job}/explain")).json()
            return found["reasons"][0], found["hints"][0]

        await a.post("/v1/queues/default/pause", json={"why": "deploy"})
        reason, hint = await why()
        assert reason == "queue 'default' is paused for tenant 'a': deploy"
        assert hint == "resume it: POST /v1/queues/default/resume, by an operator of tenant 'a'"
        await admin.post("/v1/pause", json={"why": "stop"})
        reason, hint = await why()
        assert reason == "everything is paused: stop"
        assert hint == "resume it: POST /v1/resume, by an admin who is bound to no tenant"


async def test_the_runs_of_a_purged_job_are_still_listed(client: httpx2.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json={"task": "t", "name": "c", "every": "1h"})).json()["jobId"]
    run = (await client.post(f"/v1/jobs/{job}/run")).json()["runId"]
    await client.post(f"/v1/runs/{run}/cancel")
    await client.delete(f"/v1/jobs/{job}")
    assert (await client.delete(f"/v1/jobs/{job}", params={"purge": "true"})).json()["status"] == "purged"
    assert (await client.get(f"/v1/jobs/{job}")).status_code == 404
    left = (await client.get("/v1/runs", params={"jobId": job})).json()["items"]
    assert [item["runId"] for item in left] == [run]
