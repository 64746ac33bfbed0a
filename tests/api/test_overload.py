"""More than this process can hold, and a store that does not answer."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from mainspring.api.app import make_app
from mainspring.api.context import Remembered
from mainspring.api.limits import Room
from mainspring.api.operation import Answer, Call, Nothing, Resource
from mainspring.domain.access import Permission, Tenant
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import SECOND
from tests.api.conftest import Service
from tests.support.clock import ManualClock

pytestmark = pytest.mark.parametrize("store_kind", ["memory"], indirect=True)


def is_overloaded(response: httpx2.Response) -> bool:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "1"
    return (response.status_code, response.json()["title"]) == (503, "Overloaded")


async def test_bytes_of_requests_bodies_are_bounded(service: Service, client: httpx2.AsyncClient) -> None:
    service.api.bodies = Room("bytes", 100_000)
    sent = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"task": "t", "payload": "'
        await sent.wait()
        yield b"x" * 50_000 + b'"}'

    headers = {"content-type": "application/json", "content-length": str(26 + 50_000 + 2)}
    first = asyncio.create_task(client.post("/v1/jobs", content=slowly(), headers=headers))
    await asyncio.sleep(0.05)
    assert is_overloaded(await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 50_000}))
    # Small ones still find room.
    assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201
    sent.set()
    assert (await first).status_code == 201
    assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 50_000})).status_code == 201
    assert service.api.bodies.taken == 0


async def test_a_body_that_does_not_say_its_size_counts_as_the_largest(
    service: Service, client: httpx2.AsyncClient
) -> None:
    service.api.bodies = Room("bytes", 500_000)

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"task": "t"}'

    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    assert is_overloaded(await client.post("/v1/jobs", content=pieces(), headers=headers))
    service.api.bodies = Room("bytes", 600_000)
    assert (await client.post("/v1/jobs", content=pieces(), headers=headers)).status_code == 201
    assert service.api.bodies.taken == 0


async def test_streams_are_bounded_and_give_their_place_back(service: Service, client: httpx2.AsyncClient) -> None:
    service.api.streams = Room("streams", 2)
    async with asyncio.timeout(10):
        first = service.api.stream(service.api.hub.follow(None, None))
        never_begun = service.api.stream(service.api.hub.follow(None, None))
        assert (await anext(first)).startswith(b"id: ")
        assert is_overloaded(await client.get("/v1/events"))
        del never_begun
        gc.collect()
        assert service.api.streams.taken == 1
        service.api.leave()
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        assert service.api.streams.taken == 0
        # A stream that begins now ends at once.
        assert (await client.get("/v1/events")).status_code == 200
    assert service.api.streams.taken == 0


async def test_following_a_log_ends_when_the_process_leaves(service: Service, client: httpx2.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
    following = asyncio.create_task(client.get(f"/v1/runs/{job}/logs/follow"))
    await asyncio.sleep(0.05)
    assert service.api.streams.taken == 1
    service.api.leave()
    assert (await asyncio.wait_for(following, 2)).status_code == 200
    assert service.api.streams.taken == 0


async def test_waiting_claims_are_bounded_and_return_when_the_process_leaves(
    service: Service, client: httpx2.AsyncClient
) -> None:
    service.api.polls = Room("claims", 1)
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    poll = asyncio.create_task(client.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 20}))
    await asyncio.sleep(0.05)
    assert is_overloaded(await client.post(f"/v1/workers/{worker}/claim"))
    service.api.leave()
    assert (await asyncio.wait_for(poll, 2)).json()["runs"] == []
    assert (await client.post(f"/v1/workers/{worker}/claim")).status_code == 200
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, ["this process is about to stop"])
    assert (await client.get("/healthz")).status_code == 200


def unavailable(service: Service, monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
    async def away(*_: object, **__: object) -> object:
        raise StoreUnavailable("connect to db.internal as user mainspring failed")

    for method in methods:
        monkeypatch.setattr(service.store, method, away)


async def test_a_store_that_is_away(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.control.jobs._PATIENCE", SECOND // 10)
    with monkeypatch.context() as patch:
        unavailable(service, patch, "submit", "now", "list_jobs", "list_runs", "depths")
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
        assert "mainspring_store_up 0.0" in (await client.get("/metrics")).text
    assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201
    assert (await client.get("/readyz")).status_code == 200
    assert "mainspring_store_up 1.0" in (await client.get("/metrics")).text


async def test_a_store_that_never_answers_is_given_up(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> object:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("mainspring.control.jobs._LONGEST", SECOND // 10)
    with monkeypatch.context() as patch:
        patch.setattr(service.store, "submit", never)
        async with asyncio.timeout(2):
            assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 503
    assert (await client.post("/v1/jobs", json={"task": "t"})).status_code == 201


async def test_a_request_that_takes_too_long_is_given_up(service: Service) -> None:
    slow = Resource("Slow", "")

    @slow.operation("GET", "/slow", permission=Permission.READ, answers={200: str}, within=0.05)
    async def wait(api: Any, call: Call[Nothing, Nothing]) -> Answer:
        await asyncio.sleep(10)
        return Answer(200, "")

    transport = httpx2.ASGITransport(app=make_app(service.api, [slow]))  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, base_url="http://mainspring") as client, asyncio.timeout(2):
        response = await client.get("/slow")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["title"] == "Not done in time"
    assert service.api.bodies.taken == 0


async def test_however_many_ask_the_store_is_asked_once(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"tenants": 0, "sessions": 0}

    def counting(name: str, real: Callable[..., Awaitable[object]]) -> None:
        async def count(*arguments: object) -> object:
            asked[name] += 1
            await asyncio.sleep(0.05)
            return await real(*arguments)

        monkeypatch.setattr(service.store, name, count)

    counting("tenants", service.store.tenants)
    counting("sessions", service.store.sessions)
    answers = await asyncio.gather(*[client.post("/v1/jobs", json={"task": "t"}) for _ in range(50)])
    assert {answer.status_code for answer in answers} == {201}
    assert asked == {"tenants": 1, "sessions": 1}


async def test_what_could_not_be_read_is_not_remembered(store_kind: str) -> None:
    clock = ManualClock()
    answers: list[list[Tenant] | None] = [[Tenant(name="old")], None, [Tenant(name="new")]]

    async def read() -> list[Tenant]:
        answer = answers.pop(0)
        if answer is None:
            raise StoreUnavailable("away")
        return answer

    remembered = Remembered(read, clock)
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    clock.advance(3 * SECOND)
    with pytest.raises(StoreUnavailable):
        await remembered.get()
    assert [tenant.name for tenant in await remembered.get()] == ["new"]


async def test_a_worker_that_registered_elsewhere_is_found_at_once(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await service.api.workers()
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    assert (await client.post(f"/v1/workers/{worker}/claim")).status_code == 200
