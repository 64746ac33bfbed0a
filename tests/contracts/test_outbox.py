"""The outbox: every change of a run, written in its transaction while a reader is attached."""

import asyncio
from collections.abc import Sequence

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import (
    complete_cancel,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from tests.support.builders import a_job, a_policy, a_run, a_spec, every, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids

READER = "dashboard"


class EventReader:
    """A reader that returns and acknowledges the new events by kind."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def new(self) -> dict[str, set[RunId]]:
        events: dict[str, set[RunId]] = {}
        for batch in await self._harness.events(READER):
            events.setdefault(batch.kind, set()).update(batch.runs)
            await self._harness.store.acknowledge(READER, batch.position)
        return events


async def attach_reader(harness: Harness) -> EventReader:
    await harness.store.attach_reader(READER)
    return EventReader(harness)


def id_set(*runs: NewRun | HeldRun) -> set[RunId]:
    return set(ids(runs))


async def test_without_readers_no_event_is_written(harness: Harness) -> None:
    await harness.submit(a_run())
    await harness.store.attach_reader(READER)
    assert await harness.events(READER) == []
    await harness.store.detach_reader(READER)
    await harness.submit(a_run())
    await harness.store.attach_reader(READER)
    assert await harness.events(READER) == []


async def test_events_of_one_kind_in_one_transaction_are_one_batch(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    runs = some_runs(5) + some_runs(2, delay=HOUR)
    before = await harness.now()
    await harness.submit(*runs)
    [batch] = await harness.events(READER)
    assert batch.kind == "run.submitted"
    assert sorted(batch.runs) == sorted(ids(runs))
    assert before <= batch.at <= await harness.now()


async def test_a_new_run_emits_run_submitted_in_every_initial_state(harness: Harness) -> None:
    stream = await attach_reader(harness)
    queued, waiting, holder, blocked = a_run(), a_run(delay=HOUR), a_run(key="a"), a_run(key="a")
    await harness.submit(queued, waiting, holder, blocked)
    assert await stream.new() == {"run.submitted": id_set(queued, waiting, holder, blocked)}
    await harness.submit(queued)
    assert await stream.new() == {}


async def test_the_events_of_a_run_are_emitted_in_order(harness: Harness) -> None:
    stream = await attach_reader(harness)
    run = a_run(delay=MINUTE)
    await harness.submit(run)
    await harness.advance(2 * MINUTE)
    await harness.stage()
    [held] = await harness.claim(await harness.worker())
    await harness.succeed(held)
    batches = await harness.events(READER)
    assert [(batch.kind, batch.runs) for batch in batches] == [
        ("run.submitted", (run.id,)),
        ("run.queued", (run.id,)),
        ("run.started", (run.id,)),
        ("run.succeeded", (run.id,)),
    ]
    positions = [batch.position for batch in batches]
    assert positions == sorted(set(positions))
    assert [batch.at for batch in batches] == sorted(batch.at for batch in batches)
    await stream.new()


async def test_the_events_of_one_call_are_ordered_by_their_first_run(harness: Harness) -> None:
    one, two, three = await harness.start(a_run(), a_run(policy=a_policy(retries=0)), a_run())
    await harness.store.attach_reader(READER)
    failure = complete_failure(two, "boom", harness._random, now=await harness.now())
    await harness.complete(complete_success(one, None), failure, complete_success(three, None))
    assert await harness.unread_events(READER) == [("run.succeeded", (one.id, three.id)), ("run.failed", (two.id,))]


async def test_the_event_of_an_attempt_that_is_retried_names_its_cause(harness: Harness) -> None:
    retried, released, put_off, lost = await harness.start(*some_runs(4))
    stream = await attach_reader(harness)
    await harness.fail(retried)
    await harness.complete(complete_release(released), complete_release(put_off, delay=MINUTE))
    await harness.complete(complete_loss(lost, blamed=False))
    assert await stream.new() == {
        "run.retried": id_set(retried),
        "run.released": id_set(released, put_off),
        "run.lost": id_set(lost),
    }


async def test_a_run_returned_by_a_heartbeat_emits_run_released(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    held = await harness.claim(worker)
    stream = await attach_reader(harness)
    await harness.store.heartbeat(worker, MINUTE, [], [], harness.last_claim(worker))
    assert await stream.new() == {"run.released": id_set(*held)}


async def test_every_end_of_a_run_emits_an_event(harness: Harness) -> None:
    succeeded, failed, cancelled = await harness.start(a_run(), a_run(policy=a_policy(retries=0)), a_run())
    expired = a_run(start_within=MINUTE)
    too_late = a_run(deadline=MINUTE)
    dropped = a_run(delay=HOUR)
    await harness.submit(expired, too_late, dropped)
    stream = await attach_reader(harness)
    await harness.succeed(succeeded)
    await harness.fail(failed)
    await harness.complete(complete_cancel(cancelled))
    await harness.store.cancel([dropped.id])
    await harness.advance(2 * MINUTE)
    await harness.store.expire(10)
    assert await stream.new() == {
        "run.succeeded": id_set(succeeded),
        "run.failed": id_set(failed, too_late),
        "run.cancelled": id_set(cancelled, dropped),
        "run.skipped": id_set(expired),
    }


async def test_a_cancel_request_emits_one_event(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    stream = await attach_reader(harness)
    await harness.store.cancel([held.id])
    await harness.store.cancel([held.id])
    assert await stream.new() == {"run.cancel_requested": id_set(held)}
    await harness.complete(complete_release(held))
    assert await stream.new() == {"run.cancelled": id_set(held)}


async def test_the_end_of_a_key_holder_emits_run_queued_of_the_next_in_the_same_transaction(harness: Harness) -> None:
    [held] = await harness.start(a_run(key="a"))
    blocked = a_run(key="a")
    await harness.submit(blocked)
    await harness.store.attach_reader(READER)
    await harness.succeed(held)
    batches = await harness.events(READER)
    assert {batch.kind: batch.runs for batch in batches} == {
        "run.succeeded": (held.id,),
        "run.queued": (blocked.id,),
    }
    assert len({batch.at for batch in batches}) == 1


async def test_a_run_that_becomes_blocked_emits_no_event(harness: Harness) -> None:
    await harness.submit(a_run(key="a"))
    await harness.submit(a_run(key="a", delay=MINUTE))
    await harness.advance(2 * MINUTE)
    stream = await attach_reader(harness)
    await harness.stage()
    assert await stream.new() == {}


async def test_the_run_of_a_tick_emits_run_submitted(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(MINUTE, start=await harness.now() + 30 * SECOND))))
    await harness.advance(MINUTE)
    stream = await attach_reader(harness)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    assert await stream.new() == {"run.submitted": {entry.run_id}}


async def test_a_stale_or_duplicate_completion_emits_no_event(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(dying)
    await harness.complete(complete_release(held))
    stream = await attach_reader(harness)
    await harness.complete(complete_release(held))
    assert await stream.new() == {}


async def test_events_are_returned_until_they_are_acknowledged(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    for _ in range(4):
        await harness.submit(a_run())
    batches = await harness.events(READER)
    assert len(batches) == 4
    assert await harness.events(READER) == batches
    assert await harness.events(READER, 2) == batches[:2]
    await harness.store.acknowledge(READER, batches[1].position)
    assert await harness.events(READER) == batches[2:]
    await harness.store.acknowledge(READER, batches[0].position)
    assert await harness.events(READER) == batches[2:], "an old acknowledgement arrived late"
    await harness.store.acknowledge(READER, batches[3].position)
    assert await harness.events(READER) == []


async def test_each_reader_has_its_own_cursor(harness: Harness) -> None:
    await harness.store.attach_reader("early")
    await harness.submit(a_run())
    await harness.store.attach_reader("late")
    await harness.submit(a_run())
    early, late = await harness.events("early"), await harness.events("late")
    assert len(early) == 2
    assert late == early[1:]
    await harness.store.acknowledge("early", early[1].position)
    assert await harness.events("early") == []
    assert await harness.events("late") == late
    await harness.store.detach_reader("early")
    assert await harness.events("late") == late


async def test_attaching_a_reader_again_keeps_its_cursor(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    await harness.submit(a_run())
    batches = await harness.events(READER)
    await harness.store.attach_reader(READER)
    assert await harness.events(READER) == batches
    await harness.store.detach_reader(READER)
    await harness.store.detach_reader(READER)
    await harness.store.detach_reader("nobody")
    assert await harness.events(READER) == []


async def test_a_reader_misses_no_event_of_concurrent_writers(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    received: list[RunId] = []
    writing = True

    async def read() -> None:
        while True:
            done = not writing
            if done:
                await harness.let_transactions_end()
            batches = await harness.store.events(READER, 7)
            for batch in batches:
                received.extend(batch.runs)
            if batches:
                await harness.store.acknowledge(READER, batches[-1].position)
            elif done:
                return
            await asyncio.sleep(0)

    async def write(runs: Sequence[NewRun]) -> None:
        for run in runs:
            await harness.submit(run)

    reader = asyncio.create_task(read())
    batches = [some_runs(20) for _ in range(4)]
    await asyncio.gather(*map(write, batches))
    writing = False
    await reader
    assert len(received) == len(set(received))
    assert sorted(received) == sorted(run for runs in batches for run in ids(runs))


async def test_a_lost_scheduler_is_not_reported_as_a_lost_worker(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    await harness.store.join("scheduler", MINUTE)
    worker = await harness.worker(MINUTE)
    await harness.move_clock(MINUTE)
    await harness.store.lost_runs(10)
    kinds = [batch.kind for batch in await harness.events(READER, of_workers=True)]
    assert kinds == ["worker.joined", "worker.lost"]
    assert not (await harness.store.heartbeat(worker, MINUTE, [], [], 0)).alive
