"""Calendars: every change is a version and reaches every schedule at once."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.calendar import CalendarSpec, Covers, Freeze, Holiday, WhenClosed
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar, select_closed_periods
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob, Overlap
from mainspring.core.model.schedules.plan import plan_job
from mainspring.core.ports.storage.access import AuditFilter, Author
from mainspring.core.ports.storage.answers import FireResult
from tests.support.builders import a_fire, a_job, a_spec, a_tick, every
from tests.support.store_harness import Harness

ADA = Author("ada", why="it is a holiday")
WEEKENDS = CalendarSpec(closed_days=("sat", "sun"))
HOLIDAYS = CalendarSpec(timezone="Europe/Paris", holidays=(Holiday(date="2026-07-14", label="Fête nationale"),))


def spec_with_calendar(rule: WhenClosed = WhenClosed.SKIP, **other: object) -> JobSpec:
    spec = a_spec(schedule=every(HOUR), **other)  # type: ignore[arg-type]
    return msgspec.structs.replace(spec, calendars=("office",), when_closed=rule)


async def close_office(harness: Harness, start: Instant, end: Instant) -> None:
    """Close the office for this period, rounded out to whole seconds."""
    span = Freeze(start=start // SECOND * SECOND, end=-(-end // SECOND) * SECOND)
    await harness.store.put_calendar("default", "office", CalendarSpec(freezes=(span,)), ADA)


async def fire_by_calendars(harness: Harness) -> list[FireResult]:
    """Fire every due tick with its calendars, as the scheduler does."""
    jobs = await harness.store.due_jobs(harness.all_shards, await harness.now(), 1_000)
    fires = [plan_job(job, await harness.now(), await load_closed_periods(harness, job)) for job in jobs]
    return await harness.store.fire(await harness.owner(), fires)


async def load_closed_periods(harness: Harness, job: Job) -> ClosedPeriods | None:
    [almanac] = await harness.store.tenant_calendars([job.tenant])
    assert almanac.rev >= job.calendar_rev
    spec = job.spec
    closed = [CompiledCalendar(calendar) for calendar in almanac.calendars]
    return select_closed_periods(closed, spec.calendars, spec.tags, spec.queue, spec.when_closed)


async def test_every_change_of_a_calendar_is_a_version_with_author_and_reason(harness: Harness) -> None:
    store = harness.store
    first = await store.put_calendar("default", "office", WEEKENDS, ADA)
    again = await store.put_calendar("default", "office", WEEKENDS, Author("bob"))
    second = await store.put_calendar("default", "office", HOLIDAYS, Author("bob", why="more of them"))
    assert again == first
    assert (first.version, first.made_by, first.why) == (1, "ada", "it is a holiday")
    assert (second.version, second.made_by, second.why, second.spec) == (2, "bob", "more of them", HOLIDAYS)
    assert await store.calendar_versions("default", "office") == [second, first]
    assert await store.calendar_versions("default", "office", 1) == [second]
    assert await store.calendars("default") == [second]
    audit = await store.audit("default", AuditFilter(target="office"))
    assert [(entry.action, entry.author) for entry in audit] == [("calendars.put", "bob"), ("calendars.put", "ada")]


async def test_calendars_belong_to_their_tenant(harness: Harness) -> None:
    store = harness.store
    mine = await store.put_calendar("default", "office", WEEKENDS, ADA)
    other = await store.put_calendar("other", "office", HOLIDAYS, ADA)
    assert await store.calendars(None) == [mine, other]
    assert await store.calendars("other") == [other]
    seen = store.seen_by("default")
    assert await seen.calendars(None) == [mine]
    assert await seen.calendars("other") == await seen.calendar_versions("other", "office") == []
    assert {almanac.tenant: almanac.rev for almanac in await store.tenant_calendars(["default", "other", "none"])} == {
        "default": 1,
        "other": 1,
    }


async def test_an_outdated_expected_version_is_a_conflict(harness: Harness) -> None:
    store = harness.store
    await store.put_calendar("default", "office", WEEKENDS, ADA, expected_version=0)
    with pytest.raises(Conflict):
        await store.put_calendar("default", "office", HOLIDAYS, ADA, expected_version=0)
    await store.put_calendar("default", "office", HOLIDAYS, ADA, expected_version=1)
    # The client repeats the request because the answer was lost.
    again = await store.put_calendar("default", "office", HOLIDAYS, ADA, expected_version=1)
    assert again.version == 2


async def test_a_job_cannot_use_an_unknown_calendar(harness: Harness) -> None:
    declared = [a_job(), a_job(spec_with_calendar())]
    with pytest.raises(Invalid) as refused:
        await harness.store.put_jobs(declared)
    assert refused.value.field == "calendars"
    assert await harness.store.jobs([job.id for job in declared]) == [None, None]


async def test_a_calendar_in_use_cannot_be_deleted(harness: Harness) -> None:
    store = harness.store
    await store.put_calendar("default", "office", WEEKENDS, ADA)
    job = await harness.put(a_job(spec_with_calendar(name="report")))
    with pytest.raises(Conflict, match="report"):
        await store.delete_calendar("default", "office", ADA)
    await store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await store.delete_calendar("default", "office", ADA)
    assert not await store.delete_calendar("default", "office", ADA)
    assert await store.calendars("default") == []
    with pytest.raises(Invalid):
        await harness.store.put_jobs([a_job(job.spec)])
    # A calendar created again continues its version numbers.
    assert (await store.put_calendar("default", "office", WEEKENDS, ADA)).version == 3
    assert [calendar.deleted for calendar in await store.calendar_versions("default", "office")] == [0, 1, 0]


async def test_of_a_concurrent_delete_and_declaration_one_is_rejected(harness: Harness) -> None:
    store = harness.store
    for number in range(10):
        name = f"office-{number}"
        await store.put_calendar("default", name, WEEKENDS, ADA)
        spec = msgspec.structs.replace(spec_with_calendar(), calendars=(name,))
        outcomes = await asyncio.gather(
            store.put_jobs([a_job(spec)]), store.delete_calendar("default", name, ADA), return_exceptions=True
        )
        assert sum(isinstance(outcome, Conflict | Invalid) for outcome in outcomes) == 1


async def test_a_calendar_change_invalidates_planned_fires(harness: Harness) -> None:
    store = harness.store
    await store.put_calendar("default", "unrelated", HOLIDAYS, ADA)
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    assert job.calendar_rev == 1
    assert job.next_fire is not None
    everything = CalendarSpec(freezes=WEEKENDS.freezes, closed_days=("sun",), covers=Covers(everything=True))
    await store.put_calendar("default", "freeze", everything, ADA)
    await harness.advance(job.next_fire - await harness.now() + SECOND)
    stale = a_fire(job, a_tick(job, job.next_fire), next_fire=job.next_fire + HOUR)
    assert await store.fire(await harness.owner(), [stale]) == [FireResult(applied=False)]
    changed = await harness.job(job.id)
    assert (changed.rev, changed.calendar_rev, changed.next_fire) == (job.rev + 1, 2, job.next_fire)


async def test_the_ledger_has_skipped_and_moved_ticks_under_their_original_time(harness: Harness) -> None:
    now = await harness.now()
    await close_office(harness, now, now + 90 * MINUTE)
    skips = await harness.put(a_job(spec_with_calendar(WhenClosed.SKIP)))
    waits = await harness.put(a_job(spec_with_calendar(WhenClosed.AFTER)))
    tick = skips.next_fire
    assert tick is not None
    await harness.advance(tick - await harness.now() + SECOND)
    assert all(fired.applied for fired in await fire_by_calendars(harness))
    [skipped] = await harness.ticks(skips.id)
    assert (skipped.scheduled_at, skipped.decision, skipped.reason) == (tick, "skipped", "calendar: office, version 1")
    [moved] = await harness.ticks(waits.id)
    assert (moved.scheduled_at, moved.decision) == (tick, "run")
    assert moved.reason == "moved after, calendar: office, version 1"
    assert moved.run_id is not None
    view = await harness.view(moved.run_id)
    assert view.state is RunState.SCHEDULED
    assert view.due >= now + 90 * MINUTE


async def test_a_tick_moved_before_a_closed_period_fires_early_and_once(harness: Harness) -> None:
    first = (await harness.now() // SECOND + 1800) * SECOND
    await close_office(harness, first - 5 * MINUTE, first + 90 * MINUTE)
    spec = msgspec.structs.replace(spec_with_calendar(WhenClosed.BEFORE), schedule=every(HOUR, start=first - HOUR))
    job = await harness.put(a_job(spec))
    # The job is due at once, so that a scheduler computes when to fire it.
    assert job.next_fire is not None
    assert job.next_fire <= await harness.now()
    assert await fire_by_calendars(harness) == [FireResult(applied=True)]
    job = await harness.job(job.id)
    last = first - 5 * MINUTE - SECOND
    assert (job.next_tick, job.next_fire) == (first, last)
    early = a_tick(job, first, due=last)
    assert await harness.ticks(job.id) == []
    soon = a_fire(job, msgspec.structs.replace(early, early=last), next_fire=first + 2 * HOUR)
    assert await harness.store.fire(await harness.owner(), [soon]) == [FireResult(applied=False)]
    await harness.advance(last - await harness.now() + SECOND // 2)
    assert [fired.runs for fired in await fire_by_calendars(harness)] == [2]
    ticks = await harness.ticks(job.id)
    assert [(tick.scheduled_at, tick.decision) for tick in ticks] == [(first, "run"), (first + HOUR, "run")]
    assert all(tick.reason == "moved before, calendar: office, version 1" for tick in ticks)
    assert all([await harness.state(tick.run_id) is RunState.QUEUED for tick in ticks if tick.run_id is not None])
    job = await harness.job(job.id)
    assert (job.next_fire, job.next_tick) == (first + 2 * HOUR, first + 2 * HOUR)
    # The closed period now ends earlier. A tick that has fired does not fire again.
    await harness.store.put_calendar("default", "office", WEEKENDS, ADA)
    changed = msgspec.structs.replace(job.spec, schedule=every(HOUR, start=first))
    await harness.put(msgspec.structs.replace(a_job(changed), id=job.id))
    await harness.advance(first + HOUR + MINUTE - await harness.now())
    await harness.fire_due()
    runs = [tick.run_id for tick in await harness.ticks(job.id) if tick.scheduled_at <= first + HOUR]
    assert runs == [tick.run_id for tick in ticks]


@pytest.mark.parametrize(
    ("overlap", "decisions"),
    [
        (Overlap.SKIP, ["run", "skipped", "skipped"]),
        (Overlap.QUEUE, ["run", "run", "skipped"]),
        (Overlap.CANCEL, ["skipped", "skipped", "run"]),
    ],
)
async def test_a_tick_that_fired_early_takes_no_room_after_the_schedule_changes(
    harness: Harness, overlap: Overlap, decisions: list[str]
) -> None:
    first = (await harness.now() // SECOND + 1800) * SECOND
    await close_office(harness, first - 5 * MINUTE, first + 5 * HOUR)
    spec = spec_with_calendar(WhenClosed.BEFORE, overlap=overlap)
    spec = msgspec.structs.replace(spec, schedule=every(HOUR, start=first, end=first))
    job = await harness.put(a_job(spec))
    await harness.advance(first - 5 * MINUTE - SECOND // 2 - await harness.now())
    assert [fired.runs for fired in await fire_by_calendars(harness)] == [1]
    await harness.succeed(*await harness.claim(await harness.worker()))
    later = msgspec.structs.replace(spec, schedule=every(HOUR, start=first, end=first + 3 * HOUR))
    await harness.put(a_job(later, id=job.id))
    await fire_by_calendars(harness)
    ticks = await harness.ticks(job.id)
    assert [tick.scheduled_at for tick in ticks] == [first + number * HOUR for number in range(4)]
    assert [tick.decision for tick in ticks] == ["run", *decisions]
    assert {tick.reason for tick in ticks if tick.decision == "skipped"} == {"overlap"}


async def test_a_tick_that_is_not_moved_is_never_recorded_early(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    assert job.next_fire is not None
    fire = a_fire(job, a_tick(job, job.next_fire), next_fire=job.next_fire + HOUR)
    assert await harness.store.fire(await harness.owner(), [fire]) == [FireResult(applied=False)]


async def test_changing_whether_a_job_moves_ticks_ahead_recomputes_its_next_fire(harness: Harness) -> None:
    await harness.store.put_calendar("default", "office", WEEKENDS, ADA)
    spec = spec_with_calendar()
    job = await harness.put(a_job(spec))
    assert job.next_tick is None
    ahead = await harness.put(_change_rule(job, WhenClosed.BEFORE))
    assert ahead.next_tick == job.next_fire
    assert ahead.next_fire is not None
    assert ahead.next_fire <= await harness.now()
    back = await harness.put(_change_rule(job, WhenClosed.AFTER))
    assert (back.next_fire, back.next_tick) == (job.next_fire, None)
    await harness.put(_change_rule(job, WhenClosed.BEFORE))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    gone = await harness.job(job.id)
    assert (gone.next_fire, gone.next_tick, gone.next_fires()) == (None, None, [])


def _change_rule(job: Job, rule: WhenClosed) -> NewJob:
    return a_job(msgspec.structs.replace(job.spec, when_closed=rule), id=job.id)


async def test_a_calendar_change_makes_jobs_that_move_ticks_ahead_due_for_planning(harness: Harness) -> None:
    far_off = CalendarSpec(holidays=(Holiday(date="2999-12-25"),))
    await harness.store.put_calendar("default", "office", far_off, ADA)
    job = await harness.put(a_job(spec_with_calendar(WhenClosed.BEFORE)))
    await fire_by_calendars(harness)
    planned = await harness.job(job.id)
    await harness.store.put_calendar("default", "office", HOLIDAYS, ADA)
    changed = await harness.job(job.id)
    assert (changed.next_tick, changed.rev, changed.calendar_rev) == (planned.next_tick, planned.rev + 1, 2)
    assert changed.next_fire is not None
    assert changed.next_fire <= await harness.now()
    assert await harness.ticks(job.id) == []
