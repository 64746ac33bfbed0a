"""Real schedulers, one of them with a clock that is set an hour forth and back: no tick early, twice or missing."""

import asyncio
import time
from pathlib import Path

import pytest

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.domain.instant import HOUR, MINUTE, SECOND
from mainspring.domain.job import JobSpec
from mainspring.domain.schedule import CronSchedule
from tests.support.builders import a_job
from tests.support.processes import Processes
from tests.support.servers import not_here
from tools.services import ServiceUnavailable, ensure

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]

WITHIN = 120.0


@pytest.fixture(scope="module")
def library() -> str:
    try:
        return ensure("faketime")
    except ServiceUnavailable as error:
        not_here(f"faketime is not available: {error}")


async def wait_for(store: PostgresStore, names: set[str], processes: Processes) -> None:
    """Until these schedulers, and no others, own shards."""
    until = time.monotonic() + WITHIN
    while {item.name for item in await store.sessions("scheduler") if item.shards} != names:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.05)


async def test_a_clock_that_is_set(
    postgres_database: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    spec = JobSpec(name="second", task="noop", schedule=CronSchedule("* * * * * *"))
    [put] = await store.put_jobs([a_job(spec)])
    (logs := tmp_path / "logs").mkdir()
    async with Processes(postgres_database, logs) as processes:
        processes.start("scheduler", "--name", "right")
        with monkeypatch.context() as patch:
            # The monotonic clock is not set with the other one, as on a real machine.
            patch.setenv("LD_PRELOAD", library)
            patch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
            patch.setenv("FAKETIME_NO_CACHE", "1")
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            processes.start("scheduler", "--name", "moved")
        await wait_for(store, {"right", "moved"}, processes)
        began = await store.now()
        for ahead in ("+3600", "-3600"):
            clock.write_text(ahead)
            await wait_for(store, {"right"}, processes)
            clock.write_text("+0")
            await wait_for(store, {"right", "moved"}, processes)
        ended = await store.now()
    ticks = await store.ledger(put.job.id, began - MINUTE, ended + 2 * HOUR, 10_000)
    await store.close()
    times = [entry.scheduled_at for entry in ticks]
    # One for each second, none of them ahead of the store's clock.
    assert times == list(range(times[0], times[-1] + SECOND, SECOND))
    assert times[-1] <= ended + SECOND
    assert len(times) >= (ended - began) // SECOND
