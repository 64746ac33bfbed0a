"""Server-sent events: one reader of the store for all followers, no event lost, none repeated."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.ports.storage.outbox import EVENTS_KEPT
from mainspring.http.streams.hub import LINGER, Hub
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service
from tests.support.virtual import in_virtual_time
from tests.support.waiting import eventually


async def collect(stream: AsyncIterator[bytes], into: list[dict[str, Any]]) -> None:
    async for chunk in stream:
        for message in chunk.decode().split("\n\n"):
            _read(message, into)


def _read(message: str, into: list[dict[str, Any]]) -> None:
    lines = dict(line.split(": ", 1) for line in message.strip().split("\n") if ": " in line)
    if lines.get("event", "").startswith("run."):
        data = msgspec.json.decode(lines["data"])
        into.append({"kind": lines["event"], "runs": data["runIds"], "id": lines.get("id"), "tenant": data["tenant"]})


def has_more_than(events: list[dict[str, Any]], count: int) -> bool:
    return len(events) > count


async def events_are_visible(service: Service, after: str | None) -> bool:
    """PostgreSQL shows an event only once every older transaction on the server has ended."""
    return bool((await service.store.events_after(after, 10))[0])


async def test_a_follower_receives_the_events_of_its_tenant_only(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    of_a: list[dict[str, Any]] = []
    of_all: list[dict[str, Any]] = []
    tasks = [
        asyncio.create_task(collect(hub.follow("a", None), of_a)),
        asyncio.create_task(collect(hub.follow(None, None), of_all)),
    ]
    await eventually(lambda: hub.followers == 2)
    async with service.client() as client:
        for name in ("a", "b"):
            await client.put("/v1/tenants", json={"name": name})
        mine = (await client.post("/v1/jobs", json={"task": "t", "tenant": "a"})).json()["jobId"]
        theirs = (await client.post("/v1/jobs", json={"task": "t", "tenant": "b"})).json()["jobId"]
    await eventually(lambda: sum(len(event["runs"]) for event in of_all) == 2)
    assert [event["runs"] for event in of_a] == [[mine]]
    assert {run for event in of_all for run in event["runs"]} == {mine, theirs}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert hub.followers == 0
    await hub.stop()


async def test_resuming_has_no_gap_and_no_repeat(service: Service) -> None:
    """A follower that disconnects repeatedly while jobs are submitted receives every event exactly once."""
    hub: Hub = service.api.hub
    await hub.start()
    made: list[str] = []
    seen: list[str] = []
    last: str | None = None
    anchor: list[dict[str, Any]] = []
    other = asyncio.create_task(collect(hub.follow(None, None), anchor))
    first: list[dict[str, Any]] = []
    task = asyncio.create_task(collect(hub.follow(None, None), first))
    await eventually(lambda: hub.followers == 2)

    async with service.client() as client:
        for _ in range(6):
            # The hub reads at least once before and once after it has delivered something.
            for batch in range(2):
                made += [(await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"] for _ in range(3)]
                await eventually(partial(has_more_than, first, batch))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Only events up to the last id are certain to be complete.
            upto = max((number for number, event in enumerate(first, 1) if event["id"]), default=0)
            seen += [run for event in first[:upto] for run in event["runs"]]
            last = next((event["id"] for event in reversed(first) if event["id"]), last)
            made.append((await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"])
            first = []
            task = asyncio.create_task(collect(hub.follow(None, last), first))
        await eventually(lambda: len(seen) + sum(len(event["runs"]) for event in first) >= len(made))
    seen += [run for event in first for run in event["runs"]]
    assert sorted(seen) == sorted(made)
    for running in (task, other):
        running.cancel()
    await asyncio.gather(task, other, return_exceptions=True)
    await hub.stop()


@in_virtual_time
async def test_the_hub_does_not_read_the_store_without_followers() -> None:
    service = Service(auth=False, clock=VirtualClock())
    hub: Hub = service.api.hub
    await hub.start()
    reads = 0
    real = service.store.events_after

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*arguments)

    service.store.events_after = counted  # type: ignore[assignment,method-assign]
    await service.clock.sleep(HOUR)
    assert reads == 0
    stream = hub.follow(None, None)
    await anext(stream)
    await service.clock.sleep(HOUR)
    assert reads > 0
    await hub.stop()


async def test_resuming_from_a_position_that_is_too_old_reports_a_gap(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, "00000000000000000000")
    message = await anext(stream)
    assert b"event: gap" in message
    # The stream continues from the id of this message.
    assert message.startswith(b"id: ")
    await stream.aclose()  # type: ignore[attr-defined]
    await hub.stop()


async def test_a_lone_follower_that_reconnects_after_minutes_misses_nothing(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, None)
    hello = await anext(stream)
    last = hello.decode().split("\n")[0].removeprefix("id: ")
    await stream.aclose()  # type: ignore[attr-defined]
    async with service.client() as client:
        job = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
    await eventually(lambda: events_are_visible(service, last))
    # For the hub, nine minutes have passed.
    assert LINGER == EVENTS_KEPT
    hub._left_at -= 9 * MINUTE
    before = hub._position

    def has_moved() -> bool:
        hub._wanted.set()
        return hub._position != before

    await eventually(has_moved)
    # A new follower begins at the newest event, not where the first one stopped.
    newcomer = hub.follow(None, None)
    assert b"event: hello" in await anext(newcomer)
    resumed = hub.follow(None, last)
    assert job.encode() in await anext(resumed)
    await hub.stop()
    received = [message async for message in newcomer]
    assert not any(job.encode() in message for message in received)
    # Another process can continue the stream after this one has stopped.
    other = Hub(service.store, service.clock, "other")
    assert job.encode() in await anext(other.follow(None, last))


async def test_events_do_not_pile_up_without_followers(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, None)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    before = hub._position
    async with service.client() as client:
        await client.post("/v1/jobs", json={"task": "t"})
    await eventually(lambda: events_are_visible(service, before))

    async def is_acknowledged() -> bool:
        hub._wanted.set()
        return not await service.store.events(hub._reader, 10)

    await eventually(is_acknowledged)
    await hub.stop()


@in_virtual_time
async def test_a_follower_without_events_still_receives_the_position() -> None:
    service = Service(auth=False, clock=VirtualClock())
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow("quiet", None)
    hello = await anext(stream)
    async with service.client() as client:
        await client.put("/v1/tenants", json={"name": "loud"})
        await client.post("/v1/jobs", json={"task": "t", "tenant": "loud"})
    while b"event: position" not in (message := await anext(stream)):
        assert b"run." not in message
    moved = message[message.index(b"id: ") :].split(b"\n")[0]
    assert moved > hello.split(b"\n")[0]
    await hub.stop()
