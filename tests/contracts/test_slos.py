"""What schedules owe: judged when it is time, told once."""

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


def settled(due: SloDue, next_check: int | None, *events: str) -> SloSettled:
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


async def test_what_is_settled_is_looked_at_when_it_said(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(slo=SLO)))
    [due] = await harness.store.slos_due(10)
    now = await harness.now()
    state = msgspec.structs.replace(due.state, quiet_since=now, last_success=now - HOUR)
    later = msgspec.structs.replace(settled(due, now + HOUR), state=state)
    assert await harness.store.settle_slos([later]) == 1
    assert await harness.store.slos_due(10) == []
    assert await harness.store.slo_states([job.id]) == {job.id: state}
    await harness.advance(HOUR + MINUTE)
    [again] = await harness.store.slos_due(10)
    assert (again.state, again.rev) == (state, due.rev + 1)


async def test_those_that_miss_an_objective_are_found(harness: Harness) -> None:
    late, quiet, fine = [await harness.put(a_job(a_spec(name=name, slo=SLO))) for name in ("late", "quiet", "fine")]
    other = await harness.put(a_job(a_spec(name="other", slo=SLO), tenant="acme"))
    now = await harness.now()
    missed = {late.id: {"late_since": now}, quiet.id: {"quiet_since": now}, other.id: {"late_since": now}, fine.id: {}}
    states = {
        due.job.id: msgspec.structs.replace(due, state=msgspec.structs.replace(due.state, **missed[due.job.id]))
        for due in await harness.store.slos_due(10)
    }
    assert await harness.store.slos_missed(None, 10) == {}
    assert await harness.store.settle_slos([settled(due, now + HOUR) for due in states.values()]) == 4
    expected = {job: due.state for job, due in states.items() if job != fine.id}
    assert await harness.store.slos_missed(None, 10) == expected
    assert await harness.store.slos_missed("acme", 10) == {other.id: expected[other.id]}
    assert await harness.store.slos_missed("nobody", 10) == {}
    assert len(await harness.store.slos_missed(None, 2)) == 2


async def test_of_two_who_judge_at_once_one_is_heard(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(slo=SLO)))
    await harness.store.attach_reader("test")
    [due] = await harness.store.slos_due(10)
    verdict = settled(due, await harness.now() + HOUR, MISSED)
    heard = await asyncio.gather(*(harness.store.settle_slos([verdict]) for _ in range(4)))
    assert sorted(heard) == [0, 0, 0, 1]
    assert [(kind, *map(str, ids)) for kind, ids in await harness.told("test")] == [(MISSED, str(job.id))]
    await harness.store.detach_reader("test")


async def test_what_happened_between_two_looks_is_told_in_its_order(harness: Harness) -> None:
    one, other = await harness.put(a_job(a_spec(slo=SLO))), await harness.put(a_job(a_spec(name="other", slo=SLO)))
    await harness.store.attach_reader("test")
    events = {one.id: (RECOVERED, MISSED), other.id: (MISSED, RECOVERED, MISSED)}
    due = await harness.store.slos_due(10)
    later = await harness.now() + HOUR
    assert await harness.store.settle_slos([settled(job, later, *events[job.job.id]) for job in due]) == 2
    told = await harness.told("test")
    for job, happened in events.items():
        assert [kind for kind, ids in told for known in ids if str(known) == str(job)] == list(happened)
    await harness.store.detach_reader("test")


async def test_the_last_success_is_known(harness: Harness) -> None:
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


async def test_new_objectives_begin_anew_and_none_end_it(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    [first] = await harness.store.slos_due(10)
    await harness.store.settle_slos([settled(first, await harness.now() + DAY)])
    await harness.put(a_job(msgspec.structs.replace(spec, priority=2), id=job.id))
    assert await harness.store.slos_due(10) == []
    await harness.put(a_job(msgspec.structs.replace(spec, slo=Slo(start_within=MINUTE)), id=job.id))
    [again] = await harness.store.slos_due(10)
    assert again.rev > first.rev + 1
    assert await harness.store.settle_slos([settled(first, None)]) == 0
    await harness.put(a_job(msgspec.structs.replace(spec, slo=None), id=job.id))
    assert await harness.store.slos_due(10) == []
    assert await harness.store.slo_states([job.id]) == {}


async def test_what_is_over_is_judged_no_more_until_it_comes_back(harness: Harness) -> None:
    spec = a_spec(slo=SLO)
    job = await harness.put(a_job(spec))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    [due] = await harness.store.slos_due(10)
    assert due.job.state is JobState.CANCELLED
    assert await harness.store.settle_slos([settled(due, None)]) == 1
    assert await harness.store.slos_due(10) == []
    back = await harness.put(a_job(spec))
    assert [one.job.id for one in await harness.store.slos_due(10)] == [back.id]
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await harness.store.purge([job.id], Author("ada")) == [job.id]
    assert await harness.store.slos_due(10) == []
    assert begin(5).judged == 5
