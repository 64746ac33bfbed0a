"""More than this process can hold, and a store that does not answer."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from mainspring.api.app import make_app
from mainspring.api.auth import LOCAL
from mainspring.api.limits import Room
from mainspring.api.operation import Answer, Call, Nothing, Resource
from mainspring.api.problems import Refused
from mainspring.domain.access import Permission, Principal, Role, Tenant
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import SECOND
from mainspring.runtime.remembered import Remembered
from tests.api.conftest import Service
from tests.support.clock import ManualClock

pytestmark = pytest.mark.parametrize("store_kind", ["memory"], indirect=True)


def is_overloaded(response: httpx2.Response) -> bool:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "1"
    return (response.status_code, response.json()["title"]) == (503, "Overloaded")


async def slowly(sent: asyncio.Event, first: bytes, rest: bytes) -> AsyncIterator[bytes]:
    yield first
    await sent.wait()
    yield rest


JSON = {"content-type": "application/json"}


async def test_bytes_of_requests_bodies_are_bounded(service: Service, client: httpx2.AsyncClient) -> None:
    service.api.bodies = Room("bytes", 100_000)
    sent = asyncio.Event()
    first_part = b'{"task": "t", "payload": "' + b"x" * 150_000
    first = asyncio.create_task(client.post("/v1/jobs", content=slowly(sent, first_part, b'"}'), headers=JSON))
    await asyncio.sleep(0.05)
    assert service.api.bodies.taken == len(first_part) - 65_536
    assert is_overloaded(await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 100_000}))
    # Small ones are never refused.
    assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 60_000})).status_code == 201
    sent.set()
    assert (await first).status_code == 201
    assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 100_000})).status_code == 201
    assert service.api.bodies.taken == 0


async def test_a_body_counts_as_it_comes_and_not_as_it_was_announced(
    service: Service, client: httpx2.AsyncClient
) -> None:
    sent = asyncio.Event()
    idle = [
        asyncio.create_task(
            client.post(
                "/v1/jobs/batch", content=slowly(sent, b"{", b"}"), headers={**JSON, "content-length": str(announced)}
            )
        )
        for announced in (67_108_864, 67_108_864, 33_554_431)
    ]
    await asyncio.sleep(0.05)
    assert service.api.bodies.taken == 0
    assert (await client.post("/v1/jobs", json={"task": "t", "payload": "x" * 200_000})).status_code == 201
    sent.set()
    await asyncio.gather(*idle)


async def test_who_sends_too_slowly_is_given_up(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.api.app._PIECE_SECONDS", 0.1)
    monkeypatch.setattr("mainspring.api.app._PIECE_BYTES", 1_000)
    # It began well.
    stalled = slowly(asyncio.Event(), b'{"jobs": ["' + b"x" * 100_000, b'"]}')
    async with asyncio.timeout(2):
        response = await client.post("/v1/jobs/batch", content=stalled, headers=JSON)
    assert (response.status_code, response.json()["title"]) == (408, "Request timeout")
    assert service.api.bodies.taken == 0

    async def steadily() -> AsyncIterator[bytes]:
        yield b'{"task": "t", "payload": "'
        for _ in range(5):
            await asyncio.sleep(0.05)
            yield b"x" * 1_000
        yield b'"}'

    assert (await client.post("/v1/jobs", content=steadily(), headers=JSON)).status_code == 201


def test_nobody_has_a_room_alone(store_kind: str) -> None:
    room = Room("streams", 8, 2)
    ada, bob, eve = (Principal(name=name, role=Role.VIEWER, tenant="acme") for name in ("ada", "bob", "eve"))
    beta = Principal(name="beta", role=Role.VIEWER, tenant="beta")
    for who in (ada, ada, bob, bob):
        room.take(who)
    for who, why in ((ada, "you hold the 2 streams"), (eve, "your tenant holds the 4 streams")):
        with pytest.raises(Refused) as refused:
            room.take(who)
        assert (refused.value.problem.status, refused.value.retry_after) == (429, 1)
        assert (refused.value.problem.detail or "").startswith(why)
    room.take(beta)
    room.give_back(ada)
    room.take(eve)
    everybody = [Principal(name=f"admin {number}", role=Role.ADMIN, tenant=None) for number in range(3)]
    for who in everybody:
        room.take(who)
    with pytest.raises(Refused) as refused:
        room.take(beta)
    assert refused.value.problem.status == 503
    for who in (ada, bob, bob, beta, eve, *everybody):
        room.give_back(who)
    assert room.taken == 0
    assert not room._by_name
    assert not room._by_tenant


async def test_one_caller_does_not_shut_out_another(guarded: Service) -> None:
    api = guarded.api
    assert (api.streams._most, api.streams._each, api.polls._each) == (1_000, 250, 1_000)
    assert (api.bodies._most, api.bodies._each) == (128 << 20, 64 << 20)
    api.streams, api.polls = Room("streams", 8, 2), Room("claims", 8, 2)
    api.bodies = Room("bytes", 400_000, 100_000)
    a_large_one = {"task": "t", "payload": "x" * 200_000}
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as a,
        guarded.client(await guarded.key(Role.ADMIN, "b")) as b,
    ):
        job = (await a.post("/v1/jobs", json={"task": "t", "queue": "other"})).json()["jobId"]
        following = [asyncio.create_task(a.get(path)) for path in ("/v1/events", f"/v1/runs/{job}/logs/follow")]
        worker = (await a.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        polls = [asyncio.create_task(a.post(f"/v1/workers/{worker}/claim", json={"waitSeconds": 20})) for _ in range(2)]
        await asyncio.sleep(0.1)
        for response in (
            await a.get("/v1/events"),
            await a.post(f"/v1/workers/{worker}/claim"),
            await a.post("/v1/jobs", json=a_large_one),
        ):
            assert (response.status_code, response.json()["title"]) == (429, "Too many at once")
        other = (await b.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        assert (await b.post(f"/v1/workers/{other}/claim")).status_code == 200
        theirs = (await b.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        follows = asyncio.create_task(b.get(f"/v1/runs/{theirs}/logs/follow"))
        await asyncio.sleep(0.05)
        assert api.streams.taken == 3
        api.leave()
        async with asyncio.timeout(5):
            await asyncio.gather(*following, *polls, follows)
    assert api.streams.taken == api.polls.taken == api.bodies.taken == 0


async def test_streams_are_bounded_and_give_their_place_back(service: Service, client: httpx2.AsyncClient) -> None:
    service.api.streams = Room("streams", 2)
    async with asyncio.timeout(10):
        first = service.api.stream(LOCAL, service.api.hub.follow(None, None))
        never_begun = service.api.stream(LOCAL, service.api.hub.follow(None, None))
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
        unavailable(service, patch, "sessions")
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
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client, asyncio.timeout(2):
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

    remembered = Remembered(read, clock, 2 * SECOND)
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    assert [tenant.name for tenant in await remembered.get()] == ["old"]
    clock.advance(3 * SECOND)
    with pytest.raises(StoreUnavailable):
        await remembered.get()
    assert [tenant.name for tenant in await remembered.get()] == ["new"]


async def test_a_worker_that_registered_elsewhere_is_found_at_once(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await service.api.workers(None)
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    assert (await client.post(f"/v1/workers/{worker}/claim")).status_code == 200
