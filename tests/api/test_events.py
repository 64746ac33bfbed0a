"""Server-sent events: one reader for all, nothing lost, nothing twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mainspring.api.hub import LINGER, Hub
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.ports.store import EVENTS_KEPT
from tests.api.conftest import Service


async def collect(stream: AsyncIterator[bytes], into: list[dict[str, Any]]) -> None:
    async for chunk in stream:
        for message in chunk.decode().split("\n\n"):
            _read(message, into)


def _read(message: str, into: list[dict[str, Any]]) -> None:
    lines = dict(line.split(": ", 1) for line in message.strip().split("\n") if ": " in line)
    if lines.get("event", "").startswith("run."):
        data = msgspec.json.decode(lines["data"])
        into.append({"kind": lines["event"], "runs": data["runIds"], "id": lines.get("id"), "tenant": data["tenant"]})


async def until(ready: Any) -> None:
    async with asyncio.timeout(5):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_followers_see_their_tenants_changes(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    of_a: list[dict[str, Any]] = []
    of_all: list[dict[str, Any]] = []
    tasks = [
        asyncio.create_task(collect(hub.follow("a", None), of_a)),
        asyncio.create_task(collect(hub.follow(None, None), of_all)),
    ]
    await until(lambda: hub.followers == 2)
    async with service.client() as client:
        mine = (await client.post("/v1/jobs", json={"task": "t", "tenant": "a"})).json()["jobId"]
        theirs = (await client.post("/v1/jobs", json={"task": "t", "tenant": "b"})).json()["jobId"]
    await until(lambda: sum(len(event["runs"]) for event in of_all) == 2)
    assert [event["runs"] for event in of_a] == [[mine]]
    assert {run for event in of_all for run in event["runs"]} == {mine, theirs}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert hub.followers == 0
    await hub.stop()


async def test_resuming_has_no_gap_and_no_repeat(service: Service) -> None:
    """A follower breaks off again and again while work is submitted; what it saw is what happened, each once."""
    hub: Hub = service.api.hub
    await hub.start()
    made: list[str] = []
    seen: list[str] = []
    last: str | None = None
    anchor: list[dict[str, Any]] = []
    other = asyncio.create_task(collect(hub.follow(None, None), anchor))
    first: list[dict[str, Any]] = []
    task = asyncio.create_task(collect(hub.follow(None, None), first))
    await until(lambda: hub.followers == 2)

    async with service.client() as client:
        for _ in range(6):
            for _ in range(5):
                made.append((await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"])
                await asyncio.sleep(0.01)
            await until(lambda events=first: bool(events))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            # Only what came before the last id is certain to have been seen whole.
            upto = max((number for number, event in enumerate(first, 1) if event["id"]), default=0)
            seen += [run for event in first[:upto] for run in event["runs"]]
            last = next((event["id"] for event in reversed(first) if event["id"]), last)
            made.append((await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"])
            first = []
            task = asyncio.create_task(collect(hub.follow(None, last), first))
        await until(lambda: len(seen) + sum(len(event["runs"]) for event in first) >= len(made))
    seen += [run for event in first for run in event["runs"]]
    assert sorted(seen) == sorted(made)
    for running in (task, other):
        running.cancel()
    await asyncio.gather(task, other, return_exceptions=True)
    await hub.stop()


async def test_without_followers_nothing_is_asked(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    asked = 0
    real = service.store.events_after

    async def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return await real(*arguments)

    service.store.events_after = counted  # type: ignore[assignment,method-assign]
    await asyncio.sleep(0.3)
    assert asked == 0
    await hub.stop()


async def test_a_position_that_is_too_old_says_so(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, "00000000000000000000")
    message = await anext(stream)
    assert b"event: gap" in message
    # It goes on from there.
    assert message.startswith(b"id: ")
    await stream.aclose()  # type: ignore[attr-defined]
    await hub.stop()


async def test_a_lone_follower_that_was_away_for_minutes_missed_nothing(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, None)
    hello = await anext(stream)
    last = hello.decode().split("\n")[0].removeprefix("id: ")
    await stream.aclose()  # type: ignore[attr-defined]
    async with service.client() as client:
        job = (await client.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
    # Nine minutes, for the hub.
    assert LINGER == EVENTS_KEPT
    hub._left_at -= 9 * MINUTE
    hub._wanted.set()
    await asyncio.sleep(0.1)
    # Another one begins now, and not where the first one stopped.
    newcomer = hub.follow(None, None)
    assert b"event: hello" in await anext(newcomer)
    resumed = hub.follow(None, last)
    assert job.encode() in await anext(resumed)
    await hub.stop()
    async with asyncio.timeout(5):
        told = [message async for message in newcomer]
    assert not any(job.encode() in message for message in told)
    # The process is gone; another one goes on.
    other = Hub(service.store, service.clock, "other")
    assert job.encode() in await anext(other.follow(None, last))


async def test_with_nobody_following_nothing_piles_up(service: Service) -> None:
    hub: Hub = service.api.hub
    await hub.start()
    stream = hub.follow(None, None)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    before = hub._position
    async with service.client() as client:
        await client.post("/v1/jobs", json={"task": "t"})
    async with asyncio.timeout(5):
        # Not what waits for the hub: it may have let go of it already. And what others have open, on this server, is
        # waited for.
        while not (await service.store.events_after(before, 10))[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while await service.store.events(hub._reader, 10):
            hub._wanted.set()
            await asyncio.sleep(0.02)
    await hub.stop()


async def test_who_hears_nothing_is_told_where_it_is(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Hub = service.api.hub
    monkeypatch.setattr("mainspring.api.hub._QUIET", SECOND // 10)
    monkeypatch.setattr("mainspring.api.hub._POSITION_EVERY", SECOND // 2)
    await hub.start()
    stream = hub.follow("quiet", None)
    hello = await anext(stream)
    async with service.client() as client, asyncio.timeout(10):
        await client.post("/v1/jobs", json={"task": "t", "tenant": "loud"})
        while b"event: position" not in (message := await anext(stream)):
            assert b"run." not in message
    moved = message[message.index(b"id: ") :].split(b"\n")[0]
    assert moved > hello.split(b"\n")[0]
    await hub.stop()
