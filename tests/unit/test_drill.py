"""How a drill judges ticks by the ledger and the runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState, LedgerEntry
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.features.drill.model import (
    LATE,
    LONGEST_WATCH,
    ObservedJob,
    check_allowed,
    check_watch,
    judge_ticks,
    list_expected_ticks,
)
from tests.support.builders import a_spec, an_id
from tests.support.views import a_run_view

NOW: Instant = 1_800_000_000 * SECOND
JOB = JobId(an_id())


def an_entry(tick: Instant, last: Instant | None = None, target: str = "") -> LedgerEntry:
    return LedgerEntry(
        job_id=JOB,
        scheduled_at=tick,
        decision="run",
        reason="",
        run_id=RunId("r"),
        job_version=1,
        epoch=1,
        last_at=last,
        target=target,
    )


def a_view(tick: Instant, late: Micros = 0, name: str = "") -> RunView:
    return a_run_view(id=RunId(name or f"run of {tick}"), due=tick, created_at=tick + late, scheduled_at=tick)


fates = st.lists(
    st.one_of(st.just("missed"), st.just("doubled"), st.just("twin"), st.integers(0, 5_000)),
    max_size=30,
)


@given(fates)
def test_every_tick_is_counted_as_on_time_late_missed_or_doubled(fates: list[str | int]) -> None:
    ticks = [NOW + number * SECOND for number in range(len(fates))]
    ledger, runs = [], []
    for tick, fate in zip(ticks, fates, strict=True):
        if fate == "missed":
            continue
        ledger += [an_entry(tick)] * (2 if fate == "doubled" else 1)
        runs.append(a_view(tick, fate * MILLISECOND if isinstance(fate, int) else 0))
        if fate == "twin":
            runs.append(a_view(tick, name=f"twin of {tick}"))
    found = judge_ticks([ObservedJob(ticks=tuple(ticks), ledger=tuple(ledger), runs=tuple(runs))])
    lateness = [fate * MILLISECOND for fate in fates if isinstance(fate, int)]
    assert found.ticks == len(fates)
    assert found.missed == fates.count("missed")
    assert found.doubled == fates.count("doubled") + fates.count("twin")
    assert found.late == sum(late > LATE for late in lateness)
    assert found.latest == max(lateness, default=0)
    assert found.passed == (not found.missed and not found.doubled)


def test_one_ledger_row_may_cover_several_ticks() -> None:
    ticks = tuple(NOW + number * SECOND for number in range(5))
    assert judge_ticks([ObservedJob(ticks=ticks, ledger=(an_entry(ticks[0], last=ticks[3]),))]).missed == 1


def test_ticks_outside_the_drill_are_ignored() -> None:
    other = NOW + MINUTE
    seen = ObservedJob(ticks=(NOW,), ledger=(an_entry(NOW), an_entry(other), an_entry(other)), runs=(a_view(NOW),))
    assert judge_ticks([seen]).doubled == 0


def in_data_centers(*rows: str, runs: int) -> ObservedJob:
    """A tick of a job that runs in the data centers us and eu."""
    return ObservedJob(
        ticks=(NOW,),
        targets=("eu", "us"),
        ledger=tuple(an_entry(NOW, target=target) for target in rows),
        runs=tuple(a_view(NOW, name=f"run {number}") for number in range(runs)),
    )


def test_a_tick_in_each_of_two_data_centers_is_not_doubled() -> None:
    assert judge_ticks([in_data_centers("us", "eu", runs=2)]).passed


def test_a_tick_that_lacks_one_of_its_data_centers_is_missed() -> None:
    assert judge_ticks([in_data_centers("us", runs=1)]).missed == 1


@pytest.mark.parametrize("seen", [in_data_centers("us", "eu", "eu", runs=2), in_data_centers("us", "eu", runs=3)])
def test_a_tick_is_doubled_by_a_second_row_or_run_in_one_data_center(seen: ObservedJob) -> None:
    assert judge_ticks([seen]).doubled == 1


def a_job(schedule: CronSchedule | Interval) -> Job:
    spec = a_spec(name="watched", schedule=schedule)
    return Job(id=JOB, tenant="default", spec=spec, version=1, state=JobState.SCHEDULED, next_fire=NOW, rev=1)


def test_the_upcoming_ticks_are_those_of_the_schedule() -> None:
    job = a_job(CronSchedule(expression="* * * * * *"))
    assert list_expected_ticks(job, NOW + 3 * SECOND) == tuple(NOW + number * SECOND for number in range(4))


def test_a_fixed_delay_has_no_known_upcoming_ticks() -> None:
    assert list_expected_ticks(a_job(Interval(every=SECOND, mode="fixed_delay")), NOW + MINUTE) == ()


def test_a_drill_in_production_needs_confirmation() -> None:
    check_allowed(in_production=False, confirmed=False)
    check_allowed(in_production=True, confirmed=True)
    with pytest.raises(Conflict, match="production"):
        check_allowed(in_production=True, confirmed=False)


@pytest.mark.parametrize("watch", [0, SECOND, LONGEST_WATCH + 1])
def test_a_watch_that_is_too_short_or_too_long_is_rejected(watch: Micros) -> None:
    with pytest.raises(Invalid):
        check_watch(watch)
