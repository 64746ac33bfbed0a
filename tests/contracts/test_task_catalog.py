"""The task catalog: the newest registration of a task is kept, and equal ones change nothing."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.tasks.task_entry import TaskEntry
from tests.support.store_harness import Harness

ENCODE = TaskEntry(
    name="encode",
    description="Encode a video.",
    queue="video",
    priority=2,
    policy=RunPolicy(
        retry=RetryPolicy(max_retries=7, backoff="fixed", first_delay=SECOND),
        timeout=5 * MINUTE,
        limits=(Limit(key="encode:{payload.user}", most=3),),
        breaker=Breaker(),
        weight=4,
        requires=("gpu=a100",),
    ),
    tags=("media",),
    arguments={"type": "object", "properties": {"user": {"type": "integer", "default": 1}, "ü": {}}},
)


async def test_a_new_store_has_an_empty_catalog(harness: Harness) -> None:
    assert await harness.store.list_tasks() == []


async def test_a_registered_task_reads_back_as_declared(harness: Harness) -> None:
    assert await harness.store.register_tasks([ENCODE, TaskEntry(name="ping")], "w1") == 2
    encode, ping = await harness.store.list_tasks()
    assert (encode.entry, ping.entry) == (ENCODE, TaskEntry(name="ping"))
    assert (encode.version, encode.registered_by, encode.registered_at) == (1, "w1", await harness.now())


async def test_an_equal_registration_changes_nothing(harness: Harness) -> None:
    await harness.store.register_tasks([ENCODE], "w1")
    before = await harness.store.list_tasks()
    await harness.advance(MINUTE)
    assert await harness.store.register_tasks([ENCODE], "w2") == 0
    assert await harness.store.list_tasks() == before


async def test_the_newest_registration_wins(harness: Harness) -> None:
    store = harness.store
    await store.register_tasks([ENCODE, TaskEntry(name="ping")], "w1")
    [_, ping] = await store.list_tasks()
    await harness.advance(MINUTE)
    slower = msgspec.structs.replace(ENCODE, priority=9)
    assert await store.register_tasks([TaskEntry(name="ping"), slower], "w2") == 1
    kept = {known.entry.name: known for known in await store.list_tasks()}
    assert kept["ping"] == ping
    assert kept["encode"].entry == slower
    assert (kept["encode"].version, kept["encode"].registered_by) == (2, "w2")
    assert kept["encode"].registered_at == await harness.now()


async def test_a_reader_asks_for_what_is_new(harness: Harness) -> None:
    store = harness.store
    await store.register_tasks([ENCODE, TaskEntry(name="ping")], "w1")
    newest = max(known.rev for known in await store.list_tasks())
    assert await store.list_tasks(newest) == []
    await store.register_tasks([msgspec.structs.replace(ENCODE, queue="other")], "w1")
    [changed] = await store.list_tasks(newest)
    assert (changed.entry.name, changed.entry.queue) == ("encode", "other")


async def test_concurrent_registrations_have_distinct_revisions(harness: Harness) -> None:
    entries = [TaskEntry(name=f"t{number}") for number in range(8)]
    await asyncio.gather(*(harness.store.register_tasks([entry, TaskEntry(name="same")], "w") for entry in entries))
    known = await harness.store.list_tasks()
    assert {task.entry.name for task in known} == {"same", *(entry.name for entry in entries)}
    assert len({task.rev for task in known}) == len(known)
    assert next(task.version for task in known if task.entry.name == "same") == 1


@pytest.mark.parametrize(
    "entry",
    [
        TaskEntry(name=""),
        TaskEntry(name="t", queue="a/b"),
        TaskEntry(name="t", priority=11),
        TaskEntry(name="t", preset="nothing"),
        TaskEntry(name="t", description="x" * 3_000),
    ],
)
async def test_an_invalid_entry_is_rejected_and_none_is_kept(harness: Harness, entry: TaskEntry) -> None:
    with pytest.raises(Invalid):
        await harness.store.register_tasks([TaskEntry(name="good"), entry], "w")
    assert await harness.store.list_tasks() == []
