"""Clock readings of nodes, stored with their sessions."""

from pathlib import Path

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.memory import MemoryStore
from mainspring.stores.sqlite import SqliteStore
from tests.support.store_harness import Harness


async def test_a_clock_reading_is_shown_with_its_session(harness: Harness) -> None:
    worker, scheduler = await harness.worker(), await harness.store.join("scheduler", DAY)
    [before] = await harness.store.sessions("worker")
    assert (before.clock, before.tzdata) == (None, "")
    reading = ClockReading(-HOUR, 3 * MILLISECOND)
    await harness.store.record_clock([worker, scheduler, SessionId(10**9)], reading, "2026f")
    [seen] = await harness.store.sessions("worker")
    assert (seen.id, seen.clock) == (worker, reading)
    [seen] = await harness.store.sessions("scheduler")
    assert (seen.id, seen.clock, seen.tzdata) == (scheduler, reading, "2026f")
    await harness.store.record_clock([worker], ClockReading(0, 1), "2027a")
    again = await harness.store.session(worker)
    assert again is not None
    assert (again.clock, again.tzdata) == (ClockReading(0, 1), "2027a")


async def test_schedulers_without_a_clock_guard_report_their_time_zone_database(tmp_path: Path) -> None:
    for store in (MemoryStore(SystemClock(), 4), SqliteStore(tmp_path / "store.db", SystemClock())):
        await store.open()
        try:
            await store.join("scheduler", DAY)
            [seen] = await store.sessions("scheduler")
            assert seen.tzdata == find_zone_database().version
        finally:
            await store.close()
