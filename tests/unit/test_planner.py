"""The planner of ticks: its limits, and which fires that were planned ahead are still valid."""

from collections.abc import Collection

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.schedules import plan
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec, Freeze, WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.core.runtime.log import get_logger
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.core.scheduler.planner import Planner, still_good
from tests.support.builders import a_fire, a_spec, a_stored_job, every
from tests.support.clock import START, ManualClock

_log = get_logger("test")


class CalendarStore:
    """The calendars of the tenant ``default``. Counts how often they are read."""

    def __init__(self, rev: int = 1, *calendars: Calendar) -> None:
        self.rev = rev
        self.calendars = list(calendars)
        self.reads = 0

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        self.reads += 1
        return [TenantCalendars(tenant, self.rev, self.calendars) for tenant in tenants if tenant == "default"]


class CountingClock(ManualClock):
    """Records the sleeps, and returns from them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[Micros] = []

    async def sleep(self, duration: Micros) -> None:
        self.sleeps.append(duration)


def a_planner(store: CalendarStore | None = None, clock: ManualClock | None = None) -> Planner:
    return Planner(clock or ManualClock(), ClosedTimes(store or CalendarStore(), _log), _log)


def a_due_job(next_fire: Instant, *, calendar_rev: int = 0, **spec: object) -> Job:
    """A job of every minute."""
    fields = msgspec.structs.replace(a_spec(schedule=every(MINUTE, start=START)), **spec)
    return msgspec.structs.replace(a_stored_job(fields, next_fire=next_fire), calendar_rev=calendar_rev)


def a_calendar(name: str, start: Instant, end: Instant, timezone: str = "UTC") -> Calendar:
    """A calendar with one closed period."""
    spec = CalendarSpec(timezone=timezone, freezes=(Freeze(start=start, end=end),))
    return Calendar(tenant="default", name=name, version=1, spec=spec)


@pytest.mark.parametrize(("limit", "planned"), [(5, 2), (6, 2), (7, 3), (1, 1)])
async def test_jobs_are_planned_until_the_limit_of_ticks_is_reached(limit: int, planned: int) -> None:
    jobs = [a_due_job(START) for _ in range(4)]
    fires = await a_planner().plan_now(jobs, START + 2 * MINUTE, limit)
    assert [fire.job for fire in fires] == jobs[:planned]
    assert {len(fire.ticks) for fire in fires} == {3}


async def test_every_job_is_planned_ahead_although_one_of_them_has_many_ticks() -> None:
    # The ticks of the closed period happen before it begins, all at once.
    store = CalendarStore(1, a_calendar("freeze", START + MINUTE, START + 20 * MINUTE))
    early = a_due_job(START + MINUTE - SECOND, calendar_rev=1, calendars=("freeze",), when_closed=WhenClosed.BEFORE)
    early = msgspec.structs.replace(early, next_tick=START + MINUTE)
    jobs = [early, a_due_job(START + MINUTE), a_due_job(START + 2 * MINUTE)]
    fires = await a_planner(store).plan_ahead(jobs)
    assert [len(fire.ticks) for fire in fires] == [19, 1, 1]


@pytest.mark.parametrize(
    ("late", "ticks", "next_fire"),
    [(-1, 1, START + MINUTE), (0, 1, START + MINUTE), (MINUTE, 2, START + 2 * MINUTE)],
)
async def test_a_job_is_planned_for_now_or_for_its_next_tick(late: Micros, ticks: int, next_fire: Instant) -> None:
    (fire,) = await a_planner().plan_now([a_due_job(START)], START + late, 100)
    assert (len(fire.ticks), fire.next_fire) == (ticks, next_fire)


async def test_a_job_without_a_next_tick_is_not_planned() -> None:
    finished = msgspec.structs.replace(a_due_job(START), next_fire=None)
    assert await a_planner().plan_ahead([finished]) == []


async def test_a_job_that_cannot_be_planned_is_tried_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail(job: Job, now: Instant, closed_periods: ClosedPeriods | None) -> Fire:
        tried.append(job.rev)
        raise RuntimeError("cannot be planned")

    monkeypatch.setattr("mainspring.core.scheduler.planner.plan_job", fail)
    planner, job = a_planner(), a_due_job(START)
    for rev in (1, 1, 2):
        assert await planner.plan_ahead([msgspec.structs.replace(job, rev=rev)]) == []
    assert tried == [1, 2]


@pytest.mark.parametrize(("each", "yields"), [(2 * MILLISECOND, 2), (4 * MILLISECOND, 3), (4 * MILLISECOND + 1, 6)])
async def test_planning_yields_to_the_event_loop_after_more_than_four_milliseconds(
    monkeypatch: pytest.MonkeyPatch, each: Micros, yields: int
) -> None:
    clock = CountingClock()
    clock.advance(SECOND)

    def plan_job(job: Job, now: Instant, closed_periods: ClosedPeriods | None) -> Fire:
        clock.advance(each)
        return plan.plan_job(job, now, closed_periods)

    monkeypatch.setattr("mainspring.core.scheduler.planner.plan_job", plan_job)
    await a_planner(clock=clock).plan_ahead([a_due_job(START) for _ in range(6)])
    assert clock.sleeps == [0] * yields


@pytest.mark.parametrize(
    ("next_fire", "late", "valid"),
    [
        # The next tick is due.
        (MINUTE, MINUTE - 1, True),
        (MINUTE, MINUTE, False),
        # The tick is later than the grace period of two minutes.
        (None, 2 * MINUTE, True),
        (None, 2 * MINUTE + 1, False),
        (5 * MINUTE, 2 * MINUTE, True),
        (5 * MINUTE, 2 * MINUTE + 1, False),
    ],
)
def test_a_fire_planned_ahead_is_valid_until_it_is_late_or_the_next_tick_is_due(
    next_fire: Micros | None, late: Micros, valid: bool
) -> None:
    job = a_due_job(START, catch_up=CatchUp(grace=2 * MINUTE))
    fire = a_fire(job, next_fire=None if next_fire is None else START + next_fire)
    assert still_good(fire, START + late) is valid


# Calendars


async def test_calendars_are_read_again_only_for_a_newer_revision() -> None:
    store = CalendarStore(1, a_calendar("freeze", START, START + MINUTE))
    closed = ClosedTimes(store, _log)

    async def read(rev: int) -> tuple[int, int]:
        """How many jobs have closed periods, and how often calendars were read until now."""
        found = await closed.of([a_due_job(START, calendar_rev=rev, calendars=("freeze",))])
        return len(found), store.reads

    assert await read(0) == (0, 0)
    assert await read(1) == (1, 1)
    assert await read(1) == (1, 1)
    store.rev, store.calendars = 2, []
    assert await read(2) == (0, 2)
    assert await read(1) == (0, 2)


async def test_a_calendar_with_an_unknown_time_zone_does_not_affect_the_others() -> None:
    store = CalendarStore(
        1, a_calendar("lost", START, START + MINUTE, "Nowhere/Town"), a_calendar("freeze", START, START + MINUTE)
    )
    both = a_due_job(START, calendar_rev=1, calendars=("lost", "freeze"))
    lost = a_due_job(START, calendar_rev=1, calendars=("lost",))
    other = msgspec.structs.replace(a_due_job(START, calendar_rev=1, calendars=("freeze",)), tenant="acme")
    found = await ClosedTimes(store, _log).of([both, lost, other])
    assert found.keys() == {both.id}
