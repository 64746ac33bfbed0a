"""Planning with calendars: each tick is decided once, at its time or just before a closed period."""

from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, Micros, parse_instant
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec, Freeze, Holiday, WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar
from mainspring.core.model.schedules.job import Fire, Job, JobSpec, JobState, Overlap
from mainspring.core.model.schedules.plan import LISTED, happens_at, plan_job
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, next_after, ticks_between
from tests.support.boundaries import around_the_boundary
from tests.support.builders import a_spec, a_stored_job, after_each, every

MONDAY = parse_instant("2026-06-01T00:00:00Z")
WEEKENDS = CalendarSpec(closed_days=("sat", "sun"))


def closed_periods(spec: CalendarSpec, rule: WhenClosed) -> ClosedPeriods:
    return ClosedPeriods([CompiledCalendar(Calendar(tenant="default", name="office", version=3, spec=spec))], rule)


def a_job(spec: JobSpec, rule: WhenClosed, first: Instant, *, state: JobState = JobState.SCHEDULED) -> Job:
    spec = msgspec.structs.replace(spec, calendars=("office",), when_closed=rule)
    job = a_stored_job(spec, next_fire=first, state=state)
    return msgspec.structs.replace(job, next_tick=first) if rule is WhenClosed.BEFORE else job


def advance_job(job: Job, fire: Fire) -> Job:
    return msgspec.structs.replace(job, next_fire=fire.next_fire, next_tick=fire.next_tick, rev=job.rev + 1)


def an_hourly_job(rule: WhenClosed, first: Instant, **other: object) -> Job:
    return a_job(a_spec(schedule=every(HOUR), **other), rule, first)  # type: ignore[arg-type]


def test_a_tick_in_a_closed_period_is_skipped_and_the_reason_names_the_calendar() -> None:
    saturday = MONDAY + 5 * DAY + 9 * HOUR
    fire = plan_job(an_hourly_job(WhenClosed.SKIP, saturday), saturday, closed_periods(WEEKENDS, WhenClosed.SKIP))
    [tick] = fire.ticks
    assert (tick.decision, tick.reason) == ("skipped", "calendar: office, version 3")
    assert fire.next_fire == saturday + HOUR


def test_rule_after_keeps_the_tick_and_moves_its_due_time() -> None:
    saturday = MONDAY + 5 * DAY + 9 * HOUR
    job = an_hourly_job(WhenClosed.AFTER, saturday)
    found = closed_periods(WEEKENDS, WhenClosed.AFTER)
    first = plan_job(job, saturday, found)
    second = plan_job(advance_job(job, first), saturday + HOUR, found)
    ticks = [*first.ticks, *second.ticks]
    assert [tick.scheduled_at for tick in ticks] == [saturday, saturday + HOUR]
    assert [tick.due for tick in ticks] == [MONDAY + 7 * DAY] * 2
    assert len({tick.run_id for tick in ticks}) == 2
    assert ticks[0].reason == "moved after, calendar: office, version 3"


def test_rule_before_fires_all_ticks_of_a_closed_period_in_the_last_open_second() -> None:
    found = closed_periods(WEEKENDS, WhenClosed.BEFORE)
    friday = MONDAY + 4 * DAY
    last = friday + DAY - SECOND
    job = a_job(a_spec(schedule=CronSchedule("0 9 * * *")), WhenClosed.BEFORE, friday + 9 * HOUR)
    fire = plan_job(job, friday + 9 * HOUR, found)
    assert [tick.scheduled_at for tick in fire.ticks] == [friday + 9 * HOUR]
    assert (fire.next_fire, fire.next_tick) == (last, friday + DAY + 9 * HOUR)
    weekend = plan_job(advance_job(job, fire), last, found)
    assert [tick.scheduled_at for tick in weekend.ticks] == [friday + DAY + 9 * HOUR, friday + 2 * DAY + 9 * HOUR]
    assert [(tick.due, tick.early, tick.late) for tick in weekend.ticks] == [(last, last, False)] * 2
    assert (weekend.next_fire, weekend.next_tick) == (friday + 3 * DAY + 9 * HOUR,) * 2


def test_planning_too_early_fires_nothing_and_returns_when_to_plan_again() -> None:
    found = closed_periods(WEEKENDS, WhenClosed.BEFORE)
    saturday = MONDAY + 5 * DAY
    job = a_job(a_spec(schedule=CronSchedule("0 9 * * SAT")), WhenClosed.BEFORE, saturday + 9 * HOUR)
    fire = plan_job(msgspec.structs.replace(job, next_fire=MONDAY), MONDAY, found)
    assert fire.ticks == ()
    assert (fire.next_fire, fire.next_tick) == (saturday - SECOND, saturday + 9 * HOUR)


@around_the_boundary
def test_rule_before_fires_from_the_last_open_second_on(offset: int) -> None:
    found = closed_periods(WEEKENDS, WhenClosed.BEFORE)
    saturday = MONDAY + 5 * DAY
    job = a_job(a_spec(schedule=CronSchedule("0 9 * * SAT")), WhenClosed.BEFORE, saturday + 9 * HOUR)
    fire = plan_job(job, saturday - SECOND + offset, found)
    assert [tick.scheduled_at for tick in fire.ticks] == ([] if offset < 0 else [saturday + 9 * HOUR])
    assert [tick.early for tick in fire.ticks] == ([] if offset < 0 else [saturday - SECOND])


@around_the_boundary
def test_a_tick_in_the_last_open_second_is_not_early(offset: int) -> None:
    """Its followers in the closed period wait for it."""
    found = closed_periods(WEEKENDS, WhenClosed.BEFORE)
    tick = MONDAY + 5 * DAY - SECOND // 2
    job = a_job(a_spec(schedule=every(DAY, start=tick)), WhenClosed.BEFORE, tick)
    fire = plan_job(job, tick + offset, found)
    early = MONDAY + 5 * DAY - SECOND
    expected = [] if offset < 0 else [(tick, None), (tick + DAY, early), (tick + 2 * DAY, early)]
    assert [(one.scheduled_at, one.early) for one in fire.ticks] == expected


def test_a_tick_in_the_last_open_second_is_not_fired_with_its_predecessor() -> None:
    found = closed_periods(WEEKENDS, WhenClosed.BEFORE)
    last = MONDAY + 5 * DAY - SECOND // 2
    schedule = every(SECOND, start=last - SECOND, end=last)
    job = a_job(a_spec(schedule=schedule), WhenClosed.BEFORE, last - SECOND)
    fire = plan_job(job, last - SECOND // 2, found)
    assert [(tick.scheduled_at, tick.early) for tick in fire.ticks] == [(last - SECOND, None)]
    assert (fire.next_fire, fire.next_tick) == (last, last)


def test_ticks_of_a_closed_period_without_an_open_second_before_it_are_skipped_at_their_own_times() -> None:
    freeze = CalendarSpec(freezes=(Freeze(start=MONDAY - 11 * 366 * DAY, end=MONDAY + 2 * LISTED * HOUR),))
    job = an_hourly_job(WhenClosed.BEFORE, MONDAY)
    fire = plan_job(job, MONDAY + HOUR, closed_periods(freeze, WhenClosed.BEFORE))
    assert [(tick.scheduled_at, tick.decision, tick.ticks) for tick in fire.ticks] == [
        (MONDAY, "skipped", 1),
        (MONDAY + HOUR, "skipped", 1),
    ]
    assert (fire.next_fire, fire.next_tick) == (MONDAY + 2 * HOUR, MONDAY + 2 * HOUR)


def test_rule_before_catches_up_after_a_closed_period_that_has_already_begun() -> None:
    """The freeze is set after its start: the second before it has passed, and nothing runs during it."""
    noon = MONDAY + 12 * HOUR
    freeze = CalendarSpec(freezes=(Freeze(start=MONDAY + 10 * HOUR, end=MONDAY + 14 * HOUR),))
    job = an_hourly_job(WhenClosed.BEFORE, noon + HOUR)
    fire = plan_job(job, noon, closed_periods(freeze, WhenClosed.BEFORE))
    [tick] = fire.ticks
    assert (tick.scheduled_at, tick.late, tick.due) == (noon + HOUR, True, MONDAY + 14 * HOUR)


def test_a_missed_tick_is_not_caught_up_during_a_closed_period() -> None:
    friday_evening = MONDAY + 4 * DAY + 20 * HOUR
    job = a_job(a_spec(schedule=CronSchedule("0 20 * * FRI")), WhenClosed.SKIP, friday_evening)
    saturday = MONDAY + 5 * DAY + 12 * HOUR
    fire = plan_job(job, saturday, closed_periods(WEEKENDS, WhenClosed.SKIP))
    [tick] = fire.ticks
    assert (tick.decision, tick.late, tick.due) == ("run", True, MONDAY + 7 * DAY)


def test_a_tick_in_a_closed_period_does_not_supersede_an_open_one() -> None:
    job = an_hourly_job(WhenClosed.SKIP, MONDAY + 5 * DAY - 2 * HOUR)
    fire = plan_job(job, MONDAY + 5 * DAY + 2 * HOUR, closed_periods(WEEKENDS, WhenClosed.SKIP))
    assert [(tick.scheduled_at - MONDAY - 5 * DAY, tick.decision, tick.reason) for tick in fire.ticks] == [
        (-2 * HOUR, "skipped", "superseded by a later tick"),
        (-HOUR, "run", ""),
        *((number * HOUR, "skipped", "calendar: office, version 3") for number in range(3)),
    ]


def test_the_cap_counts_ticks_that_were_moved_to_the_same_instant_one_by_one() -> None:
    job = an_hourly_job(WhenClosed.AFTER, MONDAY + 5 * DAY, catch_up=CatchUp(mode="all", cap=5, max_age=3 * DAY))
    fire = plan_job(job, MONDAY + 7 * DAY + 30 * MINUTE, closed_periods(WEEKENDS, WhenClosed.AFTER))
    assert sum(tick.decision == "run" for tick in fire.ticks) == 5
    assert len(fire.ticks) == 49


def test_a_fixed_delay_that_is_skipped_ticks_again_a_delay_later() -> None:
    saturday = MONDAY + 5 * DAY
    job = a_job(a_spec(schedule=after_each(HOUR)), WhenClosed.SKIP, saturday)
    fire = plan_job(job, saturday, closed_periods(WEEKENDS, WhenClosed.SKIP))
    assert fire.ticks[0].decision == "skipped"
    assert fire.next_fire == saturday + HOUR


def test_a_tick_in_the_last_second_before_a_closed_period_is_not_fired_early() -> None:
    """The tick lies between two whole seconds; ticks that move before the period wait for it."""
    start = MONDAY + SECOND // 2
    span = CalendarSpec(freezes=(Freeze(start=MONDAY + MINUTE, end=MONDAY + 2 * MINUTE),))
    found = closed_periods(span, WhenClosed.BEFORE)
    job = a_job(a_spec(schedule=every(SECOND, start=start)), WhenClosed.BEFORE, start + 59 * SECOND)
    at = MONDAY + MINUTE - SECOND
    early = plan_job(job, at, found)
    assert early.ticks == ()
    assert early.next_fire == start + 59 * SECOND
    fire = plan_job(advance_job(job, early), start + 59 * SECOND, found)
    assert len(fire.ticks) == 61


@pytest.mark.parametrize("closed_for", [MINUTE, HOUR], ids=["a short period", "more ticks than are listed"])
def test_a_due_tick_does_not_wait_for_the_tick_in_the_last_second_before_a_closed_period(closed_for: Micros) -> None:
    start = MONDAY + SECOND // 2
    span = CalendarSpec(freezes=(Freeze(start=MONDAY + MINUTE, end=MONDAY + MINUTE + closed_for),))
    job = a_job(a_spec(schedule=every(SECOND, start=start)), WhenClosed.BEFORE, start + 58 * SECOND)
    # The ticks of the closed period move to this second, but the tick half a second later comes first.
    fire = plan_job(job, MONDAY + 59 * SECOND, closed_periods(span, WhenClosed.BEFORE))
    assert [(tick.scheduled_at, tick.decision) for tick in fire.ticks] == [(start + 58 * SECOND, "run")]
    assert (fire.next_fire, fire.next_tick) == (start + 59 * SECOND,) * 2


@pytest.mark.parametrize(
    ("mode", "decisions"),
    [
        ("none", [("run", 0), ("skipped", None), ("skipped", None)]),
        ("latest", [("skipped", None), ("skipped", None), ("run", 2 * HOUR)]),
        ("all", [("run", 0), ("run", 2 * HOUR), ("run", 2 * HOUR)]),
    ],
)
def test_moved_ticks_can_be_late_while_a_tick_just_before_the_closed_period_is_on_time(
    mode: Literal["none", "latest", "all"], decisions: list[tuple[str, Micros | None]]
) -> None:
    """Ticks move to the start of the last open second, which is before a tick in the middle of that second."""
    noon = MONDAY + 12 * HOUR
    first = noon - SECOND // 2
    calendar = CalendarSpec(freezes=(Freeze(start=noon, end=noon + 2 * HOUR),))
    spec = a_spec(schedule=every(HOUR, start=first), catch_up=CatchUp(mode=mode, grace=MINUTE, pace=SECOND))
    now = first + MINUTE
    fire = plan_job(a_job(spec, WhenClosed.BEFORE, first), now, closed_periods(calendar, WhenClosed.BEFORE))
    assert [tick.scheduled_at for tick in fire.ticks] == [first, first + HOUR, first + 2 * HOUR]
    due = [None if offset is None else (first if offset == 0 else noon + offset) for _, offset in decisions]
    assert [(tick.decision, tick.due if tick.run_id else None, tick.late) for tick in fire.ticks] == [
        (decision, at, decision == "run" and at != first) for (decision, _), at in zip(decisions, due, strict=True)
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Job, ClosedPeriods, list[Micros]]:
    rule = draw(st.sampled_from(list(WhenClosed)))
    spans = draw(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 200)), max_size=3))
    calendar = CalendarSpec(
        timezone=draw(st.sampled_from(["UTC", "Europe/Paris"])),
        closed_days=tuple(draw(st.sets(st.sampled_from(["sat", "sun", "mon"]), max_size=2))),
        holidays=tuple(draw(st.lists(st.just(Holiday(date="2026-06-03")), max_size=1))),
        freezes=tuple(
            Freeze(start=MONDAY + start * HOUR // 4, end=MONDAY + (start + long) * HOUR // 4) for start, long in spans
        ),
    )
    schedules: list[Interval | CronSchedule] = [every(HOUR), every(13 * MINUTE)]
    schedules.append(every(HOUR // 4, start=MONDAY + HOUR // 4 - SECOND // 2))
    schedules.append(CronSchedule("30 9 * * *", timezone="Europe/Paris"))
    schedule = draw(st.sampled_from(schedules))
    spec = a_spec(
        schedule=schedule,
        overlap=draw(st.sampled_from(list(Overlap))),
        catch_up=CatchUp(mode=draw(st.sampled_from(["none", "latest", "all"]))),
    )
    first = next_after(schedule, MONDAY, "job")
    assert first is not None
    return a_job(spec, rule, first), closed_periods(calendar, rule), draw(st.lists(st.integers(0, DAY), max_size=4))


@given(cases())
def test_every_tick_is_decided_once_in_order_and_never_before_it_happens(
    case: tuple[Job, ClosedPeriods, list[Micros]],
) -> None:
    job, found, pauses = case
    decided: list[Instant] = []
    start = job.first_tick
    assert start is not None
    now = start
    for pause in [*pauses, 0, 0, 0]:
        assert job.next_fire is not None
        now = max(now, job.next_fire) + pause
        fire = plan_job(job, now, found)
        for tick in fire.ticks:
            assert tick.happens_at <= now
            assert tick.happens_at == happens_at(tick.scheduled_at, found) or tick.scheduled_at <= now
            if tick.decision == "run":
                assert tick.early is None or tick.early < tick.scheduled_at
                # The run starts at its own time or later, or in the second that the calendar chooses.
                assert tick.due >= happens_at(tick.scheduled_at, found)
                assert tick.due > now or tick.late or not found.is_closed(tick.due)
        decided += [tick.scheduled_at for tick in fire.ticks]
        job = advance_job(job, fire)
    assert decided == sorted(set(decided))
    if decided:
        assert decided == ticks_between(job.spec.schedule, start - 1, decided[-1], job.id, 100_000)
