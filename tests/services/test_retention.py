"""Retention on the store in memory, in virtual time."""

from random import Random

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.retention import RetentionKeeper
from mainspring.domain.instant import DAY, MINUTE, SECOND
from mainspring.ports.store import Retention
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import some_runs


def test_what_ended_is_forgotten_when_its_time_is_over_however_much_it_is() -> None:
    async def scenario() -> None:
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

    run_virtual(scenario())


def test_it_prunes_at_its_start_and_then_every_minute() -> None:
    calls = []

    class Counting(MemoryStore):
        async def prune(self, retention: Retention, limit: int) -> int:
            calls.append(limit)
            return 0

    async def scenario() -> None:
        clock = VirtualClock()
        async with RetentionKeeper(Counting(clock, 4), LocalWakeups(), clock, Random(0), Retention()):
            await clock.sleep(SECOND)
            assert len(calls) == 1
            await clock.sleep(10 * MINUTE)
            assert 8 <= len(calls) <= 14

    run_virtual(scenario())
