"""The worker protocol over HTTP, for workers in any language."""

import asyncio
from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Permission, Principal, Role
from mainspring.core.model.base.ids import JobId, SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND, parse_instant
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.model.runs.new_run import JobRef, NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.tracing.spans import Tracing
from mainspring.features.workers.operations.remote_claims import ClaimIn
from mainspring.features.workers.operations.remote_claims import claim as claim_handler
from mainspring.http.operation import Call, Empty
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service
from tests.support.collector import Collector
from tests.support.virtual import in_virtual_time
from tests.support.waiting import DEADLINE_SECONDS, eventually


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


async def test_a_worker_claims_a_run_reports_progress_and_completes_it(client: httpx2.AsyncClient) -> None:
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
    assert done.json()["answer"] == "accepted"
    again = await client.post(f"/v1/runs/{job}/complete", json={"fence": fence, "result": {"ok": True}})
    assert again.json()["answer"] == "duplicate"
    read = (await client.get(f"/v1/runs/{job}")).json()
    assert (read["status"], read["result"], read["progress"]) == ("succeeded", {"ok": True}, "100%")
    log = (await client.get(f"/v1/runs/{job}/logs")).json()
    assert [line["text"] for line in log["items"]] == ["one\ntwo"]
    assert log["ended"]


async def test_a_claim_carries_the_trace_of_a_traced_run(client: httpx2.AsyncClient, service: Service) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    run = NewRun(id=service.jobs.new_run_id(), task="t", policy=RunPolicy(trace=trace))
    await service.jobs.submit(run)
    (claimed,) = await claim(client, await register(client))
    assert claimed["traceparent"] == trace
    assert (await client.get(f"/v1/runs/{run.id}")).json()["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_a_claim_carries_the_trace_of_a_traced_tick(client: httpx2.AsyncClient, service: Service) -> None:
    with Collector() as collector:
        tracing = service.api.tracing = Tracing(collector.url, 1, "shop", "1")
        job = JobRef(id=JobId("a" * 32), version=1, scheduled_at=0)
        run = NewRun(id=service.jobs.new_run_id(), task="t", job=job)
        await service.jobs.submit(run)
        worker = await register(client)
        # A released run keeps its attempt number and its span.
        for end in ("release", "complete"):
            (claimed,) = await claim(client, worker)
            answer = await client.post(f"/v1/runs/{run.id}/{end}", json={"fence": claimed["fence"]})
            assert answer.status_code == 200, answer.text
        tracing.flush()
        [span] = [one for one in collector.spans if one.name == "tick of t"]
    assert claimed["traceparent"] == f"00-{run.id}-{span.span}-01"
    assert span.trace == run.id


async def test_a_report_with_a_wrong_fence_is_rejected(client: httpx2.AsyncClient) -> None:
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


async def test_a_failed_run_is_retried_by_its_policy_unless_the_worker_forbids_it(client: httpx2.AsyncClient) -> None:
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


async def test_a_worker_sets_the_retry_delay_and_the_kind_of_error(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client, retry={"backoff": "fixed", "firstDelay": "1s", "neverOn": ["smtp.*"]})
    (run,) = await claim(client, worker)
    fails = f"/v1/runs/{job}/fail"
    for wrong, field in (
        ({"retryAfter": "soon"}, "retryAfter"),
        ({"retryAfter": "400d"}, "retryAfter"),
        ({"retryAfter": "5m", "retry": False}, "retryAfter"),
        ({"errorKinds": "smtp.Refused"}, "errorKinds"),
    ):
        refused = await client.post(fails, json={"fence": run["fence"], "error": "x", **wrong})
        assert (refused.status_code, refused.json()["field"]) == (400, field)
    later = await client.post(fails, json={"fence": run["fence"], "error": "busy", "retryAfter": "5m"})
    assert later.status_code == 200, later.text
    again = (await client.get(f"/v1/runs/{job}")).json()
    assert again["status"] == "scheduled"
    waits = parse_instant(again["scheduledFor"]) - parse_instant(again["createdAt"])
    assert 5 * MINUTE <= waits < 6 * MINUTE
    picky = await submit(client, retry={"neverOn": ["smtp.*"]})
    (run,) = await claim(client, worker)
    kinds = {"error": "Refused: no such user", "errorKinds": ["smtp.Refused", "IOError"]}
    await client.post(f"/v1/runs/{picky}/fail", json={"fence": run["fence"], **kinds})
    ended = (await client.get(f"/v1/runs/{picky}")).json()
    assert (ended["status"], ended["reason"]) == ("failed", "not retried")
    assert (await client.get(f"/v1/jobs/{picky}")).json()["retry"]["neverOn"] == ["smtp.*"]


async def test_a_cancel_reaches_the_worker_by_its_heartbeat(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    (run,) = await claim(client, worker)
    cancelled = await client.delete(f"/v1/jobs/{job}")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelling")
    heartbeat = (await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [job], "claim": 0})).json()
    assert heartbeat["cancel"] == [job]
    stopped = await client.post(f"/v1/runs/{job}/cancelled", json={"fence": run["fence"]})
    assert stopped.status_code == 200, stopped.text
    assert (await client.get(f"/v1/runs/{job}")).json()["status"] == "cancelled"


async def test_runs_of_a_claim_whose_answer_was_lost_are_requeued(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    lost = (await client.post(f"/v1/workers/{worker}/claim")).json()

    async def next_claim_has_another_number() -> bool:
        empty = await client.post(f"/v1/workers/{worker}/claim", json={"queues": []})
        return bool(empty.json()["claim"] > lost["claim"])

    # Claims within 10 ms have the same number.
    await eventually(next_claim_has_another_number)
    # The answer to the newest claim may still be in transit, so its runs are not requeued yet.
    heartbeat = await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [], "claim": lost["claim"]})
    assert (heartbeat.status_code, "returned" in heartbeat.json()) == (200, False)
    other = await submit(client)
    later = (await client.post(f"/v1/workers/{worker}/claim")).json()
    assert [run["runId"] for run in later["runs"]] == [other]
    heartbeat = await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [other], "claim": later["claim"]})
    assert heartbeat.json()["returned"] == 1
    (run,) = await claim(client, worker)
    assert (run["runId"], run["attemptNumber"]) == (job, 1)


@pytest.mark.parametrize("body", [None, {}, {"held": []}, {"claim": 0}])
async def test_a_heartbeat_without_held_runs_and_claim_is_rejected(client: httpx2.AsyncClient, body: Any) -> None:
    worker = await register(client)
    assert (await client.post(f"/v1/workers/{worker}/heartbeat", json=body)).status_code == 400


REPORTS: dict[str, dict[str, Any]] = {
    "complete": {"result": 1},
    "fail": {"error": "x"},
    "release": {},
    "cancelled": {},
    "progress": {"done": 1},
    "log": {"text": "x"},
}


async def report(client: httpx2.AsyncClient, run: dict[str, Any], how: str) -> tuple[int, str]:
    answer = await client.post(f"/v1/runs/{run['runId']}/{how}", json={"fence": run["fence"], **REPORTS[how]})
    return answer.status_code, answer.json().get("answer", answer.json().get("title"))


async def expire(service: Service, worker: str) -> None:
    """Do what the reaper does when the lease of a worker has expired."""
    await service.store.close_session(SessionId(int(worker)))
    lost = await service.store.lost_runs(10)
    await service.store.complete([complete_loss(held, blamed=False) for held in lost])


async def test_reports_of_an_expired_worker_are_rejected(service: Service, client: httpx2.AsyncClient) -> None:
    zombie, other = await register(client), await register(client)
    await submit(client)
    (old,) = await claim(client, zombie)
    await expire(service, zombie)
    for how in REPORTS:
        assert await report(client, old, how) == (409, "Fenced"), how
    (new,) = await claim(client, other)
    for how in REPORTS:
        assert await report(client, old, how) == (409, "Fenced"), how
    assert await report(client, new, "complete") == (200, "accepted")
    assert await report(client, new, "complete") == (200, "duplicate")
    assert await report(client, old, "complete") == (409, "Fenced")


@pytest.mark.parametrize("first", ["complete", "fail", "release"])
async def test_only_the_same_report_is_a_duplicate(client: httpx2.AsyncClient, first: str) -> None:
    worker = await register(client)
    await submit(client)
    (run,) = await claim(client, worker)
    assert await report(client, run, first) == (200, "accepted")
    for how in ("complete", "fail", "release", "cancelled"):
        expected = (200, "duplicate") if how == first else (409, "Fenced")
        assert await report(client, run, how) == expected, how


async def test_the_heartbeat_of_an_expired_worker_returns_not_alive(
    service: Service, client: httpx2.AsyncClient
) -> None:
    worker = await register(client)
    await expire(service, worker)
    heartbeat = await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [], "claim": 0})
    assert (heartbeat.status_code, heartbeat.json()) == (200, {"alive": False, "cancel": []})
    assert (await client.post(f"/v1/workers/{worker}/claim")).status_code == 409
    assert (await client.post(f"/v1/workers/{worker}/leave")).status_code == 200


@pytest.mark.slow
async def test_a_drained_worker_gets_no_more_runs(service: Service, client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    job = await submit(client)
    waiting = asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 30, "queues": []}))
    await eventually(lambda: service.api.polls.taken)
    assert (await client.post(f"/v1/workers/{worker}/drain")).status_code == 202
    for answer in (await waiting, await client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 30})):
        assert (answer.json()["runs"], answer.json()["draining"]) == ([], True)
    assert (await client.get(f"/v1/runs/{job}")).json()["status"] == "queued"


async def test_a_claimed_run_has_the_time_of_its_tick(service: Service, client: httpx2.AsyncClient) -> None:
    made = (await client.post("/v1/jobs", json={"name": "n", "task": "t", "cronExpression": "0 2 * * *"})).json()
    tick = parse_instant("2026-01-02T02:00:00Z")
    ref = JobRef(id=made["jobId"], version=1, kind="backfill", scheduled_at=tick)
    run = NewRun(id=service.jobs.new_run_id(""), task="t", job=ref)
    await service.store.submit([run])
    worker = await register(client)
    (held,) = await claim(client, worker)
    assert (held["runId"], held["tick"]) == (run.id, "2026-01-02T02:00:00Z")
    assert held["scheduledFor"] > "2026-01-03"
    await submit(client)
    (plain,) = await claim(client, worker)
    assert "tick" not in plain


async def test_a_key_cannot_report_for_a_worker_of_another_key(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.OPERATOR, "a")) as operator,
        guarded.client(await guarded.key(Role.WORKER, "a", ("prod",))) as mine,
        guarded.client(await guarded.key(Role.WORKER, "a", ("mail",))) as of_another_queue,
        guarded.client(await guarded.key(Role.WORKER, "a", ("prod",))) as of_the_same_queue,
    ):
        job = await submit(operator, queue="prod")
        (run,) = await claim(mine, await register(mine, "prod"))
        assert (await operator.delete(f"/v1/jobs/{job}")).status_code == 202
        for stranger in (of_another_queue, of_the_same_queue):
            for how in REPORTS:
                assert await report(stranger, run, how) == (404, "Not found"), how
        assert await report(mine, run, "cancelled") == (200, "accepted")
        assert await report(of_another_queue, run, "cancelled") == (404, "Not found")


async def test_a_long_poll_ends_when_its_client_hangs_up(served: tuple[Service, str]) -> None:
    service, url = served
    key = await service.key(Role.WORKER, "a")
    async with (
        httpx2.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=DEADLINE_SECONDS
        ) as client,
        service.client(await service.key(Role.SUBMITTER, "a")) as submitter,
    ):
        worker = await register(client)
        poll = asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 20}))
        await eventually(lambda: service.api.polls.taken)
        poll.cancel()
        await eventually(lambda: not service.api.polls.taken)
        job = await submit(submitter)
        assert (await submitter.get(f"/v1/runs/{job}")).json()["status"] == "queued"
        (run,) = await claim(client, worker)
        assert (run["runId"], run["attemptNumber"]) == (job, 1)


async def test_runs_claimed_for_a_client_that_hung_up_are_released(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hangs up while the store claims."""
    take, gone = service.store.claim, asyncio.Event()

    async def claim_slowly(*arguments: Any) -> list[HeldRun]:
        found = await take(*arguments)
        gone.set()
        await asyncio.sleep(0)
        return found

    async def left() -> None:
        await gone.wait()

    async with service.client() as client:
        worker = await register(client)
        job = await submit(client)
        monkeypatch.setattr(service.store, "claim", claim_slowly)
        owner = (await service.store.sessions("worker"))[0].owner
        principal = Principal(name=owner, role=Role.ADMIN, tenant=None)
        call: Call[ClaimIn, Any] = Call(
            Permission.WORK, principal, {"id": worker}, Empty(), ClaimIn(wait_seconds=5), {}, left
        )
        answer = await claim_handler(service.api, call)
        assert answer.body.runs == []
        read = (await client.get(f"/v1/runs/{job}")).json()
        assert (read["status"], read["attemptNumber"]) == ("queued", 0)


async def test_a_waiting_claim_returns_a_run_that_is_submitted_later(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await register(client)
    take, has_looked = service.store.claim, asyncio.Event()

    async def claim_and_report(*arguments: Any) -> list[HeldRun]:
        found = await take(*arguments)
        has_looked.set()
        return found

    monkeypatch.setattr(service.store, "claim", claim_and_report)
    poll = asyncio.create_task(claim(client, worker, waitSeconds=30))
    await has_looked.wait()
    job = await submit(client)
    (run,) = await poll
    assert run["runId"] == job


@in_virtual_time
async def test_a_submit_wakes_a_waiting_claim_at_once() -> None:
    service = Service(auth=False, clock=VirtualClock())
    async with service.client() as client:
        worker = await register(client)
        poll = asyncio.create_task(claim(client, worker, waitSeconds=20))
        await service.clock.sleep(SECOND // 2)
        submitted_at = service.clock.monotonic()
        job = await submit(client)
        (run,) = await poll
        assert run["runId"] == job
        assert service.clock.monotonic() - submitted_at < SECOND // 10


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


async def test_a_key_bound_to_queues_cannot_use_other_queues(guarded: Service) -> None:
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
    assert why["reasons"][0] == "queue 'default' is paused for every tenant: deploy"
    await client.post("/v1/queues/default/resume")
    await client.post("/v1/pause")
    assert await claim(client, worker) == []
    await client.post("/v1/resume")
    assert len(await claim(client, worker)) == 1
