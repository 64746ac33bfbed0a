"""Planning: every due tick is decided exactly once."""

from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import Fire, Job, JobState, Overlap, tick_run_id
from mainspring.core.model.schedules.plan import LISTED, dropped_ticks, plan, plan_job
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, compute_due, next_after, ticks_between
from tests.support.boundaries import around_the_boundary
from tests.support.builders import a_spec, a_stored_job, after_each, every
from tests.support.clock import START
from tests.support.line_count import at_most_lines

schedules = st.one_of(
    st.builds(
        every,
        st.sampled_from([SECOND, 7 * SECOND, MINUTE, HOUR]),
        start=st.none() | st.integers(START, START + DAY),
        end=st.none() | st.integers(START + 2 * DAY, START + 4 * DAY),
        jitter=st.integers(0, SECOND - 1),
    ),
    st.builds(
        CronSchedule,
        st.sampled_from(["* * * * *", "*/7 * * * * *", "30 2 * * *", "H H * * *", "0 0 1 * *"]),
        timezone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
        jitter=st.integers(0, MINUTE),
    ),
)
catch_ups = st.builds(
    CatchUp,
    mode=st.sampled_from(["none", "latest", "all"]),
    grace=st.integers(0, 2 * MINUTE),
    cap=st.integers(0, 50),
    max_age=st.integers(0, DAY),
    pace=st.integers(0, MINUTE),
)


@st.composite
def due_jobs(draw: st.DrawFn) -> tuple[Job, Instant]:
    """A job with its next tick, and the time of planning: on time or much too late."""
    schedule = draw(schedules)
    spec = a_spec(schedule=schedule, catch_up=draw(catch_ups), overlap=draw(st.sampled_from(list(Overlap))))
    state = draw(st.sampled_from([JobState.SCHEDULED, JobState.PAUSED]))
    job = a_stored_job(spec, next_fire=None, state=state)
    first = next_after(schedule, draw(st.integers(START, START + DAY)), job.id)
    assert first is not None
    late = draw(st.integers(0, 5 * SECOND) | st.integers(0, 40 * DAY))
    return msgspec.structs.replace(job, next_fire=first), first + late


@given(due_jobs())
def test_every_tick_in_the_window_is_decided_exactly_once(case: tuple[Job, Instant]) -> None:
    job, now = case
    assert job.next_fire is not None
    fire = plan_job(job, now)
    listed = [tick for tick in fire.ticks if tick.ticks == 1]
    spans = [tick for tick in fire.ticks if tick.ticks != 1]
    decided = [tick.scheduled_at for tick in fire.ticks]
    assert decided == sorted(set(decided))
    assert decided[0] == job.next_fire
    assert decided[-1] <= now
    # Every tick is listed since the first, or since the end of the span that covers older ones.
    since = listed[0].scheduled_at
    assert [tick.scheduled_at for tick in listed] == ticks_between(
        job.spec.schedule, since - 1, now, job.id, len(listed) + 1
    )
    if spans:
        [span] = spans
        assert span.scheduled_at == job.next_fire
        assert span.last_at is not None
        assert ticks_between(job.spec.schedule, span.last_at, since - 1, job.id, 1) == []
        assert len(listed) == LISTED
    else:
        assert since == job.next_fire
    # The next tick is the first that was not decided here.
    assert fire.next_fire == next_after(job.spec.schedule, now, job.id)
    assert fire.finished == (fire.next_fire is None)


@given(due_jobs())
def test_no_run_is_early_and_none_is_skipped_without_a_reason(case: tuple[Job, Instant]) -> None:
    job, now = case
    for tick in plan_job(job, now).ticks:
        if tick.decision == "run":
            assert tick.due >= compute_due(job.spec.schedule, tick.scheduled_at, job.id) >= tick.scheduled_at
            assert tick.run_id == tick_run_id(job.id, tick.scheduled_at)
            assert tick.late == (now - tick.scheduled_at > job.spec.catch_up.grace)
            assert tick.reason == ""
        else:
            assert tick.reason
            assert tick.run_id is None


@given(due_jobs())
def test_a_plan_has_at_most_one_run_that_cancels_others_and_none_in_a_pause(case: tuple[Job, Instant]) -> None:
    job, now = case
    runs = [tick for tick in plan_job(job, now).ticks if tick.decision == "run"]
    if job.spec.overlap is Overlap.CANCEL:
        assert len(runs) <= 1
    if job.state is JobState.PAUSED:
        assert runs == []


@given(due_jobs())
@settings(max_examples=50)
def test_planning_is_deterministic(case: tuple[Job, Instant]) -> None:
    job, now = case
    assert plan_job(job, now) == plan_job(job, now)


@given(due_jobs())
def test_an_ended_schedule_drops_the_ticks_that_would_have_fired(case: tuple[Job, Instant]) -> None:
    job, now = case
    dropped = dropped_ticks(job, now, "cancelled")
    fired = plan_job(job, now).ticks
    assert [(tick.scheduled_at, tick.ticks, tick.last_at) for tick in dropped] == [
        (tick.scheduled_at, tick.ticks, tick.last_at) for tick in fired
    ]
    assert {tick.decision for tick in dropped} == {"skipped"}
    assert {tick.reason for tick in dropped if tick.ticks == 1} == {"cancelled"}


def test_an_ended_schedule_drops_no_tick_that_is_not_due() -> None:
    assert dropped_ticks(a_stored_job(next_fire=START + 1), START, "cancelled") == []
    assert dropped_ticks(a_stored_job(next_fire=None), START, "cancelled") == []
    assert [tick.scheduled_at for tick in dropped_ticks(a_stored_job(next_fire=START), START, "cancelled")] == [START]


def test_an_ended_fixed_delay_drops_its_due_tick_unless_it_was_over() -> None:
    pending = a_stored_job(a_spec(schedule=after_each(HOUR)), next_fire=START)
    assert [tick.scheduled_at for tick in dropped_ticks(pending, START + DAY, "cancelled")] == [START]
    over = a_stored_job(a_spec(schedule=after_each(HOUR, end=START - 1)), next_fire=START)
    assert dropped_ticks(over, START + DAY, "cancelled") == []


def test_a_job_whose_time_zone_no_longer_exists_can_be_ended() -> None:
    lost = a_spec(schedule=CronSchedule("* * * * *", timezone="Atlantis/Capital"))
    [tick] = dropped_ticks(a_stored_job(lost, next_fire=START), START + HOUR, "schedule changed")
    assert (tick.scheduled_at, tick.reason) == (START, "schedule changed")


def test_only_due_jobs_are_planned() -> None:
    due, later, waits = (a_stored_job(next_fire=at) for at in (START, START + 1, None))
    fires = plan([later, due, waits], START)
    assert [fire.job for fire in fires] == [due]


def one_fire(schedule: Interval | CronSchedule, now: Instant, **changes: object) -> Fire:
    spec = msgspec.structs.replace(a_spec(schedule=schedule), **changes)
    return plan_job(a_stored_job(spec, next_fire=START), now)


def test_a_tick_on_time_becomes_a_run_and_the_schedule_advances() -> None:
    fire = one_fire(every(HOUR), START + 3)
    [tick] = fire.ticks
    assert (tick.scheduled_at, tick.decision, tick.due, tick.late) == (START, "run", START, False)
    assert (fire.next_fire, fire.finished) == (START + HOUR, False)


def test_jitter_moves_the_due_time_and_never_the_tick() -> None:
    fire = one_fire(every(HOUR, jitter=30 * MINUTE), START + 3)
    [tick] = fire.ticks
    assert tick.scheduled_at == START
    assert START < tick.due < START + 30 * MINUTE
    assert tick.run_id == tick_run_id(fire.job.id, START)


@around_the_boundary
def test_a_run_is_late_only_beyond_the_grace(offset: int) -> None:
    now = START + MINUTE + offset
    [tick] = one_fire(every(HOUR), now, catch_up=CatchUp(grace=MINUTE)).ticks
    assert (tick.late, tick.due) == ((True, now) if offset > 0 else (False, START))


@around_the_boundary
def test_the_end_of_a_fixed_delay_is_inclusive(offset: int) -> None:
    fire = one_fire(after_each(HOUR, end=START + offset), START + 1)
    assert [tick.scheduled_at for tick in fire.ticks] == ([] if offset < 0 else [START])


@around_the_boundary
def test_a_stored_tick_outside_its_schedule_is_listed_if_there_is_room(offset: int) -> None:
    """The rules of a zone can differ between two versions of its data."""
    stored = START + 7
    listed = [START + number * SECOND for number in range(1, LISTED + offset + 1)]
    first, *others = plan_job(a_stored_job(a_spec(schedule=every(SECOND)), next_fire=stored), listed[-1]).ticks
    assert first.scheduled_at == stored
    assert [tick.scheduled_at for tick in others] == listed[-LISTED:]
    span = {-1: (1, None), 0: (0, stored), 1: (0, listed[0])}[offset]
    assert (first.ticks, first.last_at) == span


def test_exactly_as_many_ticks_as_are_listed_have_no_span() -> None:
    fire = one_fire(every(SECOND), START + (LISTED - 1) * SECOND)
    assert [tick.ticks for tick in fire.ticks] == [1] * LISTED
    assert one_fire(every(SECOND), START + LISTED * SECOND).ticks[0].last_at == START


def test_a_paced_catch_up_spreads_missed_ticks() -> None:
    policy = CatchUp(mode="all", pace=10 * SECOND)
    now = START + 3 * HOUR + 2 * MINUTE
    fire = one_fire(every(HOUR), now, catch_up=policy)
    assert [tick.due - now for tick in fire.ticks] == [0, 10 * SECOND, 20 * SECOND, 30 * SECOND]
    assert all(tick.late for tick in fire.ticks)


def test_the_ticks_of_a_paused_job_are_skipped_and_its_schedule_advances() -> None:
    job = a_stored_job(a_spec(schedule=every(HOUR)), next_fire=START, state=JobState.PAUSED)
    fire = plan_job(job, START + 2 * HOUR)
    assert [(tick.decision, tick.reason) for tick in fire.ticks] == [("skipped", "paused")] * 3
    assert fire.next_fire == START + 3 * HOUR


@given(
    st.sampled_from([JobState.SCHEDULED, JobState.PAUSED]),
    st.none() | st.integers(-HOUR, 10 * HOUR),
    st.none() | st.integers(-HOUR, 10 * HOUR),
    st.integers(0, 9 * HOUR),
)
def test_a_pause_skips_exactly_its_ticks_whenever_they_are_planned(
    state: JobState, resume_in: int | None, over_in: int | None, late: int
) -> None:
    job = msgspec.structs.replace(
        a_stored_job(a_spec(schedule=every(HOUR), catch_up=CatchUp(mode="all")), next_fire=START, state=state),
        resume_at=None if resume_in is None else START + resume_in,
        paused_until=None if over_in is None else START + over_in,
        pause_why="closed",
    )
    for tick in plan_job(job, START + late).ticks:
        in_pause = over_in is not None and tick.scheduled_at < START + over_in
        in_pause |= state is JobState.PAUSED and (resume_in is None or tick.scheduled_at < START + resume_in)
        assert (tick.reason == "paused: closed") == in_pause
        assert (tick.decision == "run") == (not in_pause)


@pytest.mark.parametrize(
    ("overlap", "kept"),
    [
        (Overlap.ALLOW, [0, 1, 2, 3]),
        (Overlap.SKIP, [0, 1, 2, 3]),
        (Overlap.QUEUE, [0, 1, 2, 3]),
        (Overlap.CANCEL, [3]),
    ],
)
def test_a_plan_leaves_overlap_to_the_store_unless_a_newer_tick_cancels_the_others(
    overlap: Overlap, kept: list[int]
) -> None:
    fire = one_fire(every(HOUR), START + 3 * HOUR, catch_up=CatchUp(mode="all"), overlap=overlap)
    assert [number for number, tick in enumerate(fire.ticks) if tick.decision == "run"] == kept
    assert {tick.reason for tick in fire.ticks if tick.decision == "skipped"} <= {"overlap"}


def test_the_last_tick_finishes_the_job() -> None:
    fire = one_fire(every(HOUR, end=START + HOUR), START + 5 * HOUR)
    assert [tick.scheduled_at for tick in fire.ticks] == [START, START + HOUR]
    assert (fire.next_fire, fire.finished) == (None, True)


def test_a_stored_tick_that_the_schedule_no_longer_has_is_still_decided() -> None:
    """The rules of a zone can differ between two versions of its data."""
    job = a_stored_job(a_spec(schedule=every(HOUR)), next_fire=START + 7)
    fire = plan_job(job, START + HOUR)
    assert [tick.scheduled_at for tick in fire.ticks] == [START + 7, START + HOUR]


def test_a_long_outage_is_one_row_and_a_list_of_the_newest_ticks() -> None:
    now = START + 30 * DAY
    fire = one_fire(every(SECOND), now)
    span, *listed = fire.ticks
    assert (span.scheduled_at, span.decision, span.ticks) == (START, "skipped", 0)
    assert span.last_at == now - LISTED * SECOND
    assert [tick.scheduled_at for tick in listed] == list(range(now - (LISTED - 1) * SECOND, now + 1, SECOND))


def test_more_ticks_are_listed_if_the_cap_is_larger() -> None:
    policy = CatchUp(mode="all", cap=3 * LISTED)
    fire = one_fire(every(SECOND), START + 30 * DAY, catch_up=policy)
    runs = [tick for tick in fire.ticks if tick.late and tick.decision == "run"]
    assert len(runs) == 3 * LISTED, "those on time follow in the next fire"


def test_a_per_second_cron_after_a_year_is_planned_without_walking_its_ticks() -> None:
    job = a_stored_job(a_spec(schedule=CronSchedule("* * * * * *", timezone="Europe/Berlin")), next_fire=START)
    with at_most_lines(500_000):
        fire = plan_job(job, START + 366 * DAY)
    assert len(fire.ticks) == LISTED + 1
    assert fire.next_fire == START + 366 * DAY + SECOND


def test_a_fixed_delay_waits_for_the_end_of_the_run_it_made() -> None:
    fire = one_fire(after_each(5 * MINUTE), START + 3)
    assert [(tick.scheduled_at, tick.decision) for tick in fire.ticks] == [(START, "run")]
    assert (fire.next_fire, fire.finished) == (None, False)


def test_a_fixed_delay_that_made_no_run_schedules_its_next_tick() -> None:
    fire = one_fire(after_each(5 * MINUTE), START + HOUR, catch_up=CatchUp(mode="none"))
    assert [tick.decision for tick in fire.ticks] == ["skipped"]
    assert (fire.next_fire, fire.finished) == (START + HOUR + 5 * MINUTE, False)
    job = a_stored_job(a_spec(schedule=after_each(5 * MINUTE)), next_fire=START, state=JobState.PAUSED)
    assert plan_job(job, START + 1).next_fire == START + 1 + 5 * MINUTE


def test_a_fixed_delay_catches_up_with_one_tick_after_any_outage() -> None:
    fire = one_fire(after_each(5 * MINUTE), START + DAY, catch_up=CatchUp(mode="all"))
    assert [tick.decision for tick in fire.ticks] == ["run"]


def test_a_fixed_delay_whose_next_tick_would_be_past_its_end_is_finished() -> None:
    last = one_fire(after_each(5 * MINUTE, end=START + MINUTE), START + 3)
    assert [tick.decision for tick in last.ticks] == ["run"]
    assert last.finished
    over = one_fire(after_each(5 * MINUTE, end=START - MINUTE), START + 3)
    assert (over.ticks, over.next_fire, over.finished) == ((), None, True)


def plan_until(job: Job, now: Instant) -> list[Fire]:
    """Plan as the scheduler does: again, as long as the next fire is due."""
    fires = []
    while job.next_fire is not None and job.next_fire <= now:
        fires.append(plan_job(job, now))
        assert fires[-1].next_fire is None or fires[-1].next_fire > job.next_fire
        assert len(fires[-1].ticks) <= LISTED + 1
        job = msgspec.structs.replace(job, next_fire=fires[-1].next_fire, next_tick=fires[-1].next_tick)
    return fires


def runs_of(fires: list[Fire]) -> list[Instant]:
    return [tick.scheduled_at for fire in fires for tick in fire.ticks if tick.decision == "run"]


@pytest.mark.parametrize("mode", ["none", "latest", "all"])
@pytest.mark.parametrize("due", [LISTED - 1, LISTED, LISTED + 1, 2 * LISTED + 500])
@pytest.mark.parametrize("cron", [True, False])
def test_every_tick_on_time_runs_however_many_there_are(
    mode: Literal["none", "latest", "all"], due: int, cron: bool
) -> None:
    schedule = CronSchedule("* * * * * *") if cron else every(SECOND, start=START)
    spec = a_spec(schedule=schedule, catch_up=CatchUp(mode=mode, grace=DAY), overlap=Overlap.ALLOW)
    job = a_stored_job(spec, next_fire=START)
    fires = plan_until(job, START + (due - 1) * SECOND)
    assert runs_of(fires) == [START + number * SECOND for number in range(due)]
    assert all(tick.ticks == 1 for fire in fires for tick in fire.ticks)


@pytest.mark.parametrize("late", [0, 1, 50, 5_000])
@pytest.mark.parametrize("on_time", [LISTED - 100, LISTED - 10, LISTED, LISTED + 1, 3 * LISTED])
def test_late_ticks_within_the_cap_run_beside_any_number_of_ticks_on_time(late: int, on_time: int) -> None:
    catch_up = CatchUp(mode="all", grace=(on_time - 1) * SECOND, cap=40)
    job = a_stored_job(
        a_spec(schedule=every(SECOND, start=START), catch_up=catch_up, overlap=Overlap.ALLOW), next_fire=START
    )
    now = START + (late + on_time - 1) * SECOND
    assert runs_of(plan_until(job, now)) == [
        now - number * SECOND for number in reversed(range(on_time + min(late, 40)))
    ]


@pytest.mark.parametrize("still", [True, False])
def test_ticks_on_time_after_a_long_pause_run(still: bool) -> None:
    spec = a_spec(schedule=every(SECOND, start=START), catch_up=CatchUp(grace=DAY), overlap=Overlap.ALLOW)
    end = START + 2 * LISTED * SECOND
    job = a_stored_job(spec, next_fire=START, state=JobState.PAUSED if still else JobState.SCHEDULED)
    job = msgspec.structs.replace(job, **{"resume_at" if still else "paused_until": end})
    now = end + 2 * LISTED * SECOND
    fires = plan_until(job, now)
    assert runs_of(fires) == [end + number * SECOND for number in range(2 * LISTED + 1)]
    assert [tick.reason for tick in fires[0].ticks[1:]] == ["paused"] * LISTED


def test_only_the_newest_tick_runs_after_an_outage_that_is_longer_than_a_long_grace() -> None:
    spec = a_spec(schedule=every(SECOND, start=START), catch_up=CatchUp(grace=HOUR), overlap=Overlap.ALLOW)
    now = START + 2 * HOUR
    (fire,) = plan_until(a_stored_job(spec, next_fire=START), now)
    assert runs_of([fire]) == [now]
