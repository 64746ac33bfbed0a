"""Service level objectives of jobs: judged when due, and reported once."""

import asyncio

import msgspec

from mainspring.domain.instant import DAY, HOUR, MINUTE
from mainspring.domain.job import JobState
from mainspring.domain.slo import MISSED, RECOVERED, Slo, begin
from mainspring.ports.access import Author
from mainspring.ports.slos import SloDue, SloSettled
from tests.support.builders import a_job, a_spec, every
from tests.support.store_harness import Harness

SLO = Slo(succeed_every=HOUR)


def judge(due: SloDue, next_check: int | None, *events: str) -> SloSettled:
    return SloSettled(job=due.job.id, rev=due.rev, state=due.state, next_check=next_check, events=events)


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
    assert await harness.store.settle_slos([later]) == 1
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
    assert await harness.store.settle_slos([judge(due, now + HOUR) for due in states.values()]) == 4
    expected = {job: due.state for job, due in states.items() if job != fine.id}
    assert await harness.store.slos_missed(None, 10) == expected
    assert await harness.store.slos_missed("acme", 10) == {other.id: expected[other.id]}
    assert await harness.store.slos_missed("nobody", 10) == {}
    assert len(await harness.store.slos_missed(None, 2)) == 2


async def test_of_two_concurrent_judgements_one_counts(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(slo=SLO)))
    await harness.store.attach_reader("test")
    [due] = await harness.store.slos_due(10)
    verdict = judge(due, await harness.now() + HOUR, MISSED)
    heard = await asyncio.gather(*(harness.store.settle_slos([verdict]) for _ in range(4)))
    assert sorted(heard) == [0, 0, 0, 1]
    assert [(kind, *map(str, ids)) for kind, ids in await harness.unread_events("test")] == [(MISSED, str(job.id))]
    await harness.store.detach_reader("test")


async def test_changes_between_two_judgements_are_emitted_in_order(harness: Harness) -> None:
    one, other = await harness.put(a_job(a_spec(slo=SLO))), await harness.put(a_job(a_spec(name="other", slo=SLO)))
    await harness.store.attach_reader("test")
    events = {one.id: (RECOVERED, MISSED), other.id: (MISSED, RECOVERED, MISSED)}
    due = await harness.store.slos_due(10)
    later = await harness.now() + HOUR
    assert await harness.store.settle_slos([judge(job, later, *events[job.job.id]) for job in due]) == 2
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


async def test_changed_objectives_reset_the_state_and_removing_them_ends_it(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    [first] = await harness.store.slos_due(10)
    await harness.store.settle_slos([judge(first, await harness.now() + DAY)])
    await harness.put(a_job(msgspec.structs.replace(spec, priority=2), id=job.id))
    assert await harness.store.slos_due(10) == []
    await harness.put(a_job(msgspec.structs.replace(spec, slo=Slo(start_within=MINUTE)), id=job.id))
    [again] = await harness.store.slos_due(10)
    assert again.rev > first.rev + 1
    assert await harness.store.settle_slos([judge(first, None)]) == 0
    await harness.put(a_job(msgspec.structs.replace(spec, slo=None), id=job.id))
    assert await harness.store.slos_due(10) == []
    assert await harness.store.slo_states([job.id]) == {}


async def test_a_cancelled_job_is_not_judged_until_it_is_declared_again(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    [due] = await harness.store.slos_due(10)
    assert due.job.state is JobState.CANCELLED
    assert await harness.store.settle_slos([judge(due, None)]) == 1
    assert await harness.store.slos_due(10) == []
    back = await harness.put(a_job(spec))
    assert [one.job.id for one in await harness.store.slos_due(10)] == [back.id]
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await harness.store.purge([job.id], Author("ada")) == [job.id]
    assert await harness.store.slos_due(10) == []
    assert begin(5).judged == 5
