"""Retention on the memory store, in virtual time."""

from random import Random

from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.features.archive.retention import RetentionKeeper
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import some_runs
from tests.support.virtual import in_virtual_time


@in_virtual_time
async def test_all_runs_past_their_retention_are_pruned_however_many() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock, 4)
    runs = some_runs(12_000)
    await store.submit(runs)
    await store.cancel([run.id for run in runs])
    async with RetentionKeeper(store, LocalWakeups(), clock, Random(0), Retention(unsuccessful=DAY)):
        await clock.sleep(DAY - MINUTE)
        assert None not in await store.runs([run.id for run in runs])
        await clock.sleep(3 * MINUTE)
        assert set(await store.runs([run.id for run in runs])) == {None}


@in_virtual_time
async def test_the_retention_keeper_prunes_at_its_start_and_then_every_minute() -> None:
    calls = []

    class Counting(MemoryStore):
        async def prune(self, retention: Retention, limit: int) -> int:
            calls.append(limit)
            return 0

    clock = VirtualClock()
    async with RetentionKeeper(Counting(clock, 4), LocalWakeups(), clock, Random(0), Retention()):
        await clock.sleep(SECOND)
        assert len(calls) == 1
        await clock.sleep(10 * MINUTE)
        assert 8 <= len(calls) <= 14
