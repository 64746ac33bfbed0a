"""Data centers: one tick makes a run in each of them, and another one takes over when one is gone."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND, Instant
from mainspring.core.model.cluster.datacenters import ALL, Preference, at_home
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Fire, Job, JobState, Overlap, tick_run_id
from mainspring.core.model.schedules.spread import NOWHERE, spread
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_fire, a_job, a_policy, a_run, a_spec, a_tick, a_worker, an_id, every
from tests.support.store_harness import Harness, ids

FAR = ("eu", "us")


async def a_worker_in(harness: Harness, place: str, *labels: str, ttl: int = 365 * DAY) -> SessionId:
    words, home = at_home(tuple(sorted(labels)), place)
    new = msgspec.structs.replace(a_worker(ttl=ttl), labels=words, datacenter=home)
    return await harness.store.open_session(new)


async def a_far_job(harness: Harness, *places: str, overlap: Overlap = Overlap.ALLOW, key: str = "") -> Job:
    spec = msgspec.structs.replace(
        a_spec(schedule=every(DAY), overlap=overlap, policy=a_policy(key=key)), datacenters=places or FAR
    )
    return await harness.put(a_job(spec))


def a_far_fire(job: Job, at: Instant, *places: str) -> Fire:
    return spread(a_fire(job, a_tick(job, at), next_fire=job.next_fire), places or FAR)


async def fire(harness: Harness, job: JobId, at: Instant, *places: str) -> int:
    far = a_far_fire(await harness.job(job), at, *places)
    [fired] = await harness.store.fire(await harness.owner(), [far])
    assert fired.applied
    return fired.runs


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_tick_has_a_run_in_each_data_center(harness: Harness, overlap: Overlap) -> None:
    eu, us, nowhere = await a_worker_in(harness, "eu"), await a_worker_in(harness, "us"), await harness.worker()
    job = await a_far_job(harness, overlap=overlap)
    at = await harness.now() - MINUTE
    assert await fire(harness, job.id, at) == 2
    assert await harness.claim(nowhere) == []
    for worker, place in ((eu, "eu"), (us, "us")):
        [held] = await harness.claim(worker)
        assert held.id == tick_run_id(job.id, at, place)
        assert held.policy.requires == (f"datacenter={place}",)
        assert held.payload == b'{"page":1}'
    entries = await harness.ticks(job.id)
    assert [(entry.target, entry.decision, entry.run_id) for entry in entries] == [
        (place, "run", tick_run_id(job.id, at, place)) for place in FAR
    ]


async def test_a_tick_is_recorded_once_per_data_center(harness: Harness) -> None:
    job = await a_far_job(harness)
    at = await harness.now() - MINUTE
    owner = await harness.owner()
    answers = await asyncio.gather(*(harness.store.fire(owner, [a_far_fire(job, at)]) for _ in range(4)))
    assert sorted(fired.applied for [fired] in answers) == [False, False, False, True]
    # Another plan of the same tick, with one more data center.
    again = a_far_fire(await harness.job(job.id), at, "eu", "us", "asia")
    [fired] = await harness.store.fire(owner, [again])
    assert (fired.applied, fired.runs) == (True, 1)
    assert [entry.target for entry in await harness.ticks(job.id)] == ["asia", "eu", "us"]


async def test_the_overlap_rule_applies_per_data_center(harness: Harness) -> None:
    eu, us = await a_worker_in(harness, "eu"), await a_worker_in(harness, "us")
    job = await a_far_job(harness, overlap=Overlap.SKIP)
    at = await harness.now() - MINUTE
    await fire(harness, job.id, at)
    await harness.succeed(*(await harness.claim(eu)))
    assert await fire(harness, job.id, at + 1) == 1
    entries = await harness.ticks(job.id)
    assert [(entry.target, entry.reason) for entry in entries[2:]] == [("eu", ""), ("us", "overlap")]
    assert len(await harness.claim(eu)) == 1
    assert len(await harness.claim(us)) == 1


async def test_overlap_queue_waits_for_the_run_of_the_same_data_center(harness: Harness) -> None:
    eu, us = await a_worker_in(harness, "eu"), await a_worker_in(harness, "us")
    job = await a_far_job(harness, overlap=Overlap.QUEUE)
    at = await harness.now() - MINUTE
    for number in range(2):
        assert await fire(harness, job.id, at + number) == 2
    assert await fire(harness, job.id, at + 2) == 0
    [first] = await harness.claim(eu)
    assert await harness.claim(eu) == []
    await harness.succeed(first)
    assert ids(await harness.claim(eu)) == [tick_run_id(job.id, at + 1, "eu")]
    assert ids(await harness.claim(us)) == [tick_run_id(job.id, at, "us")]


async def test_overlap_cancel_stops_only_the_run_of_the_same_data_center(harness: Harness) -> None:
    eu = await a_worker_in(harness, "eu")
    job = await a_far_job(harness, overlap=Overlap.CANCEL)
    at = await harness.now() - MINUTE
    await fire(harness, job.id, at)
    [held] = await harness.claim(eu)
    await fire(harness, job.id, at + 1, "us")
    assert await harness.state(tick_run_id(job.id, at, "us")) is RunState.CANCELLED
    assert await harness.state(held.id) is RunState.RUNNING


async def test_an_ordering_key_spans_data_centers(harness: Harness) -> None:
    eu, us = await a_worker_in(harness, "eu"), await a_worker_in(harness, "us")
    job = await a_far_job(harness, key="video")
    assert await fire(harness, job.id, await harness.now()) == 2
    held = await harness.claim(eu) + await harness.claim(us)
    assert len(held) == 1
    await harness.succeed(*held)
    assert len(await harness.claim(eu) + await harness.claim(us)) == 1


async def test_a_retry_stays_in_its_data_center(harness: Harness) -> None:
    eu, us = await a_worker_in(harness, "eu"), await a_worker_in(harness, "us")
    job = await a_far_job(harness, "eu")
    at = await harness.now() - MINUTE
    await fire(harness, job.id, at, "eu")
    await harness.fail(*(await harness.claim(eu)))
    await harness.advance(MINUTE)
    await harness.stage()
    assert await harness.claim(us) == []
    assert len(await harness.claim(eu)) == 1


async def test_dropped_ticks_are_recorded_per_data_center(harness: Harness) -> None:
    job = await a_far_job(harness)
    await harness.advance(2 * DAY)
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    entries = await harness.ticks(job.id)
    assert {entry.target for entry in entries} == set(FAR)
    assert {entry.reason for entry in entries} == {"cancelled"}


async def test_a_tick_without_any_data_center_is_recorded_as_skipped(harness: Harness) -> None:
    job = await a_far_job(harness, ALL)
    at = await harness.now() - MINUTE
    nowhere = spread(a_fire(job, a_tick(job, at), next_fire=job.next_fire), ())
    [fired] = await harness.store.fire(await harness.owner(), [nowhere])
    assert (fired.applied, fired.runs) == (True, 0)
    [entry] = await harness.ticks(job.id)
    assert (entry.target, entry.decision, entry.reason) == ("", "skipped", NOWHERE)


async def test_the_ledger_is_ordered_by_time_and_data_center(harness: Harness) -> None:
    job = await a_far_job(harness, "c", "a", "b")
    at = await harness.now() - MINUTE
    for number in range(2):
        await fire(harness, job.id, at + number, "c", "a", "b")
    entries = await harness.store.ledger(job.id, at, at + 2, 4)
    assert [(entry.scheduled_at - at, entry.target) for entry in entries] == [(0, "a"), (0, "b"), (0, "c"), (1, "a")]


async def test_a_new_version_has_its_own_payload_in_a_data_center(harness: Harness) -> None:
    eu = await a_worker_in(harness, "eu")
    job = await a_far_job(harness, "eu")
    at = await harness.now() - MINUTE
    await fire(harness, job.id, at, "eu")
    await harness.put(msgspec.structs.replace(a_job(job.spec, id=job.id), payload=b'{"page":2}'))
    await fire(harness, job.id, at + 1, "eu")
    held = await harness.claim(eu)
    assert sorted(run.payload for run in held) == [b'{"page":1}', b'{"page":2}']


async def test_each_job_and_data_center_has_its_own_payload_and_policy(harness: Harness) -> None:
    workers = {place: await a_worker_in(harness, place) for place in FAR}
    jobs = [await a_far_job(harness) for _ in range(3)]
    for number, job in enumerate(jobs):
        await harness.put(msgspec.structs.replace(a_job(job.spec, id=job.id), payload=b"%d" % number))
    at = await harness.now() - MINUTE
    for job in jobs:
        assert await fire(harness, job.id, at) == 2
    for place, worker in workers.items():
        held = {run.id: run for run in await harness.claim(worker)}
        runs = [held[tick_run_id(job.id, at, place)] for job in jobs]
        assert [run.payload for run in runs] == [b"0", b"1", b"2"]
        assert {run.policy.requires for run in runs} == {(f"datacenter={place}",)}


async def test_data_centers_are_listed_with_their_sessions(harness: Harness) -> None:
    store = harness.store
    name, other = f"p{an_id()[:12]}", f"q{an_id()[:12]}"
    gone = await a_worker_in(harness, name, ttl=SECOND)
    leaving = await a_worker_in(harness, other)
    await store.drain(leaving, Author("anne"))
    scheduler = await store.join("scheduler", 365 * DAY)
    await store.set_datacenter(scheduler, other, "1.2.3")
    before = await harness.now()
    await harness.advance(MINUTE)
    places = {place.name: place for place in await store.datacenters()}
    assert (places[name].workers, places[name].draining, places[name].schedulers) == (0, 0, 0)
    assert (places[other].workers, places[other].draining, places[other].schedulers) == (0, 1, 1)
    [view] = [view for view in await store.sessions("scheduler") if view.id == scheduler]
    assert (view.datacenter, view.version) == (other, "1.2.3")
    seen, alive = places[name].seen_at, places[other].seen_at
    assert (seen or 0) <= before + SECOND
    assert (alive or 0) >= before + MINUTE
    assert gone


def an_order(*places: str, seconds: int = 30) -> str:
    return Preference(places, seconds * SECOND).word


async def test_the_next_data_center_takes_over_after_the_first_has_been_gone_long_enough(
    harness: Harness,
) -> None:
    store = harness.store
    word = an_order("us", "eu", seconds=31)
    us, eu = await a_worker_in(harness, "us", ttl=10 * SECOND), await a_worker_in(harness, "eu")
    await harness.submit(a_run(requires=(word,)))
    await store.serve_orders()
    assert await harness.claim(eu) == []
    assert len(await harness.claim(us)) == 1
    run = a_run(requires=(word,))
    await harness.submit(run)
    await harness.advance(35 * SECOND)
    await store.serve_orders()
    assert await harness.claim(eu) == [], "gone for 25 seconds"
    await harness.advance(10 * SECOND)
    await store.serve_orders()
    assert ids(await harness.claim(eu)) == [run.id]
    # The first data center is back.
    back = await a_worker_in(harness, "us")
    again = a_run(requires=(word,))
    await harness.submit(again)
    [order] = [order for order in await store.serve_orders() if order.word == word]
    assert (order.serving, order.why) == ("us", "")
    assert await harness.claim(eu) == []
    assert ids(await harness.claim(back)) == [again.id]


async def test_a_data_center_without_any_session_is_waited_for_as_long(harness: Harness) -> None:
    store = harness.store
    word = an_order(f"z{an_id()[:12]}", "eu", seconds=60)
    eu = await a_worker_in(harness, "eu")
    run = a_run(requires=(word,))
    await harness.submit(run)
    await store.serve_orders()
    assert await harness.claim(eu) == []
    await harness.advance(61 * SECOND)
    await store.serve_orders()
    assert ids(await harness.claim(eu)) == [run.id]


async def test_a_run_with_preferred_data_centers_still_needs_its_other_labels(harness: Harness) -> None:
    store = harness.store
    word = an_order("us", "eu", seconds=32)
    plain, gpu = await a_worker_in(harness, "us"), await a_worker_in(harness, "us", "gpu=a100")
    run = a_run(requires=(word, "gpu=a100"))
    await harness.submit(run)
    await store.serve_orders()
    assert await harness.claim(plain) == []
    assert ids(await harness.claim(gpu)) == [run.id]


async def test_the_ledger_has_the_move_to_another_data_center_and_back(harness: Harness) -> None:
    store = harness.store
    word = an_order("us", "eu", seconds=33)
    await a_worker_in(harness, "us", ttl=10 * SECOND)
    await a_worker_in(harness, "eu")
    spec = a_spec(schedule=every(DAY), policy=a_policy(requires=(word,)))
    job = await harness.put(a_job(spec))
    at = await harness.now() - MINUTE
    [fired] = await store.fire(await harness.owner(), [a_fire(job, a_tick(job, at), next_fire=job.next_fire)])
    assert fired.runs == 1
    await store.serve_orders()
    assert [entry.reason for entry in await harness.ticks(job.id)] == [""]
    await harness.advance(MINUTE)
    await store.serve_orders()
    why = "moved to eu: no live worker in us for 33 s"
    assert [entry.reason for entry in await harness.ticks(job.id)] == [why]
    await a_worker_in(harness, "us")
    await store.serve_orders()
    assert [entry.reason for entry in await harness.ticks(job.id)] == ["moved back to us"]


async def test_loads_are_counted_per_data_center(harness: Harness) -> None:
    store = harness.store
    here, there = f"p{an_id()[:12]}", f"q{an_id()[:12]}"
    worker = await a_worker_in(harness, here)
    await harness.submit(*(a_run(requires=(f"datacenter={here}",)) for _ in range(3)))
    await harness.submit(a_run(requires=(f"datacenter={there}", "gpu=a100")))
    await harness.submit(a_run(requires=(an_order(here, there),)))
    await store.serve_orders()
    await harness.claim(worker, 1)
    loads = {load.name: load for load in await store.datacenter_loads()}
    assert (loads[here].queued, loads[here].running) == (3, 1)
    assert (loads[there].queued, loads[there].running) == (1, 0)
    assert loads[there].oldest_due is not None


async def test_a_job_for_all_data_centers_is_stored_as_declared(harness: Harness) -> None:
    job = await a_far_job(harness, ALL)
    assert (await harness.job(job.id)).spec.datacenters == (ALL,)


async def test_depths_count_runs_that_require_a_data_center_apart(harness: Harness) -> None:
    async def submit(queue: str, place: str = "") -> NewRun:
        run = a_run(queue=queue, requires=(f"datacenter={place}",) if place else ())
        await harness.submit(run)
        return run

    old = await submit("mail", "oslo")
    due = (await harness.view(old.id)).due
    await harness.freeze_clock()
    await harness.move_clock(MINUTE)
    for queue, place in (("mail", "oslo"), ("mail", "eu"), ("mail", ""), ("other", "")):
        await submit(queue, place)
    mail, other = await harness.store.depths()
    assert (mail.queued, mail.running, other.queued, other.pinned) == (4, 0, 1, ())
    # The oldest run does not count in the times of its queue.
    assert mail.oldest_due is not None
    assert mail.oldest_due > due + MINUTE // 2
    assert mail.oldest_ready == mail.oldest_due
    assert [(one.datacenter, one.queued) for one in mail.pinned] == [("eu", 1), ("oslo", 2)]
    oslo = mail.pinned[1]
    assert oslo.oldest_due == due
    assert oslo.oldest_ready is not None
    assert oslo.oldest_ready < due + MINUTE // 2
    assert await harness.store.depths("nobody") == []
    assert await harness.store.depths("default") == [mail, other]
    assert len(await harness.claim(await harness.worker(), queue="mail")) == 1
    [mail, _] = await harness.store.depths()
    assert (mail.queued, mail.running, mail.oldest_due, mail.oldest_ready) == (3, 1, None, None)


async def test_depths_follow_an_order_of_preference_to_the_data_center_that_serves_it(harness: Harness) -> None:
    word = an_order("eu", "us", seconds=37)
    await a_worker_in(harness, "us")
    await harness.submit(a_run(requires=(word,)))
    [order] = [order for order in await harness.store.serve_orders() if order.word == word]
    [depth] = await harness.store.depths()
    assert [(one.datacenter, one.queued) for one in depth.pinned] == [(order.serving, 1)]
