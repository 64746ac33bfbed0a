"""Real schedulers, one with a clock that is set an hour ahead and back: no tick is early, doubled or missing."""

from pathlib import Path

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.stores.postgres import PostgresStore
from tests.support.builders import a_job
from tests.support.processes import START_SECONDS, Processes
from tests.support.servers import not_here
from tests.support.waiting import eventually
from tools.services import ServiceUnavailable, ensure

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


@pytest.fixture(scope="module")
def library() -> str:
    try:
        return ensure("faketime")
    except ServiceUnavailable as error:
        not_here(f"faketime is not available: {error}")


async def until_owned_by(store: PostgresStore, names: set[str], processes: Processes) -> None:
    """Wait until these schedulers, and no others, own shards."""

    async def owned() -> bool:
        return {item.name for item in await store.sessions("scheduler") if item.shards} == names

    await eventually(owned, processes.logs, deadline=START_SECONDS)


async def test_a_scheduler_with_a_wrong_clock_fires_no_tick_early_twice_or_never(
    postgres_database: str, library: str, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    every_second = CronSchedule("* * * * * *")
    spec = JobSpec(name="second", task="noop", schedule=every_second, catch_up=CatchUp(grace=HOUR))
    [put] = await store.put_jobs([a_job(spec)])
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        processes.start("scheduler", "--name", "right")
        wrong = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            # As on a real machine, only the wall clock is set.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        processes.start("scheduler", "--name", "moved", **wrong)
        await until_owned_by(store, {"right", "moved"}, processes)
        began = await store.now()
        for ahead in ("+3600", "-3600"):
            clock.write_text(ahead)
            await until_owned_by(store, {"right"}, processes)
            clock.write_text("+0")
            await until_owned_by(store, {"right", "moved"}, processes)
        last = await store.now()

        async def ticked() -> bool:
            return bool(await store.ledger(put.job.id, last, last + 2 * HOUR, 1))

        await eventually(ticked, processes.logs)
    ended = await store.now()
    ticks = await store.ledger(put.job.id, began - MINUTE, ended + 2 * HOUR, 10_000)
    await store.close()
    times = [entry.scheduled_at for entry in ticks]
    # One for each second, and none ahead of the store's clock.
    assert times == list(range(times[0], times[-1] + SECOND, SECOND))
    assert times[-1] <= ended + SECOND
    assert len(times) >= (last - began) // SECOND
