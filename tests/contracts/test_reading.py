"""Reading runs, queues and jobs."""

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.reads import QueueBacklog
from tests.support.builders import a_job, a_run, a_spec, an_id, some_runs
from tests.support.store_harness import Harness


async def test_the_time_of_the_store_moves_with_its_clock(harness: Harness) -> None:
    before = await harness.now()
    await harness.advance(HOUR)
    after = await harness.now()
    assert before + HOUR <= after < before + HOUR + 10 * MINUTE
    assert await harness.now() >= after


async def test_runs_in_every_state_are_returned_in_the_requested_order(harness: Harness) -> None:
    ended, running, queued, waiting, blocked = a_run(), a_run(key="a"), a_run(), a_run(delay=HOUR), a_run(key="a")
    held, _ = await harness.start(ended, running)
    await harness.succeed(held)
    await harness.submit(queued, waiting, blocked)
    asked = [blocked.id, ended.id, an_id(), waiting.id, running.id, queued.id]
    views = await harness.store.runs(asked)
    assert [view and view.id for view in views] == [
        blocked.id,
        ended.id,
        None,
        waiting.id,
        running.id,
        queued.id,
    ]
    assert [view and view.state for view in views] == [
        RunState.BLOCKED,
        RunState.SUCCEEDED,
        None,
        RunState.SCHEDULED,
        RunState.RUNNING,
        RunState.QUEUED,
    ]
    assert await harness.store.runs([]) == []


async def test_a_run_requested_twice_is_returned_twice(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    one, two = await harness.store.runs([run.id, run.id])
    assert one == two
    assert one is not None


async def test_an_ended_run_keeps_its_origin(harness: Harness) -> None:
    run = a_run(task="resize", queue="images", tenant="acme", priority=2)
    [held] = await harness.start(run)
    running = await harness.view(run.id)
    await harness.complete(complete_success(held, b"1"))
    view = await harness.view(run.id)
    assert (view.task, view.queue, view.tenant, view.priority) == ("resize", "images", "acme", 2)
    assert (view.due, view.created_at, view.started_at) == (running.due, running.created_at, running.started_at)
    assert (view.fence, view.attempt, view.lost, view.reason) == (held.fence, 1, 0, "")


async def test_depths_list_every_queue_with_work_by_name(harness: Harness) -> None:
    assert await harness.store.depths() == []
    now = await harness.now()
    old = a_run(queue="b", at=now - HOUR, priority=9)
    await harness.submit(*some_runs(3, queue="a"), *some_runs(2, queue="b"), old, *some_runs(4, queue="c", delay=HOUR))
    await harness.claim(await harness.worker(), 10, queue="a")
    await harness.claim(await harness.worker(), 1, queue="b")
    assert await harness.store.depths() == [
        QueueBacklog(queue="a", queued=0, running=3, oldest_due=None),
        QueueBacklog(queue="b", queued=2, running=1, oldest_due=old.at, oldest_ready=old.at),
    ]


async def test_depths_omit_a_queue_without_work(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert len(await harness.store.depths()) == 1
    await harness.succeed(held)
    assert await harness.store.depths() == []


async def test_a_job_is_found_by_its_tenant_and_name(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(name="report")))
    assert await harness.store.job_named("default", "report") == job.id
    assert await harness.store.job_named("default", "repor") is None
    assert await harness.store.job_named("acme", "report") is None
