"""Events of workers and dependencies, and the facts that the store returns about the subjects of events."""

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.events.events import MAX_EVENT_ERROR, id_of_worker
from mainspring.core.model.runs.completion import complete_cancel
from mainspring.core.model.runs.new_run import About
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import SHORT_LEASE, Harness

READER = "sink"


async def worker_events(harness: Harness) -> list[tuple[str, tuple[str, ...]]]:
    return [(batch.kind, batch.runs) for batch in await harness.events(READER, of_workers=True)]


async def test_a_joining_and_a_leaving_worker_emit_events_without_tenant(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    first = await harness.worker()
    await harness.store.join("a scheduler", MINUTE)
    await harness.store.close_session(first)
    await harness.store.close_session(first)
    name = id_of_worker(first)
    assert await worker_events(harness) == [("worker.joined", (name,)), ("worker.left", (name,))]
    assert {batch.tenant for batch in await harness.events(READER, of_workers=True)} == {""}


async def test_a_worker_with_an_expired_lease_emits_worker_lost_once(harness: Harness) -> None:
    lost, closed = await harness.worker(SHORT_LEASE), await harness.worker(SHORT_LEASE)
    kept = await harness.worker()
    await harness.store.join("a scheduler", SHORT_LEASE)
    await harness.store.close_session(closed)
    await harness.store.attach_reader(READER)
    await harness.advance(HOUR)
    await harness.store.lost_runs(10)
    events = await worker_events(harness)
    # In a sharded store every server emits the event.
    assert set(events) == {("worker.lost", (id_of_worker(lost),))}
    await harness.store.lost_runs(10)
    await harness.store.close_session(lost)
    assert await worker_events(harness) == events
    await harness.store.close_session(kept)


async def test_worker_events_need_a_reader(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.store.attach_reader(READER)
    assert await worker_events(harness) == []
    await harness.store.detach_reader(READER)
    await harness.store.close_session(worker)
    await harness.store.attach_reader(READER)
    assert await worker_events(harness) == []


async def test_dependency_resolved_is_emitted_before_run_queued(harness: Harness) -> None:
    [parent] = await harness.start(a_run())
    child = a_run(after=[parent])
    await harness.submit(child)
    await harness.store.attach_reader(READER)
    await harness.succeed(parent)
    while await harness.store.resolve(10):
        pass
    assert await harness.unread_events(READER) == [
        ("run.succeeded", (parent.id,)),
        ("dependency.resolved", (child.id,)),
        ("run.queued", (child.id,)),
    ]


async def test_a_skipped_child_or_one_that_never_waited_emits_no_dependency_resolved(harness: Harness) -> None:
    [failed, ended] = await harness.start(a_run(policy=a_policy(retries=0)), a_run())
    await harness.succeed(ended)
    skipped = a_run(after=[failed])
    await harness.submit(skipped)
    await harness.store.attach_reader(READER)
    await harness.submit(a_run(after=[ended]))
    await harness.fail(failed)
    while await harness.store.resolve(10):
        pass
    kinds = [kind for kind, _ in await harness.unread_events(READER)]
    assert sorted(kinds) == ["run.failed", "run.skipped", "run.submitted"]


async def test_the_constant_facts_of_a_run_are_known_in_every_state(harness: Harness) -> None:
    since = await harness.now()
    waiting, queued = a_run(delay=HOUR), a_run(queue="mail")
    [ended] = await harness.start(a_run())
    await harness.submit(waiting, queued)
    await harness.succeed(ended)
    found = {facts.id: facts for facts in await harness.store.read_run_facts([waiting.id, queued.id, ended.id], since)}
    assert found.keys() == {waiting.id, queued.id, ended.id}
    assert {facts.task for facts in found.values()} == {"greet"}
    assert (found[queued.id].queue, found[queued.id].ended) == ("mail", False)
    assert (found[ended.id].queue, found[ended.id].ended, found[ended.id].attempt) == ("default", True, 1)
    assert await harness.store.read_run_facts([a_run().id], since) == []
    assert await harness.store.read_run_facts([], since) == []


async def test_the_facts_of_a_run_have_its_tags_in_every_state(harness: Harness) -> None:
    since = await harness.now()
    about = About(tags=("4K", "job:e-1"))
    waiting, queued, plain = a_run(delay=HOUR, about=about), a_run(queue="mail", about=about), a_run(delay=HOUR)
    [ended] = await harness.start(a_run(about=about))
    await harness.submit(waiting, queued, plain)
    await harness.succeed(ended)
    found = await harness.store.read_run_facts([waiting.id, queued.id, ended.id, plain.id], since)
    tags = dict.fromkeys([waiting.id, queued.id, ended.id], ("4K", "job:e-1"))
    assert {facts.id: facts.tags for facts in found} == {**tags, plain.id: ()}


async def test_the_facts_of_an_ended_run_have_its_outcome(harness: Harness) -> None:
    since = await harness.now()
    failed, cancelled = await harness.start(a_run(policy=a_policy(retries=0)), a_run())
    await harness.fail(failed, error="x" * 2 * MAX_EVENT_ERROR + " the cause")
    await harness.complete(complete_cancel(cancelled))
    found = {facts.id: facts for facts in await harness.store.read_run_facts([failed.id, cancelled.id], since)}
    assert found[failed.id].reason == "error"
    error = found[failed.id].error
    assert error is not None
    assert (len(error), error[-9:]) == (MAX_EVENT_ERROR, "the cause")
    assert (found[cancelled.id].reason, found[cancelled.id].error) == ("cancelled", None)


async def test_the_facts_of_a_tick_have_job_and_scheduled_time(harness: Harness) -> None:
    now = await harness.now()
    job = await harness.put(a_job(a_spec(schedule=every(MINUTE, start=now + 30 * SECOND))))
    await harness.advance(MINUTE)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    assert entry.run_id is not None
    [facts] = await harness.store.read_run_facts([entry.run_id], now)
    assert (facts.job_id, facts.scheduled_at) == (job.id, entry.scheduled_at)


async def test_the_facts_of_a_worker_are_known_after_it_left(harness: Harness) -> None:
    here, left = await harness.worker(), await harness.worker()
    await harness.store.close_session(left)
    found = await harness.store.read_worker_facts([here, left])
    assert {facts.id for facts in found} == {here, left}
    assert all(facts.name for facts in found)


async def test_readers_report_their_lag(harness: Harness) -> None:
    await harness.store.attach_reader("behind")
    before = await harness.now()
    await harness.submit(a_run())
    await harness.store.attach_reader("new")
    await harness.let_transactions_end()
    behind, new = await harness.store.readers()
    assert (behind.name, new.name, new.oldest) == ("behind", "new", None)
    assert behind.oldest is not None
    assert before <= behind.oldest <= await harness.now()
    [batch] = await harness.events("behind")
    await harness.store.acknowledge("behind", batch.position)
    assert (await harness.store.readers())[0].oldest is None
