"""Quotas of tenants and rate limits of callers."""

from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Quotas, Role, Tenant
from mainspring.core.model.access.networks import read_networks
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.http.api_store import ApiStore
from mainspring.http.auth.authenticator import KeyUsageRecorder
from mainspring.http.limits import TokenBuckets
from mainspring.http.problems import RequestError
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service, memory_only
from tests.support.clock import ManualClock
from tests.support.virtual import in_virtual_time

CRON = {"scheduleType": "cron", "cronExpression": "0 0 1 1 *"}


async def limit(service: Service, tenant: str = "default", **quotas: Any) -> None:
    await service.store.put_tenant(Tenant(name=tenant, quotas=Quotas(**quotas)), Author("test"))


async def submit(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await client.post("/v1/jobs", json={"task": "t", **fields})


def is_over_quota(response: httpx2.Response, reason: str) -> bool:
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["retry-after"]) >= 1
    return (response.status_code, problem["title"]) == (429, "Quota reached") and reason in problem["detail"]


async def batch(client: httpx2.AsyncClient, *jobs: dict[str, Any]) -> list[int | None]:
    """The status of each rejected job of the batch, and None for each accepted one, in order."""
    response = await client.post("/v1/jobs/batch", json={"jobs": [{"task": "t", **job} for job in jobs]})
    assert response.status_code == 200, response.text
    return [item.get("problem", {}).get("status") for item in response.json()["items"]]


async def make_dead_letters(client: httpx2.AsyncClient, count: int) -> None:
    assert (await batch(client, *[{}] * count)) == [None] * count
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    for run in (await client.post(f"/v1/workers/{worker}/claim", json={"limit": count})).json()["runs"]:
        body = {"fence": run["fence"], "error": "ValueError: no", "retry": False}
        assert (await client.post(f"/v1/runs/{run['runId']}/fail", json=body)).status_code == 200


async def test_queued_runs_are_limited(service: Service, client: httpx2.AsyncClient) -> None:
    await limit(service, queued=2)
    job = (await submit(client)).json()["jobId"]
    assert (await submit(client)).status_code == 201
    assert is_over_quota(await submit(client), "2 queued runs")
    assert is_over_quota(await client.post(f"/v1/jobs/{job}/run"), "2 queued runs")
    # A new schedule does not queue a run yet.
    assert (await submit(client, name="yearly", **CRON)).status_code == 201
    await client.delete(f"/v1/jobs/{job}")
    assert (await submit(client)).status_code == 201


async def test_a_batch_is_accepted_up_to_the_quota_and_the_rest_is_rejected_one_by_one(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await limit(service, queued=3)
    await limit(service, "other")
    assert await batch(client, {}, {"priority": 99_999}, {}, {}, {}, {"tenant": "other"}) == [
        None,
        400,
        None,
        None,
        429,
        None,
    ]
    assert await batch(client, {}, {"tenant": "other"}) == [429, None]


async def test_a_job_that_depends_on_a_refused_one_has_its_status(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(service, "other", queued=0)
    real = service.api.admission.check

    async def fail_for_away(principal: Any, tenant: str, queue: str, task: str, *args: Any, **options: Any) -> None:
        if task == "away":
            raise StoreUnavailable("the store does not answer")
        await real(principal, tenant, queue, task, *args, **options)

    monkeypatch.setattr(service.api.admission, "check", fail_for_away)
    jobs: list[dict[str, Any]] = [{"task": "away"}, {"dependsOn": ["#0"]}, {"dependsOn": ["#1"]}, {}]
    assert await batch(client, *jobs) == [503, 503, 503, None]
    assert await batch(client, {"tenant": "other"}, {"dependsOn": ["#0"]}) == [429, 429]
    # A parent that can never be accepted decides: sending it again is of no use.
    jobs = [{"task": "away"}, {"priority": 99_999}, {"dependsOn": ["#0", "#1"]}, {"dependsOn": ["#9"]}]
    assert await batch(client, *jobs) == [503, 400, 400, 400]


@memory_only
async def test_a_batch_counts_queued_runs_once(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(service, queued=1_000)
    filters = []
    count = service.store.count_runs

    async def counting(wanted: RunFilter, at_most: int) -> int:
        filters.append(wanted)
        return await count(wanted, at_most)

    monkeypatch.setattr(service.store, "count_runs", counting)
    assert await batch(client, *[{}] * 500) == [None] * 500
    assert len(filters) == 1


async def test_recurring_jobs_are_limited(service: Service, client: httpx2.AsyncClient) -> None:
    await limit(service, jobs=2)
    first = (await submit(client, name="a", **CRON)).json()["jobId"]
    assert await batch(client, {"name": "b", **CRON}, {"name": "c", **CRON}) == [None, 429]
    assert is_over_quota(await submit(client, name="d", **CRON), "2 recurring jobs")
    assert (await submit(client)).status_code == 201
    # A paused job still counts; a cancelled one does not.
    await client.post(f"/v1/jobs/{first}/pause")
    assert (await submit(client, name="d", **CRON)).status_code == 429
    await client.delete(f"/v1/jobs/{first}")
    assert (await submit(client, name="d", **CRON)).status_code == 201


async def test_runs_at_the_same_time_are_limited(service: Service, client: httpx2.AsyncClient) -> None:
    await limit(service, running=2)
    await batch(client, *[{}] * 5)
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    runs = (await client.post(f"/v1/workers/{worker}/claim", json={"limit": 5})).json()["runs"]
    assert len(runs) == 2
    assert (await client.post(f"/v1/workers/{worker}/claim", json={"limit": 5})).json()["runs"] == []
    await client.post(f"/v1/runs/{runs[0]['runId']}/complete", json={"fence": runs[0]["fence"]})
    assert len((await client.post(f"/v1/workers/{worker}/claim", json={"limit": 5})).json()["runs"]) == 1


async def test_payloads_are_limited(service: Service, client: httpx2.AsyncClient) -> None:
    await limit(service, payload_bytes=10)
    assert (await submit(client, payload="12345678")).status_code == 201
    refused = await submit(client, payload="123456789")
    assert (refused.status_code, refused.json()["field"], refused.json()["hint"]) == (400, "payload", "the quota is 10")
    assert await batch(client, {"payload": "123456789"}, {"payload": 1}) == [400, None]
    assert (await submit(client, name="a", payload="123456789", **CRON)).status_code == 400


@in_virtual_time
async def test_submits_per_minute_are_limited() -> None:
    service = Service(auth=False, clock=VirtualClock())
    client = service.client()
    await limit(service, submits_per_minute=3)
    await limit(service, "closed", submits_per_minute=0)
    await limit(service, "other")
    assert await batch(client, {}, {}) == [None, None]
    assert await batch(client, {"name": "a", **CRON}, {}, {}) == [429, None, 429]
    refused = await submit(client)
    assert is_over_quota(refused, "3 jobs a minute")
    assert int(refused.headers["retry-after"]) == 20
    assert is_over_quota(await submit(client, tenant="closed"), "0 jobs a minute")
    assert (await submit(client, tenant="other")).status_code == 201
    await service.clock.sleep(20 * SECOND)
    assert (await submit(client)).status_code == 201
    assert (await submit(client)).status_code == 429


@in_virtual_time
async def test_an_invalid_job_is_not_charged_to_the_rate_limit() -> None:
    service = Service(auth=False, clock=VirtualClock())
    client = service.client()
    await limit(service, submits_per_minute=1)
    assert (await submit(client, priority=99_999)).status_code == 400
    assert (await submit(client)).status_code == 201


async def test_replays_are_charged_and_continue_where_they_stopped(store: ApiStore) -> None:
    service = Service(auth=False, store=store)
    await make_dead_letters(service.client(), 3)
    await limit(service, queued=2)
    # The first API has cached that there is no quota; this one has not.
    client = Service(auth=False, store=store).client()
    some = (await client.post("/v1/dead-letters/replay", json={"everything": True})).json()
    assert (some["count"], some["more"]) == (2, True)
    assert is_over_quota(await client.post("/v1/dead-letters/replay", json={"everything": True}), "2 queued runs")
    for run in some["runIds"]:
        await client.delete(f"/v1/jobs/{run}")
    rest = (await client.post("/v1/dead-letters/replay", json={"everything": True})).json()
    assert (rest["count"], rest["more"]) == (1, False)


async def test_backfills_are_charged_and_continue_where_they_stopped(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await limit(service, queued=2)
    job = (await submit(client, name="hourly", scheduleType="cron", cronExpression="0 * * * *")).json()["jobId"]
    span = {"since": "2026-03-01T00:30:00Z", "until": "2026-03-01T03:30:00Z"}
    made = (await client.post(f"/v1/jobs/{job}/backfill", json=span)).json()
    assert (made["ticks"], made["made"]) == (3, 2)
    assert is_over_quota(await client.post(f"/v1/jobs/{job}/backfill", json=span), "2 queued runs")
    for run in (await client.get("/v1/runs", params={"status": "queued"})).json()["items"]:
        await client.post(f"/v1/runs/{run['runId']}/cancel")
    assert (await client.post(f"/v1/jobs/{job}/backfill", json=span)).json()["made"] == 1
    assert (await client.post(f"/v1/jobs/{job}/backfill", json=span)).json()["made"] == 0


@in_virtual_time
async def test_a_new_quota_takes_effect_after_two_seconds() -> None:
    service = Service(auth=False, clock=VirtualClock())
    client = service.client()
    assert (await submit(client)).status_code == 201
    await limit(service, queued=1)
    await service.clock.sleep(SECOND)
    assert (await submit(client)).status_code == 201
    await service.clock.sleep(SECOND)
    assert (await submit(client)).status_code == 429


@in_virtual_time
async def test_a_batch_counts_as_one_request() -> None:
    guarded = Service(auth=True, clock=VirtualClock())
    guarded.api.buckets = TokenBuckets(guarded.clock, 0.1, 2)
    async with guarded.client(await guarded.key(Role.SUBMITTER, "a")) as client:
        assert await batch(client, *[{}] * 50) == [None] * 50
        assert (await submit(client)).status_code == 201
        refused = await submit(client)
        assert (refused.status_code, refused.json()["title"]) == (429, "Too many requests")
        assert int(refused.headers["retry-after"]) == 10
    async with guarded.client(await guarded.key(Role.SUBMITTER, "a")) as other:
        assert (await submit(other)).status_code == 201


@in_virtual_time
async def test_guessing_keys_is_rate_limited_by_address() -> None:
    guarded = Service(auth=True, clock=VirtualClock())

    async def guess(peer: str, forwarded_for: str) -> int:
        transport = httpx2.ASGITransport(app=guarded.app, client=(peer, 4711))
        headers = {"authorization": "Bearer ms_guess", "x-forwarded-for": forwarded_for}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answer = await client.get("/v1/jobs")
        assert answer.status_code == 401 or int(answer.headers["retry-after"]) >= 1
        return answer.status_code

    # X-Forwarded-For counts only if it comes from a trusted proxy.
    assert {await guess("203.0.113.9", f"198.51.100.{number}") for number in range(50)} == {401}
    assert {await guess("203.0.113.9", f"198.51.101.{number}") for number in range(5)} == {429}
    assert await guess("203.0.113.10", "198.51.100.1") == 401
    guarded.api._proxies = read_networks("proxies", ["203.0.113.9"])
    assert await guess("203.0.113.9", "198.51.100.1") == 401


def test_a_bucket_fills_at_its_rate() -> None:
    clock = ManualClock()
    buckets = TokenBuckets(clock, 2, 3)
    for _ in range(3):
        buckets.take("ada")
    with pytest.raises(RequestError) as refused:
        buckets.take("ada")
    assert (refused.value.problem.status, refused.value.retry_after) == (429, 1)
    buckets.take("bob")
    clock.advance(SECOND)
    assert buckets.take_up_to("ada", 10) == 2
    clock.advance(3600 * SECOND)
    assert buckets.take_up_to("ada", 10) == 3
    assert TokenBuckets(clock, 0, 1).take_up_to("ada", 10_000) == 10_000


async def test_the_time_a_key_was_last_used_is_stored(guarded: Service) -> None:
    text = await guarded.key(Role.VIEWER, "a")
    unused = await guarded.key(Role.VIEWER, "a")
    async with guarded.client(text) as client:
        await client.get("/v1/jobs")
    keeper = KeyUsageRecorder(guarded.api.auth, guarded.wakeups, guarded.clock)
    await keeper.tick()
    used = {key.id: key.last_used_at for key in await guarded.store.keys("a")}
    assert used[text.split("_")[1]] is not None
    assert used[unused.split("_")[1]] is None


@memory_only
async def test_metrics_need_the_read_permission_and_show_the_queues_of_the_tenant(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.SUBMITTER, "a")) as a:
        await submit(a, queue="only-of-a")
        mine = await a.get("/metrics")
    assert mine.status_code == 200
    assert 'mainspring_queued_runs{queue="only-of-a"} 1.0' in mine.text
    async with guarded.client(await guarded.key(Role.VIEWER, "b")) as b:
        theirs = await b.get("/metrics")
    assert theirs.status_code == 200
    assert "only-of-a" not in theirs.text
    async with guarded.client(await guarded.key(Role.WORKER, "a")) as worker:
        assert (await worker.get("/metrics")).status_code == 403
    async with guarded.client() as stranger:
        assert (await stranger.get("/metrics")).status_code == 401
        assert (await stranger.get("/healthz")).status_code == 200
        assert (await stranger.get("/readyz")).status_code == 200


async def test_an_operators_pause_affects_the_operators_tenant_only(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.OPERATOR, "a")) as a,
        guarded.client(await guarded.key(Role.OPERATOR, "b")) as b,
        guarded.client(await guarded.key(Role.ADMIN, None)) as admin,
    ):
        await submit(a)
        theirs = (await submit(b)).json()["jobId"]
        assert (await a.post("/v1/queues/default/pause")).status_code == 200
        assert (await a.post("/v1/pause")).status_code == 403
        assert (await a.get("/v1/queues")).json()["items"][0]["paused"] is True
        assert (await b.get("/v1/queues")).json()["items"][0]["paused"] is False
        worker = await admin.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})
        claim = f"/v1/workers/{worker.json()['workerId']}/claim"
        assert [run["runId"] for run in (await admin.post(claim, json={"limit": 9})).json()["runs"]] == [theirs]
        # A resume by another tenant or by the admin does not end it.
        await b.post("/v1/queues/default/resume")
        await admin.post("/v1/queues/default/resume")
        assert (await admin.post(claim, json={"limit": 9})).json()["runs"] == []
        await a.post("/v1/queues/default/resume")
        assert len((await admin.post(claim, json={"limit": 9})).json()["runs"]) == 1


async def test_a_bulk_action_affects_the_tenant_of_its_caller_only(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.OPERATOR, "a")) as a,
        guarded.client(await guarded.key(Role.OPERATOR, "b")) as b,
        guarded.client(await guarded.key(Role.ADMIN, None)) as admin,
    ):
        mine, theirs = (await submit(a)).json()["jobId"], (await submit(b)).json()["jobId"]
        tag = {"target": "runs", "action": "retag", "everything": True, "addTags": ["x"]}
        assert (await a.post("/v1/bulk", json=tag)).json()["changed"] == 1
        assert (await b.get(f"/v1/jobs/{theirs}")).json().get("tags", []) == []
        # An admin without a tenant acts on every tenant.
        assert (await admin.post("/v1/bulk", json={**tag, "addTags": ["y"]})).json()["changed"] == 2
        stop = {"target": "runs", "action": "cancel", "everything": True}
        assert (await a.post("/v1/bulk", json=stop)).json()["changed"] == 1
        assert (await a.get(f"/v1/jobs/{mine}")).json()["status"] == "cancelled"
        assert (await b.get(f"/v1/jobs/{theirs}")).json()["status"] == "queued"
