"""Overload: bounded bodies, streams and waiting claims, and a store that does not answer."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Permission, Principal, Role, Tenant
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime.cached import Cached
from mainspring.http.app import make_app
from mainspring.http.auth.authenticator import LOCAL
from mainspring.http.limits import CapacityLimit
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import RequestError
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service
from tests.support.clock import ManualClock
from tests.support.virtual import in_virtual_time

JSON = {"content-type": "application/json"}


def make_service(*, auth: bool = False) -> Service:
    return Service(auth=auth, clock=VirtualClock())


def is_overloaded(response: httpx2.Response) -> bool:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "1"
    return (response.status_code, response.json()["title"]) == (503, "Overloaded")


async def send_in_two_parts(may_finish: asyncio.Event, first: bytes, rest: bytes) -> AsyncIterator[bytes]:
    yield first
    await may_finish.wait()
    yield rest


@in_virtual_time
async def test_request_bodies_in_flight_are_bounded_in_bytes() -> None:
    service = make_service()
    service.api.bodies = CapacityLimit("bytes", 100_000)
    may_finish = asyncio.Event()
    first_part = b'{"task": "t", "payload": "' + b"x" * 150_000
    body = send_in_two_parts(may_finish, first_part, b'"}')
    async with service.client() as client:
        first = asyncio.create_task(client.post("/v1/jobs", content=body, headers=JSON))
        await asyncio.sleep(1)
        assert service.api.bodies.taken == len(first_part) - 65_536
        assert is_overloaded(await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 100_000}))
        # Small bodies are always accepted.
        assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 60_000})).status_code == 201
        may_finish.set()
        assert (await first).status_code == 201
        assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 100_000})).status_code == 201
    assert service.api.bodies.taken == 0


@in_virtual_time
async def test_a_body_counts_by_bytes_received_and_not_by_content_length() -> None:
    service = make_service()
    may_finish = asyncio.Event()
    async with service.client() as client:
        idle = [
            asyncio.create_task(
                client.post(
                    "/v1/jobs/batch",
                    content=send_in_two_parts(may_finish, b"{", b"}"),
                    headers={**JSON, "content-length": str(announced)},
                )
            )
            for announced in (67_108_864, 67_108_864, 33_554_431)
        ]
        await asyncio.sleep(1)
        assert service.api.bodies.taken == 0
        assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 200_000})).status_code == 201
        may_finish.set()
        await asyncio.gather(*idle)


@in_virtual_time
async def test_a_body_that_stalls_is_rejected_after_five_seconds() -> None:
    service = make_service()
    stalled = send_in_two_parts(asyncio.Event(), b'{"jobs": ["' + b"x" * 300_000, b'"]}')
    began = service.clock.monotonic()
    async with service.client() as client:
        response = await client.post("/v1/jobs/batch", content=stalled, headers=JSON)
    assert (response.status_code, response.json()["title"]) == (408, "Request timeout")
    assert service.clock.monotonic() - began == 5 * SECOND
    assert service.api.bodies.taken == 0


@in_virtual_time
@pytest.mark.parametrize(("pieces", "status"), [(7, 200), (8, 408)])
async def test_a_body_that_arrives_steadily_is_read_for_thirty_seconds(pieces: int, status: int) -> None:
    async def send_steadily() -> AsyncIterator[bytes]:
        yield b'{"jobs": [{"task": "t"}]'
        for _ in range(pieces):
            await asyncio.sleep(4)
            yield b" " * 256 * 1024
        yield b"}"

    service = make_service()
    async with service.client() as client:
        response = await client.post("/v1/jobs/batch", content=send_steadily(), headers=JSON)
    assert response.status_code == status
    assert service.api.bodies.taken == 0


def test_a_room_limits_each_principal_and_each_tenant() -> None:
    room = CapacityLimit("streams", 8, 2)
    ada, bob, eve = (Principal(name=name, role=Role.VIEWER, tenant="acme") for name in ("ada", "bob", "eve"))
    beta = Principal(name="beta", role=Role.VIEWER, tenant="beta")
    for principal in (ada, ada, bob, bob):
        room.take(principal)
    for principal, why in ((ada, "you hold the 2 streams"), (eve, "your tenant holds the 4 streams")):
        with pytest.raises(RequestError) as refused:
            room.take(principal)
        assert (refused.value.problem.status, refused.value.retry_after) == (429, 1)
        assert (refused.value.problem.detail or "").startswith(why)
    room.take(beta)
    room.release(ada)
    room.take(eve)
    admins = [Principal(name=f"admin {number}", role=Role.ADMIN, tenant=None) for number in range(3)]
    for principal in admins:
        room.take(principal)
    with pytest.raises(RequestError) as refused:
        room.take(beta)
    assert refused.value.problem.status == 503
    for principal in (ada, bob, bob, beta, eve, *admins):
        room.release(principal)
    assert room.taken == 0
    assert not room._by_name
    assert not room._by_tenant


@in_virtual_time
async def test_one_caller_does_not_shut_out_another() -> None:
    guarded = make_service(auth=True)
    api = guarded.api
    assert (api.streams._most, api.streams._each, api.polls._each) == (1_000, 250, 1_000)
    assert (api.bodies._most, api.bodies._each) == (128 << 20, 64 << 20)
    api.streams, api.polls = CapacityLimit("streams", 8, 2), CapacityLimit("claims", 8, 2)
    api.bodies = CapacityLimit("bytes", 400_000, 100_000)
    large_job = {"task": "t", "payload": "x" * 200_000}
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as a,
        guarded.client(await guarded.key(Role.ADMIN, "b")) as b,
    ):
        job = (await a.post("/v1/jobs", json={"task": "t", "queue": "other"})).json()["jobId"]
        following = [asyncio.create_task(a.get(path)) for path in ("/v1/events", f"/v1/runs/{job}/logs/follow")]
        worker = (await a.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        polls = [asyncio.create_task(a.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 20})) for _ in range(2)]
        await asyncio.sleep(1)
        for response in (
            await a.get("/v1/events"),
            await a.post(f"/v1/workers/{worker}/claim"),
            await a.post("/v1/jobs", json=large_job),
        ):
            assert (response.status_code, response.json()["title"]) == (429, "Too many at once")
        other = (await b.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        assert (await b.post(f"/v1/workers/{other}/claim")).status_code == 200
        other_job = (await b.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        following.append(asyncio.create_task(b.get(f"/v1/runs/{other_job}/logs/follow")))
        await asyncio.sleep(1)
        assert api.streams.taken == 3
        api.prepare_stop()
        await asyncio.gather(*following, *polls)
    assert api.streams.taken == api.polls.taken == api.bodies.taken == 0


@in_virtual_time
async def test_streams_are_bounded_and_are_released_when_they_end() -> None:
    service = make_service()
    service.api.streams = CapacityLimit("streams", 2)
    async with service.client() as client:
        first = service.api.open_stream(LOCAL, service.api.hub.follow(None, None))
        never_begun = service.api.open_stream(LOCAL, service.api.hub.follow(None, None))
        assert (await anext(first)).startswith(b"id: ")
        assert is_overloaded(await client.get("/v1/events"))
        del never_begun
        gc.collect()
        assert service.api.streams.taken == 1
        service.api.prepare_stop()
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        assert service.api.streams.taken == 0
        # A stream that begins while the process stops ends at once.
        assert (await client.get("/v1/events")).status_code == 200
    assert service.api.streams.taken == 0


@in_virtual_time
async def test_following_a_log_ends_when_the_process_stops() -> None:
    service = make_service()
    async with service.client() as client:
        job = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        following = asyncio.create_task(client.get(f"/v1/runs/{job}/logs/follow"))
        await asyncio.sleep(1)
        assert service.api.streams.taken == 1
        service.api.prepare_stop()
        assert (await following).status_code == 200
    assert service.api.streams.taken == 0


@in_virtual_time
async def test_waiting_claims_are_bounded_and_return_when_the_process_stops() -> None:
    service = make_service()
    service.api.polls = CapacityLimit("claims", 1)
    async with service.client() as client:
        registered = await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})
        path = f"/v1/workers/{registered.json()['workerId']}/claim"
        poll = asyncio.create_task(client.post(path, json={"waitSeconds": 20}))
        await asyncio.sleep(1)
        assert is_overloaded(await client.post(path))
        left_at = service.clock.monotonic()
        service.api.prepare_stop()
        assert (await poll).json()["runs"] == []
        assert service.clock.monotonic() - left_at < 2 * SECOND
        assert (await client.post(path)).status_code == 200
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["problems"]) == (503, ["this process is about to stop"])
        assert (await client.get("/healthz")).status_code == 200


@in_virtual_time
async def test_requests_fail_with_503_while_the_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service()

    def break_store(patch: pytest.MonkeyPatch, *methods: str) -> None:
        async def fail(*_: object, **__: object) -> object:
            raise StoreUnavailable("connect to db.internal as user mainspring failed")

        for method in methods:
            patch.setattr(service.store, method, fail)

    async with service.client() as client:
        with monkeypatch.context() as patch:
            break_store(patch, "submit", "now", "list_jobs", "list_runs", "depths")
            for response in (
                await client.post("/v1/jobs", json={"task": "t"}),
                await client.post("/v1/jobs/batch", json={"jobs": [{"task": "t"}] * 3}),
                await client.get("/v1/jobs"),
            ):
                assert response.headers["content-type"] == "application/problem+json"
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert (await client.get("/healthz")).json()["status"] == "ok"
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["problems"]) == (503, ["the store does not answer"])
            assert "db.internal" not in ready.text
            break_store(patch, "sessions")
            assert "mainspring_store_up 0.0" in (await client.get("/metrics")).text
        assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201
        assert (await client.get("/readyz")).status_code == 200
        assert "mainspring_store_up 1.0" in (await client.get("/metrics")).text


@in_virtual_time
async def test_a_submit_times_out_if_the_store_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> object:
        return await asyncio.get_running_loop().create_future()

    service = make_service()
    async with service.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "submit", never)
            refused = await client.post("/v1/jobs", json={"task": "t"})
            assert (refused.status_code, refused.json()["title"]) == (503, "Store unavailable")
        assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201


@in_virtual_time
async def test_a_request_that_takes_too_long_fails_with_503() -> None:
    slow = Resource("Slow", "")

    @slow.operation("GET", "/slow", permission=Permission.READ, answers={200: str}, within=5)
    async def wait(api: Any, call: Call[Empty, Empty]) -> Answer:
        await asyncio.sleep(10)
        return Answer(200, "")

    service = make_service()
    transport = httpx2.ASGITransport(app=make_app(service.api, [slow]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get("/slow")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["title"] == "Not done in time"
    assert service.api.bodies.taken == 0


@in_virtual_time
async def test_concurrent_requests_share_one_read_of_tenants_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service()
    reads = {"tenants": 0, "sessions": 0}

    def count_reads(name: str, real: Callable[..., Awaitable[object]]) -> None:
        async def count(*arguments: object) -> object:
            reads[name] += 1
            await asyncio.sleep(0.2)
            return await real(*arguments)

        monkeypatch.setattr(service.store, name, count)

    count_reads("tenants", service.store.tenants)
    count_reads("sessions", service.store.sessions)
    async with service.client() as client:
        answers = await asyncio.gather(*[client.post("/v1/jobs", json={"task": "t"}) for _ in range(50)])
    assert {answer.status_code for answer in answers} == {201}
    assert reads == {"tenants": 1, "sessions": 1}


@in_virtual_time
async def test_a_failed_read_is_not_cached() -> None:
    clock = ManualClock()
    answers: list[list[Tenant] | None] = [[Tenant(name="old")], None, [Tenant(name="new")]]

    async def read() -> list[Tenant]:
        answer = answers.pop(0)
        if answer is None:
            raise StoreUnavailable("away")
        return answer

    remembered = Cached(read, clock, 2 * SECOND)
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    clock.advance(3 * SECOND)
    with pytest.raises(StoreUnavailable):
        await remembered.get()
    assert [tenant.name for tenant in await remembered.get()] == ["new"]


@in_virtual_time
async def test_a_worker_that_registered_with_another_process_can_claim_at_once() -> None:
    service = make_service()
    other = Service(auth=False, store=service.store, clock=service.clock)
    # The list of workers is cached before the worker registers.
    await service.api.workers.list_live(None)
    async with service.client() as client, other.client() as other_client:
        body = {"name": "w", "queues": ["default"]}
        worker = (await other_client.post("/v1/workers/register", json=body)).json()["workerId"]
        assert (await client.post(f"/v1/workers/{worker}/claim")).status_code == 200
