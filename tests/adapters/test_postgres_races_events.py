"""Races between transactions that write events and the readers of the outbox."""

import asyncpg
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_run
from tests.support.races import Races
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


async def submit_in(races: Races, transaction: asyncpg.Connection, run: NewRun) -> None:
    """Submit a run, and write its event, in a transaction of the application."""
    for request in await races.store.requests_for([run]):
        await transaction.fetchval(f"SELECT {request.function}($1)", request.argument)


async def read_events(races: Races, number: int) -> list[EventBatch]:
    """Wait for this many batches: a transaction of another test on the same server may hold them back for a moment."""

    async def read() -> list[EventBatch]:
        batches = await races.store.events("r", 10)
        return batches if len(batches) >= number else []

    return await eventually(read)


async def test_an_event_of_a_transaction_that_commits_late_is_not_skipped(races: Races) -> None:
    await races.store.attach_reader("r")
    early, late = await races.a_transaction(), await races.a_transaction()
    await early.execute("SELECT pg_current_xact_id()")
    await late.execute("SELECT pg_current_xact_id()")
    first, second = a_run(), a_run()
    await submit_in(races, late, first)
    await submit_in(races, early, second)
    await early.execute("COMMIT")
    read: list[RunId] = []

    async def are_all_read() -> bool:
        for batch in await races.store.events("r", 10):
            read.extend(batch.runs)
            await races.store.acknowledge("r", batch.position)
        return len(read) >= 2

    assert not await are_all_read()
    await late.execute("COMMIT")
    await eventually(are_all_read)
    assert sorted(read) == sorted([first.id, second.id])


async def test_events_keep_the_order_in_which_they_were_written(races: Races) -> None:
    """The older transaction writes its event after the younger one has committed, and may depend on it."""
    await races.store.attach_reader("r")
    first, second = a_run(), a_run()
    older = await races.a_transaction()
    await older.execute("SELECT pg_current_xact_id()")
    await races.store.submit([first])
    await submit_in(races, older, second)
    await older.execute("COMMIT")
    assert [batch.runs for batch in await read_events(races, 2)] == [(first.id,), (second.id,)]


async def test_a_new_reader_waits_for_submits_that_write_no_events(races: Races) -> None:
    run, last = a_run(), a_run()
    async with races.paused(lambda store: store.submit([run])):
        attaching = races.retry(lambda: races.store.attach_reader("r"))
        await races.blocked(attaching)
        assert not attaching.done()
    await attaching
    # This run has no event, and is visible instead.
    assert await races.store.runs([run.id]) != [None]
    await races.store.submit([last])
    assert [batch.runs for batch in await read_events(races, 1)] == [(last.id,)]


async def test_events_that_a_reader_has_not_acknowledged_are_not_pruned(races: Races) -> None:
    await races.store.attach_reader("r")
    for _ in range(3):
        await races.store.submit([a_run()])
    batches = await read_events(races, 3)
    await races.store.acknowledge("r", batches[0].position)
    await races.advance(EVENTS_KEPT + MINUTE)
    await races.store.prune(Retention(), 1_000)
    assert await races.watch.fetchval("SELECT count(*) FROM outbox") == 2
    await races.store.detach_reader("r")
    assert await races.watch.fetchval("SELECT count(*) FROM outbox") == 0
