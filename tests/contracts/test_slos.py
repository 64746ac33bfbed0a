"""Service level objectives of jobs: judged when due, and reported once."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.schedules.job import JobState
from mainspring.core.model.schedules.schedule import compute_due
from mainspring.core.model.schedules.slo import MISSED, RECOVERED, Slo, begin
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.slo.service import SloKeeper
from tests.support.builders import a_job, a_spec, every
from tests.support.store_harness import Harness, ids

SLO = Slo(succeed_every=HOUR)


def judge(due: SloDue, next_check: int | None, *events: str) -> SloResult:
    return SloResult(job=due.job.id, rev=due.rev, state=due.state, next_check=next_check, events=events)


async def test_a_job_is_judged_from_when_it_is_declared_with_objectives(harness: Harness) -> None:
    before = await harness.now()
    plain = await harness.put(a_job())
    job = await harness.put(a_job(a_spec(schedule=every(MINUTE), slo=SLO)))
    [due] = await harness.store.slos_due(10)
    assert due.job.id == job.id
    assert due.job.spec.slo == SLO
    assert due.last_success is None
    assert before <= due.state.judged == due.state.watched_since <= await harness.now()
    assert await harness.store.slo_states([plain.id, job.id]) == {job.id: due.state}


async def test_a_judged_job_is_due_again_at_the_requested_time(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(slo=SLO)))
    [due] = await harness.store.slos_due(10)
    now = await harness.now()
    state = msgspec.structs.replace(due.state, quiet_since=now, last_success=now - HOUR)
    later = msgspec.structs.replace(judge(due, now + HOUR), state=state)
    assert await harness.store.save_slos([later]) == 1
    assert await harness.store.slos_due(10) == []
    assert await harness.store.slo_states([job.id]) == {job.id: state}
    await harness.advance(HOUR + MINUTE)
    [again] = await harness.store.slos_due(10)
    assert (again.state, again.rev) == (state, due.rev + 1)


async def test_jobs_that_miss_an_objective_are_found(harness: Harness) -> None:
    late, quiet, fine = [await harness.put(a_job(a_spec(name=name, slo=SLO))) for name in ("late", "quiet", "fine")]
    other = await harness.put(a_job(a_spec(name="other", slo=SLO), tenant="acme"))
    now = await harness.now()
    missed = {late.id: {"late_since": now}, quiet.id: {"quiet_since": now}, other.id: {"late_since": now}, fine.id: {}}
    states = {
        due.job.id: msgspec.structs.replace(due, state=msgspec.structs.replace(due.state, **missed[due.job.id]))
        for due in await harness.store.slos_due(10)
    }
    assert await harness.store.slos_missed(None, 10) == {}
    assert await harness.store.save_slos([judge(due, now + HOUR) for due in states.values()]) == 4
    expected = {job: due.state for job, due in states.items() if job != fine.id}
    assert await harness.store.slos_missed(None, 10) == expected
    assert await harness.store.slos_missed("acme", 10) == {other.id: expected[other.id]}
    assert await harness.store.slos_missed("nobody", 10) == {}
    assert len(await harness.store.slos_missed(None, 2)) == 2


async def test_of_two_concurrent_judgements_one_counts(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(slo=SLO)))
    await harness.store.attach_reader("test")
    [due] = await harness.store.slos_due(10)
    result = judge(due, await harness.now() + HOUR, MISSED)
    heard = await asyncio.gather(*(harness.store.save_slos([result]) for _ in range(4)))
    assert sorted(heard) == [0, 0, 0, 1]
    assert [(kind, *map(str, ids)) for kind, ids in await harness.unread_events("test")] == [(MISSED, str(job.id))]
    await harness.store.detach_reader("test")


async def test_changes_between_two_judgements_are_emitted_in_order(harness: Harness) -> None:
    one, other = await harness.put(a_job(a_spec(slo=SLO))), await harness.put(a_job(a_spec(name="other", slo=SLO)))
    await harness.store.attach_reader("test")
    events = {one.id: (RECOVERED, MISSED), other.id: (MISSED, RECOVERED, MISSED)}
    due = await harness.store.slos_due(10)
    later = await harness.now() + HOUR
    assert await harness.store.save_slos([judge(job, later, *events[job.job.id]) for job in due]) == 2
    emitted = await harness.unread_events("test")
    for job, happened in events.items():
        assert [kind for kind, ids in emitted for known in ids if str(known) == str(job)] == list(happened)
    await harness.store.detach_reader("test")


async def test_a_due_job_has_its_last_success(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR), slo=SLO)))
    assert job.next_fire is not None
    for _ in range(2):
        await harness.advance(HOUR)
        await harness.fire_due()
        held = await harness.claim(await harness.worker())
        before = await harness.now()
        await harness.succeed(*held)
    [due] = await harness.store.slos_due(10)
    assert due.last_success is not None
    assert before <= due.last_success <= await harness.now()


@pytest.mark.parametrize("retried", [False, True])
async def test_a_tick_caught_up_too_late_is_missed_whether_or_not_its_run_is_retried(
    harness: Harness, retried: bool
) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR), slo=Slo(start_within=MINUTE))))
    await harness.store.attach_reader("test")
    assert job.next_fire is not None
    await harness.advance(job.next_fire - await harness.now() + 10 * MINUTE)
    await harness.fire_due()
    # Catch-up makes the run due now, and it starts at once.
    held = await harness.claim(await harness.worker())
    assert [run.due > job.next_fire + 9 * MINUTE for run in await harness.store.runs(ids(held)) if run] == [True]
    if retried:
        await harness.fail(*held)
    assert await judge_all(harness) == [MISSED]
    await harness.store.detach_reader("test")


async def test_a_tick_is_not_missed_before_its_jitter_has_passed(harness: Harness) -> None:
    spec = a_spec(schedule=every(HOUR, jitter=59 * MINUTE), slo=Slo(start_within=MINUTE))
    new = a_job(spec)
    tick = await harness.now() // HOUR * HOUR + HOUR
    while compute_due(spec.schedule, tick, new.id) < tick + 10 * MINUTE:
        # The jitter is drawn from the id.
        new = a_job(spec)
    due = compute_due(spec.schedule, tick, new.id)
    await harness.put(new)
    await harness.store.attach_reader("test")
    await harness.advance(tick - await harness.now() + 5 * MINUTE)
    # No scheduler has fired the tick yet.
    assert await judge_all(harness) == []
    await harness.fire_due()
    await harness.advance(due - await harness.now() + MINUTE // 2)
    await harness.stage()
    assert len(await harness.claim(await harness.worker())) == 1
    await harness.advance(2 * MINUTE)
    assert await judge_all(harness) == []
    await harness.store.detach_reader("test")


async def test_a_changed_schedule_is_judged_from_the_change_and_the_former_one_until_then(harness: Harness) -> None:
    spec = a_spec(schedule=every(HOUR), slo=Slo(start_within=MINUTE))
    job = await harness.put(a_job(spec))
    await harness.store.attach_reader("test")
    assert job.next_fire is not None
    await harness.advance(job.next_fire - await harness.now() + SECOND)
    await harness.fire_due()
    worker = await harness.worker()
    assert len(await harness.claim(worker)) == 1
    await harness.advance(2 * MINUTE)
    assert await judge_all(harness) == []
    # The next check would be an hour later, and no tick of the new schedule was expected before now.
    await harness.advance(38 * MINUTE)
    await harness.put(a_job(msgspec.structs.replace(spec, schedule=every(15 * MINUTE)), id=job.id))
    assert await judge_all(harness) == []
    await harness.advance(10 * MINUTE)
    assert await judge_all(harness) == [MISSED]
    await harness.store.detach_reader("test")


@pytest.mark.parametrize("started", [False, True])
async def test_a_late_tick_of_the_former_schedule_is_missed(harness: Harness, started: bool) -> None:
    spec = a_spec(schedule=every(HOUR), slo=Slo(start_within=10 * MINUTE))
    job = await harness.put(a_job(spec))
    await harness.store.attach_reader("test")
    assert job.next_fire is not None
    await harness.advance(job.next_fire - await harness.now() + SECOND)
    await harness.fire_due()
    await harness.advance(5 * MINUTE)
    await harness.put(a_job(msgspec.structs.replace(spec, schedule=every(45 * MINUTE)), id=job.id))
    if started:
        assert len(await harness.claim(await harness.worker())) == 1
    await harness.advance(6 * MINUTE)
    assert await judge_all(harness) == ([] if started else [MISSED])
    await harness.store.detach_reader("test")


async def test_a_cancelled_job_that_is_declared_again_is_judged_from_then_on(harness: Harness) -> None:
    spec = a_spec(schedule=every(HOUR), slo=Slo(start_within=MINUTE))
    job = await harness.put(a_job(spec))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    await harness.advance(3 * HOUR)
    before = await harness.now()
    await harness.put(a_job(spec))
    [due] = await harness.store.slos_due(10)
    assert before <= due.state.judged <= await harness.now()


async def judge_all(harness: Harness) -> list[str]:
    """Check the objectives once, as a scheduler does. Returns the reported events in order."""
    await SloKeeper(harness.store, LocalWakeups(), SystemClock()).tick()
    return [kind for kind, _ in await harness.unread_events("test") if kind in (MISSED, RECOVERED)]


async def test_changed_objectives_reset_the_state_and_removing_them_ends_it(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    [first] = await harness.store.slos_due(10)
    await harness.store.save_slos([judge(first, await harness.now() + DAY)])
    await harness.put(a_job(msgspec.structs.replace(spec, priority=2), id=job.id))
    assert await harness.store.slos_due(10) == []
    await harness.put(a_job(msgspec.structs.replace(spec, slo=Slo(start_within=MINUTE)), id=job.id))
    [again] = await harness.store.slos_due(10)
    assert again.rev > first.rev + 1
    assert await harness.store.save_slos([judge(first, None)]) == 0
    await harness.put(a_job(msgspec.structs.replace(spec, slo=None), id=job.id))
    assert await harness.store.slos_due(10) == []
    assert await harness.store.slo_states([job.id]) == {}


async def test_a_cancelled_job_is_not_judged_until_it_is_declared_again(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    [due] = await harness.store.slos_due(10)
    assert due.job.state is JobState.CANCELLED
    assert await harness.store.save_slos([judge(due, None)]) == 1
    assert await harness.store.slos_due(10) == []
    back = await harness.put(a_job(spec))
    assert [one.job.id for one in await harness.store.slos_due(10)] == [back.id]
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await harness.store.purge([job.id], Author("ada")) == [job.id]
    assert await harness.store.slos_due(10) == []
    assert begin(5).judged == 5
