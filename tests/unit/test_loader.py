"""The loader of the scheduler's agenda: what it reads, and when it reads again."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.schedules.job import Job
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.log import get_logger
from mainspring.core.scheduler import loader as loader_module
from mainspring.core.scheduler.agenda import Agenda
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.core.scheduler.loader import HORIZON, Loader
from mainspring.core.scheduler.planner import Planner
from mainspring.core.scheduler.store_time import StoreTime
from tests.support.builders import a_stored_job
from tests.support.clock import START, ManualClock

#: The loader rests this long after a small load.
REST = 20 * MILLISECOND


class LoadedStore:
    """Returns the due times and jobs it was given."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.dues: list[Instant] = []
        self.jobs: list[Job] = []
        #: The shards and the end of each read of due times, and the shards of each read of jobs.
        self.reads: list[tuple[list[int], Instant]] = []
        self.job_reads: list[list[int]] = []
        self.clock_reads = 0

    async def now(self) -> Instant:
        self.clock_reads += 1
        return self.clock.now()

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        self.reads.append((list(shards), until))
        return [(0, due) for due in self.dues[:limit]]

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        self.job_reads.append(list(shards))
        return self.jobs[:limit]


class Desk:
    """A loader with everything it uses."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clock.advance(SECOND)
        self.store = LoadedStore(self.clock)
        self.agenda = Agenda()
        self.shards = [0, 1, 2]
        self.busy = False
        self.loads = 0
        store: Any = self.store
        log = get_logger("test")
        self.loader = Loader(
            store,
            self.agenda,
            Planner(self.clock, ClosedTimes(store, log), log),
            StoreTime(self.clock),
            self.clock,
            LocalWakeups(),
            shards=lambda: self.shards,
            busy=lambda: self.busy,
            loaded=self.count_load,
        )

    def count_load(self) -> None:
        self.loads += 1

    @property
    def now(self) -> Instant:
        return self.clock.now()


async def test_an_idle_loader_reads_the_horizon_once_a_second() -> None:
    desk = Desk()
    assert await desk.loader.tick() == SECOND
    assert desk.store.reads == [([0, 1, 2], desk.now + HORIZON)]
    assert (desk.loads, desk.store.clock_reads) == (1, 1)
    desk.clock.advance(SECOND)
    assert await desk.loader.tick() == SECOND
    assert (desk.loads, desk.store.clock_reads) == (2, 1)


@pytest.mark.parametrize(("shards", "busy", "wait"), [([], False, SECOND), ([], True, SECOND), ([0], True, REST)])
async def test_nothing_is_read_without_shards_or_while_the_scheduler_is_busy(
    shards: list[int], busy: bool, wait: Micros
) -> None:
    desk = Desk()
    desk.shards, desk.busy = shards, busy
    assert await desk.loader.tick() == wait
    assert (desk.store.reads, desk.store.clock_reads, desk.loads) == ([], 0, 0)


@pytest.mark.parametrize(
    ("dues", "jobs", "rest"), [(0, 0, REST), (60, 40, REST), (60, 41, REST + 200), (41, 60, REST + 200)]
)
async def test_the_loader_rests_for_longer_after_a_large_load(dues: int, jobs: int, rest: Micros) -> None:
    desk = Desk()
    desk.store.dues = [desk.now + SECOND] * dues
    desk.store.jobs = [a_stored_job(next_fire=desk.now + SECOND)] * jobs
    await desk.loader.tick()
    desk.clock.advance(rest - 1)
    assert await desk.loader.tick() == 1
    assert desk.loads == 1
    desk.clock.advance(1)
    await desk.loader.tick()
    assert desk.loads == 2


@pytest.mark.parametrize(
    ("dues", "reach", "wait"),
    [
        # A full page: the loader reads again when half of the time that the page covers has passed.
        (3, 200 * MILLISECOND, 100 * MILLISECOND),
        (3, 4 * SECOND, SECOND),
        (3, 30 * MILLISECOND, REST),
        (2, 200 * MILLISECOND, SECOND),
    ],
)
async def test_the_next_load_comes_before_the_last_page_is_used_up(
    monkeypatch: pytest.MonkeyPatch, dues: int, reach: Micros, wait: Micros
) -> None:
    monkeypatch.setattr(loader_module, "_MARKS", 3)
    desk = Desk()
    desk.store.dues = [desk.now + MILLISECOND] * (dues - 1) + [desk.now + reach]
    assert await desk.loader.tick() == wait


@pytest.mark.parametrize(
    ("jobs", "reads", "rows"),
    [
        (1, [[0, 1, 2]], 1),
        # A full page: half of the shards are read at a time, down to single ones.
        (2, [[0, 1, 2], [0], [1, 2], [1], [2]], 6),
    ],
)
async def test_a_full_page_of_jobs_is_read_again_by_halves_of_the_shards(
    monkeypatch: pytest.MonkeyPatch, jobs: int, reads: list[list[int]], rows: int
) -> None:
    monkeypatch.setattr(loader_module, "_JOBS", 2)
    monkeypatch.setattr(loader_module, "_REST_PER_ROW", REST)
    desk = Desk()
    desk.store.jobs = [a_stored_job(next_fire=desk.now + SECOND) for _ in range(jobs)]
    await desk.loader.tick()
    assert desk.store.job_reads == reads
    assert len(desk.agenda) == jobs
    # It rests for each job that it has read.
    assert await desk.loader.tick() == rows * REST


@pytest.mark.parametrize(("ahead", "planned"), [(-1, 0), (0, 0), (1, 1), (None, 0)])
async def test_only_ticks_ahead_of_now_are_planned(ahead: Micros | None, planned: int) -> None:
    desk = Desk()
    desk.store.jobs = [a_stored_job(next_fire=None if ahead is None else desk.now + ahead)]
    await desk.loader.tick()
    assert len(desk.agenda) == planned


async def test_a_job_is_planned_once_for_each_revision() -> None:
    desk = Desk()
    job = a_stored_job(next_fire=START + 10 * SECOND)
    for rev, planned in ((1, 1), (1, 1), (2, 2)):
        desk.store.jobs = [msgspec.structs.replace(job, rev=rev)]
        await desk.loader.tick()
        assert len(desk.agenda) == planned
        desk.clock.advance(SECOND)
