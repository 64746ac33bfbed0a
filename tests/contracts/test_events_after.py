"""Reading events after an offset: without a gap, or with an error."""

import asyncio

import pytest

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch
from tests.support.builders import a_run, some_runs
from tests.support.store_harness import Harness, ids

pytestmark = pytest.mark.api

READER = "api"


async def follow(harness: Harness, position: str, limit: int = 1_000) -> tuple[list[EventBatch], str]:
    await harness.let_transactions_end()
    return await harness.store.events_after(position, limit)


async def newest(harness: Harness) -> str:
    """Attach a reader and return the newest offset, as an API process does when it starts."""
    await harness.store.attach_reader(READER)
    await harness.let_transactions_end()
    batches, position = await harness.store.events_after(None, 10)
    assert batches == []
    return position


async def acknowledge_all(harness: Harness) -> None:
    batches = await harness.events(READER)
    if batches:
        await harness.store.acknowledge(READER, batches[-1].position)


async def test_events_after_an_offset_are_returned_in_order(harness: Harness) -> None:
    worker = await harness.worker()
    position = await newest(harness)
    run = a_run()
    await harness.submit(run)
    [held] = await harness.claim(worker)
    await harness.succeed(held)
    batches, after = await follow(harness, position)
    assert [(batch.kind, batch.runs, batch.tenant) for batch in batches] == [
        ("run.submitted", (run.id,), "default"),
        ("run.started", (run.id,), "default"),
        ("run.succeeded", (run.id,), "default"),
    ]
    assert batches == await harness.events(READER)
    assert await follow(harness, after) == ([], after)
    assert await follow(harness, position) == (batches, after), "reading changes nothing"


async def test_event_pages_of_any_size_have_no_gap_and_no_repetition(harness: Harness) -> None:
    position = await newest(harness)
    for _ in range(7):
        await harness.submit(a_run())
    everything, end = await follow(harness, position)
    assert len(everything) == 7
    for limit in range(1, 9):
        read: list[EventBatch] = []
        at = position
        while True:
            batches, at = await follow(harness, at, limit)
            assert len(batches) <= limit
            if not batches:
                break
            read += batches
        assert read == everything
        assert (await follow(harness, at))[0] == []
    await harness.submit(a_run())
    assert len((await follow(harness, end))[0]) == 1


async def test_the_newest_offset_is_after_every_past_event(harness: Harness) -> None:
    await newest(harness)
    await harness.submit(a_run())
    await harness.let_transactions_end()
    _, position = await harness.store.events_after(None, 10)
    assert (await follow(harness, position))[0] == []
    late = a_run()
    await harness.submit(late)
    [batch] = (await follow(harness, position))[0]
    assert batch.runs == (late.id,)


async def test_an_event_batch_belongs_to_one_tenant(harness: Harness) -> None:
    worker = await harness.worker()
    position = await newest(harness)
    mine, others = some_runs(2), [a_run(tenant="acme") for _ in range(3)]
    await harness.submit(mine[0], others[0], mine[1], others[1], others[2])
    batches, _ = await follow(harness, position)
    assert {batch.tenant: sorted(batch.runs) for batch in batches} == {
        "default": sorted(ids(mine)),
        "acme": sorted(ids(others)),
    }
    assert len(batches) == 2
    assert len({batch.at for batch in batches}) == 1
    held = await harness.claim(worker)
    await harness.succeed(*held)
    batches, _ = await follow(harness, position)
    assert sorted((batch.kind, batch.tenant, len(batch.runs)) for batch in batches[2:]) == [
        ("run.started", "acme", 3),
        ("run.started", "default", 2),
        ("run.succeeded", "acme", 3),
        ("run.succeeded", "default", 2),
    ]


async def test_reading_events_after_an_offset_attaches_no_reader(harness: Harness) -> None:
    _, position = await harness.store.events_after(None, 10)
    await harness.submit(a_run())
    assert (await follow(harness, position))[0] == [], "without a reader no event is written"


async def test_acknowledged_events_are_kept_for_readers_that_resume(harness: Harness) -> None:
    position = await newest(harness)
    run = a_run()
    await harness.submit(run)
    await acknowledge_all(harness)
    assert await harness.events(READER) == []
    await harness.advance(EVENTS_KEPT - 2 * MINUTE)
    await harness.store.tidy()
    [batch] = (await follow(harness, position))[0]
    assert batch.runs == (run.id,)


async def test_an_offset_that_is_too_old_is_not_found(harness: Harness) -> None:
    position = await newest(harness)
    await harness.submit(a_run())
    await acknowledge_all(harness)
    await harness.advance(EVENTS_KEPT + MINUTE)
    late = a_run()
    await harness.submit(late)
    await acknowledge_all(harness)
    await harness.store.tidy()
    with pytest.raises(NotFound):
        await follow(harness, position)
    _, fresh = await harness.store.events_after(None, 10)
    assert (await follow(harness, fresh))[0] == []


async def test_the_offset_of_a_reader_that_keeps_up_never_gets_too_old(harness: Harness) -> None:
    position = await newest(harness)
    received: list[RunId] = []
    runs = some_runs(8)
    for run in runs:
        await harness.submit(run)
        await acknowledge_all(harness)
        await harness.advance(EVENTS_KEPT - 2 * MINUTE)
        await harness.store.tidy()
        batches, position = await follow(harness, position)
        received += [run for batch in batches for run in batch.runs]
    assert received == ids(runs)


async def test_unacknowledged_events_are_kept_for_their_reader(harness: Harness) -> None:
    await newest(harness)
    run = a_run()
    await harness.submit(run)
    await harness.advance(EVENTS_KEPT + MINUTE)
    await harness.store.tidy()
    assert await harness.unread_events(READER) == [("run.submitted", (run.id,))]


@pytest.mark.parametrize("when", ["before the first reader", "before the last one left", "while there was none"])
async def test_a_time_without_readers_is_reported_as_a_gap(harness: Harness, when: str) -> None:
    positions: dict[str, str] = {}
    _, positions["before the first reader"] = await harness.store.events_after(None, 10)
    await harness.submit(a_run())
    positions["before the last one left"] = await newest(harness)
    await harness.submit(a_run())
    await harness.store.detach_reader(READER)
    _, positions["while there was none"] = await harness.store.events_after(None, 10)
    await harness.submit(a_run())
    await newest(harness)
    with pytest.raises(NotFound):
        await follow(harness, positions[when])


async def test_every_offset_before_the_last_deleted_event_is_reported_as_a_gap(harness: Harness) -> None:
    positions = [await newest(harness)]
    for _ in range(3):
        await harness.submit(a_run())
        positions.append((await follow(harness, positions[-1]))[1])
    await acknowledge_all(harness)
    await harness.advance(EVENTS_KEPT + MINUTE)
    await harness.store.tidy()
    for position in positions[:-1]:
        with pytest.raises(NotFound):
            await follow(harness, position)
    assert await follow(harness, positions[-1]) == ([], positions[-1])


async def test_no_gap_arises_while_another_reader_stays(harness: Harness) -> None:
    position = await newest(harness)
    await harness.store.attach_reader("other")
    runs = some_runs(2)
    await harness.submit(runs[0])
    await harness.store.detach_reader(READER)
    await harness.submit(runs[1])
    await harness.store.attach_reader(READER)
    batches, _ = await follow(harness, position)
    assert [batch.runs for batch in batches] == [(run.id,) for run in runs]


async def test_an_inactive_reader_is_removed(harness: Harness) -> None:
    await harness.store.attach_reader(READER, MINUTE)
    await harness.let_transactions_end()
    _, position = await harness.store.events_after(None, 10)
    for _ in range(3):
        await harness.advance(40 * SECOND)
        await harness.store.tidy()
        await harness.store.attach_reader(READER, MINUTE)
    await harness.submit(a_run())
    assert len((await follow(harness, position))[0]) == 1, "the reader was attached all the time"
    await harness.advance(2 * MINUTE)
    await harness.store.tidy()
    assert await harness.events(READER) == []
    await harness.submit(a_run())
    await harness.store.attach_reader("other")
    assert await harness.events("other") == []
    with pytest.raises(NotFound):
        await follow(harness, position)


async def test_only_the_inactive_reader_is_removed(harness: Harness) -> None:
    await harness.store.attach_reader("patient")
    await harness.store.attach_reader("long", HOUR)
    await harness.store.attach_reader("dead", SECOND)
    await harness.store.attach_reader("completed", SECOND)
    await harness.store.attach_reader("completed")
    await harness.submit(a_run())
    await harness.advance(MINUTE)
    await harness.store.tidy()
    assert [len(await harness.events(name)) for name in ("patient", "long", "dead", "completed")] == [1, 1, 0, 1]


async def test_an_inactive_reader_does_not_hold_back_pruning(harness: Harness) -> None:
    position = await newest(harness)
    await harness.store.attach_reader("dead", SECOND)
    await harness.submit(a_run())
    await acknowledge_all(harness)
    await harness.advance(EVENTS_KEPT + MINUTE)
    await harness.store.tidy()
    with pytest.raises(NotFound):
        await follow(harness, position)


@pytest.mark.parametrize("text", ["", "x", "-1", "1 OR 1=1", "9" * 30, "٣"])
async def test_an_invalid_offset_is_not_found(harness: Harness, text: str) -> None:
    await newest(harness)
    with pytest.raises(NotFound):
        await harness.store.events_after(text, 10)


async def test_a_follower_misses_no_event_of_concurrent_writers(harness: Harness) -> None:
    position = await newest(harness)
    received: list[RunId] = []
    writing = True

    async def read() -> None:
        nonlocal position
        while True:
            done = not writing
            if done:
                await harness.let_transactions_end()
            batches, position = await harness.store.events_after(position, 7)
            for batch in batches:
                received.extend(batch.runs)
            if done and not batches:
                return
            await asyncio.sleep(0)

    async def write(runs: list[NewRun]) -> None:
        for run in runs:
            await harness.submit(run)

    reader = asyncio.create_task(read())
    written = [some_runs(20) for _ in range(4)]
    await asyncio.gather(*map(write, written))
    writing = False
    await reader
    assert len(received) == len(set(received))
    assert sorted(received) == sorted(run for runs in written for run in ids(runs))
