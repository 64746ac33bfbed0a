"""Lists of runs, jobs and sessions: filters, tenants, order and pages."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId, SessionId, derived_id, made_at
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Instant
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import About, JobRef, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, Page, RunFilter, Standings
from mainspring.core.ports.storage.reads import QueueBacklog
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, an_id, every, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids

pytestmark = pytest.mark.api

T = TypeVar("T")
ANY = RunFilter(tenant=None)


def make_id(at: Instant, number: int = 0) -> RunId:
    """Make an id with a given timestamp."""
    return RunId(derived_id(at, 0, number))


async def pages(ask: Callable[[str | None], Awaitable[Page[T]]], limit: int) -> list[T]:
    items: list[T] = []
    after: str | None = None
    for _ in range(1_000):
        page = await ask(after)
        assert len(page.items) <= limit
        items += page.items
        if page.after is None:
            return items
        assert after is None or page.after < after, "the cursor moves"
        after = page.after
    raise AssertionError("there is no last page")


async def listed(harness: Harness, wanted: RunFilter, limit: int = 1_000) -> list[RunView]:
    async def ask(after: str | None) -> Page[RunView]:
        return await harness.store.list_runs(wanted, None if after is None else RunId(after), limit)

    return await pages(ask, limit)


async def found(harness: Harness, **wanted: object) -> list[RunId]:
    """Return the runs of the default tenant that match a filter."""
    return [view.id for view in await listed(harness, msgspec.structs.replace(RunFilter(tenant="default"), **wanted))]


async def jobs_listed(harness: Harness, wanted: JobFilter, limit: int = 1_000) -> list[Job]:
    async def ask(after: str | None) -> Page[Job]:
        return await harness.store.list_jobs(wanted, None if after is None else JobId(after), limit)

    return await pages(ask, limit)


async def jobs_found(harness: Harness, **wanted: object) -> list[JobId]:
    base = JobFilter(tenant="default")
    return [job.id for job in await jobs_listed(harness, msgspec.structs.replace(base, **wanted))]


async def one_of_each(harness: Harness) -> dict[RunState, RunId]:
    """Create one run in every state, in the order of the states."""
    runs = {
        RunState.SKIPPED: a_run(queue="none", start_within=MINUTE),
        RunState.FAILED: a_run(queue="a", policy=a_policy(retries=0)),
        RunState.SUCCEEDED: a_run(queue="a"),
        RunState.CANCELLING: a_run(queue="a"),
        RunState.RUNNING: a_run(queue="a", key="k"),
        RunState.CANCELLED: a_run(delay=HOUR),
        RunState.BLOCKED: a_run(key="k"),
        RunState.SCHEDULED: a_run(delay=HOUR),
        RunState.QUEUED: a_run(),
    }
    failed, succeeded, cancelling, _ = await harness.start(
        *(run for run in runs.values() if run.queue == "a"),
    )
    await harness.submit(*(run for run in runs.values() if run.queue != "a"))
    await harness.fail(failed)
    await harness.succeed(succeeded)
    await harness.store.cancel([cancelling.id, runs[RunState.CANCELLED].id])
    await harness.advance(2 * MINUTE)
    await harness.store.expire(10)
    return {state: run.id for state, run in runs.items()}


async def test_an_empty_store_lists_an_empty_page(harness: Harness) -> None:
    assert await harness.store.list_runs(ANY, None, 10) == Page([], None)
    assert await harness.store.list_jobs(JobFilter(tenant=None), None, 10) == Page([], None)


async def test_runs_are_listed_newest_first_in_every_state(harness: Harness) -> None:
    runs = await one_of_each(harness)
    assert await found(harness) == sorted(runs.values(), reverse=True)


@pytest.mark.parametrize("state", list(RunState))
async def test_runs_are_found_by_state(harness: Harness, state: RunState) -> None:
    runs = await one_of_each(harness)
    assert await harness.state(runs[state]) is state
    assert await found(harness, states=frozenset({state})) == [runs[state]]
    other = RunState.QUEUED if state is not RunState.QUEUED else RunState.FAILED
    assert await found(harness, states=frozenset({state, other})) == sorted([runs[state], runs[other]], reverse=True)


async def test_run_pages_of_any_size_give_the_same_list(harness: Harness) -> None:
    await one_of_each(harness)
    tagged = [a_run(about=About(tags=("x",)), queue="b", delay=HOUR * (number % 2)) for number in range(5)]
    await harness.submit(*tagged)
    for wanted in (
        ANY,
        RunFilter(tenant="default"),
        RunFilter(tenant="default", tag="x"),
        RunFilter(tenant="default", queue="b", states=frozenset({RunState.SCHEDULED})),
        RunFilter(tenant="default", states=frozenset({RunState.QUEUED, RunState.CANCELLED})),
        RunFilter(tenant="default", text="greet"),
    ):
        everything = await listed(harness, wanted)
        assert len(everything) >= 2
        for limit in range(1, len(everything) + 2):
            assert await listed(harness, wanted, limit) == everything


async def test_without_a_filter_every_page_but_the_last_is_full(harness: Harness) -> None:
    runs = some_runs(7)
    await harness.submit(*runs)
    first = await harness.store.list_runs(RunFilter(tenant="default"), None, 3)
    assert [view.id for view in first.items] == ids(runs)[:-4:-1]
    assert first.after is not None
    second = await harness.store.list_runs(RunFilter(tenant="default"), RunId(first.after), 3)
    assert len(second.items) == 3


async def test_runs_submitted_while_paging_do_not_disturb(harness: Harness) -> None:
    runs = some_runs(4)
    await harness.submit(*runs)
    first = await harness.store.list_runs(ANY, None, 2)
    await harness.submit(a_run())
    await harness.store.cancel([runs[0].id])
    assert first.after is not None
    second = await harness.store.list_runs(ANY, RunId(first.after), 5)
    assert [view.id for view in second.items] == [runs[1].id, runs[0].id]


async def test_runs_are_found_by_tenant(harness: Harness) -> None:
    mine, other, ended = a_run(about=About(tags=("x",))), a_run(tenant="acme", about=About(tags=("x",))), a_run()
    [held] = await harness.start(ended)
    await harness.succeed(held)
    await harness.submit(mine, other)
    assert await found(harness) == [ended.id, mine.id]
    for wanted in (
        RunFilter(tenant="acme"),
        RunFilter(tenant="acme", tag="x"),
        RunFilter(tenant="acme", text="GREET"),
        RunFilter(tenant="acme", task="greet", queue="default"),
    ):
        assert [view.id for view in await listed(harness, wanted)] == [other.id]
    assert await listed(harness, RunFilter(tenant="beta")) == []
    assert len(await listed(harness, ANY)) == 3


async def test_runs_are_found_by_task_queue_and_tag(harness: Harness) -> None:
    one = a_run(task="resize", queue="images", about=About(tags=("big", "billing")))
    two = a_run(task="resize", queue="mail", about=About(tags=("billing",)), delay=HOUR)
    three = a_run(task="greet", queue="mail")
    await harness.submit(one, two, three)
    assert await found(harness, task="resize") == [two.id, one.id]
    assert await found(harness, queue="mail") == [three.id, two.id]
    assert await found(harness, tag="billing") == [two.id, one.id]
    assert await found(harness, tag="big") == [one.id]
    assert await found(harness, tag="bil") == []
    assert await found(harness, task="resize", queue="mail") == [two.id]
    assert await found(harness, task="resize", tag="big", queue="mail") == []
    assert await found(harness, task="unknown") == await found(harness, queue="unknown") == []


async def test_standings_of_a_tag_have_state_and_replayed_run(harness: Harness) -> None:
    old = (await harness.now()) - HOUR
    about = About(tags=("x",))
    once = a_policy(retries=0)
    running, ended, second, failed, asked = await harness.start(*[a_run(about=about, policy=once) for _ in range(5)])
    await harness.succeed(ended, second)
    await harness.fail(failed)
    await harness.store.cancel([asked.id])
    waiting, behind = a_run(about=about, delay=HOUR), a_run(about=about, after=[running])
    limited = [a_run(about=about, limits=(a_limit("k"),)) for _ in range(2)]
    other, foreign = a_run(about=About(tags=("xx",))), a_run(about=about, tenant="acme")
    again = a_run(about=about, replay_of=failed.id)
    await harness.submit(waiting, behind, *limited, other, foreign, again)
    found = await harness.store.standings("default", "x", old, 100)
    passed, held_up = limited
    assert found.runs == {
        RunState.RUNNING: [running.id],
        RunState.SUCCEEDED: sorted((ended.id, second.id), reverse=True),
        RunState.FAILED: [failed.id],
        RunState.CANCELLING: [asked.id],
        RunState.SCHEDULED: [waiting.id],
        RunState.QUEUED: sorted((passed.id, again.id), reverse=True),
        RunState.BLOCKED: sorted((behind.id, held_up.id), reverse=True),
    }
    assert found.replays == {failed.id: again.id}
    newest = sorted((run for runs in found.runs.values() for run in runs), reverse=True)[:2]
    few = await harness.store.standings("default", "x", old, 2)
    assert sorted((run for runs in few.runs.values() for run in runs), reverse=True) == newest
    everybodys = await harness.store.standings(None, "x", old, 100)
    assert sorted(everybodys.runs[RunState.QUEUED]) == sorted((passed.id, again.id, foreign.id))
    assert await harness.store.standings("default", "x", made_at(newest[0]) + HOUR, 100) == Standings()


async def test_an_ended_run_is_found_by_its_tag(harness: Harness) -> None:
    [held] = await harness.start(a_run(about=About(tags=("x",))))
    assert await found(harness, tag="x") == [held.id]
    await harness.succeed(held)
    assert await found(harness, tag="x") == [held.id]
    assert await found(harness, tag="x", states=frozenset({RunState.RUNNING})) == []


@pytest.mark.parametrize("text", ["monthly", "MONTHLY REP", "hly Rep", "größe"])
async def test_runs_are_found_by_a_part_of_their_name(harness: Harness, text: str) -> None:
    run = a_run(about=About(name="Monthly report: Größe"))
    await harness.submit(run, a_run(), a_run(about=About(name="Weekly report")))
    assert await found(harness, text=text) == [run.id]


async def test_runs_are_found_by_a_part_of_their_task_or_id(harness: Harness) -> None:
    run, other = a_run(task="Images.Resize"), a_run(task="greet", delay=HOUR)
    await harness.submit(run, other)
    assert await found(harness, text="s.rES") == [run.id]
    assert await found(harness, text=run.id[-12:]) == [run.id]
    assert await found(harness, text=other.id.upper()) == [other.id]
    assert await found(harness, text="nowhere") == []


@pytest.mark.parametrize("text", ["100%", "a_b", "x\\y", "it's", "[a]", "*"])
async def test_a_search_text_is_matched_literally(harness: Harness, text: str) -> None:
    run = a_run(about=About(name=f"before {text} after"))
    await harness.submit(run, a_run(about=About(name="100 percent axb xy its a")))
    assert await found(harness, text=text) == [run.id]


async def test_runs_are_found_by_time_of_creation(harness: Harness) -> None:
    start = made_at(an_id()) - HOUR
    runs = [a_run(id=make_id(start + number * SECOND, number)) for number in range(5)]
    [held, *_] = await harness.start(*runs)
    await harness.succeed(held)
    newest_first = ids(runs)[::-1]
    assert await found(harness, since=start) == newest_first
    assert await found(harness, since=start + SECOND) == newest_first[:-1]
    assert await found(harness, since=start + SECOND + MILLISECOND) == newest_first[:-2]
    assert await found(harness, until=start + 3 * SECOND) == newest_first[2:]
    assert await found(harness, until=start + 3 * SECOND + MILLISECOND) == newest_first[1:]
    assert await found(harness, since=start + SECOND, until=start + 3 * SECOND) == newest_first[2:-1]
    assert await found(harness, since=start + HOUR * 2) == []


async def test_runs_are_found_by_their_job(harness: Harness) -> None:
    minutely = every(MINUTE, start=await harness.now() + 30 * SECOND)
    job = await harness.put(a_job(a_spec(schedule=minutely)))
    other = await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + HOUR))))
    await harness.advance(MINUTE)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    manual = a_run(job=JobRef(id=job.id, version=1))
    one_off = a_run()
    await harness.submit(manual, one_off, a_run(job=JobRef(id=other.id, version=1)))
    assert tick.run_id is not None
    assert await found(harness, job=job.id) == sorted([tick.run_id, manual.id], reverse=True)
    [held] = [run for run in await harness.claim(await harness.worker()) if run.id == tick.run_id]
    await harness.succeed(held)
    assert await found(harness, job=job.id) == sorted([tick.run_id, manual.id], reverse=True)
    assert await found(harness, job=job.id, states=frozenset({RunState.SUCCEEDED})) == [tick.run_id]
    assert await found(harness, one_off=True) == [one_off.id]
    assert await listed(harness, RunFilter(tenant="acme", job=job.id)) == []


async def test_a_one_off_job_has_its_own_run_and_those_added_to_it(harness: Harness) -> None:
    one_off, other = a_run(about=About(name="", owner="", tags=("a",))), a_run()
    added = [a_run(job=JobRef(id=JobId(one_off.id), version=1), task=task) for task in ("greet", "other")]
    await harness.submit(one_off, other, *added)
    newest_first = sorted([one_off.id, *(run.id for run in added)], reverse=True)
    job = JobId(one_off.id)
    assert await found(harness, job=job) == newest_first
    assert [view.id for view in await listed(harness, RunFilter(tenant=None, job=job), limit=1)] == newest_first
    assert await harness.store.count_runs(RunFilter(tenant="default", job=job), 10) == 3
    assert await found(harness, job=job, tag="a") == [one_off.id]
    assert await found(harness, job=job, task="other") == [added[1].id]
    assert await found(harness, job=job, one_off=True) == [one_off.id]
    assert sorted(await found(harness, one_off=True)) == sorted([one_off.id, other.id])
    assert await listed(harness, RunFilter(tenant="acme", job=job)) == []
    # A run that was added is no job of its own.
    assert await found(harness, job=JobId(added[0].id)) == []
    held = {run.id: run for run in await harness.claim(await harness.worker())}
    await harness.succeed(held[one_off.id])
    assert await found(harness, job=job) == newest_first
    succeeded, ended = frozenset({RunState.SUCCEEDED}), frozenset({RunState.SUCCEEDED, RunState.FAILED})
    assert await found(harness, job=job, states=succeeded) == [one_off.id]
    assert await harness.store.count_runs(RunFilter(tenant="default", job=job, states=ended), 10) == 1
    await harness.succeed(held[added[1].id])
    assert sorted(await found(harness, job=job, states=succeeded)) == sorted([one_off.id, added[1].id])
    await harness.store.purge([one_off.id], Author("test", "default"))
    assert await found(harness, job=job) == sorted([run.id for run in added], reverse=True)


async def test_a_listed_run_equals_its_view_without_payload_and_result(harness: Harness) -> None:
    about = About(name="Größe", owner="ada", tags=("b", "a"))
    run = a_run(about=about, policy=a_policy(retries=7), deadline=HOUR, replay_of=an_id())
    await harness.submit(run)
    [waiting] = await listed(harness, ANY)
    assert waiting == await harness.view(run.id)
    assert (waiting.about, waiting.policy, waiting.deadline, waiting.replay_of) == (
        about,
        run.policy,
        waiting.due + HOUR,
        run.replay_of,
    )
    [held] = await harness.claim(await harness.worker())
    await harness.complete(complete_success(held, b'"result"'))
    [ended] = await listed(harness, ANY)
    view = await harness.view(run.id)
    assert view.result == b'"result"'
    assert ended == msgspec.structs.replace(view, result=None)
    assert (ended.about, ended.policy) == (about, run.policy)


async def test_a_view_has_the_payload_only_on_request(harness: Harness) -> None:
    queued, waiting = a_run(payload=b'"one"'), a_run(payload=bytes(range(256)), delay=HOUR)
    [held] = await harness.start(a_run(payload=b'"ended"', queue="a"))
    await harness.succeed(held)
    await harness.submit(queued, waiting)
    asked = [queued.id, waiting.id, held.id]
    assert [view and view.payload for view in await harness.store.runs(asked)] == [None] * 3
    assert [view and view.payload for view in await harness.store.runs(asked, payloads=True)] == [
        queued.payload,
        waiting.payload,
        b'"ended"',
    ]


async def test_a_view_has_the_session_and_the_time_of_queueing(harness: Harness) -> None:
    run = a_run(delay=MINUTE, start_within=HOUR)
    await harness.submit(run)
    waiting = await harness.view(run.id)
    assert (waiting.queued_at, waiting.session, waiting.executor) == (None, None, "")
    assert waiting.start_by == waiting.due + HOUR
    await harness.advance(2 * MINUTE)
    before = await harness.now()
    await harness.stage()
    after = await harness.now()
    queued = await harness.view(run.id)
    assert queued.queued_at is not None
    assert before <= queued.queued_at <= after
    await harness.advance(MINUTE)
    worker = await harness.worker()
    [held] = await harness.claim(worker)
    running = await harness.view(run.id)
    assert (running.queued_at, running.session, running.executor) == (queued.queued_at, worker, "worker")
    await harness.succeed(held)
    ended = await harness.view(run.id)
    assert (ended.queued_at, ended.session, ended.executor) == (queued.queued_at, worker, "worker")


async def test_runs_are_counted_up_to_the_limit(harness: Harness) -> None:
    await harness.submit(*some_runs(5), *some_runs(2, delay=HOUR), a_run(tenant="acme"))
    count = harness.store.count_runs
    assert await count(ANY, 100) == 8
    assert await count(RunFilter(tenant="default"), 100) == 7
    assert await count(RunFilter(tenant="default", states=frozenset({RunState.QUEUED})), 100) == 5
    assert await count(RunFilter(tenant="default", states=frozenset({RunState.QUEUED})), 3) == 3
    assert await count(RunFilter(tenant="beta"), 100) == 0


async def test_runs_of_a_queue_are_counted_by_state(harness: Harness) -> None:
    await harness.submit(*some_runs(3), *some_runs(2, queue="other"), *some_runs(1, delay=HOUR, queue="other"))
    worker = await harness.worker()
    await harness.succeed(*await harness.claim(worker, 2), *await harness.claim(worker, 1, queue="other"))

    async def count(queue: str, *states: RunState) -> int:
        return await harness.store.count_runs(RunFilter(tenant=None, states=frozenset(states), queue=queue), 100)

    assert [await count("default", state) for state in (RunState.QUEUED, RunState.SUCCEEDED)] == [1, 2]
    assert [await count("other", state) for state in (RunState.QUEUED, RunState.SUCCEEDED)] == [1, 1]
    assert [await count(queue, RunState.FAILED) for queue in ("default", "other")] == [0, 0]
    assert [await count(queue) for queue in ("default", "other", "nobody's")] == [3, 3, 0]
    assert await count("other", RunState.SCHEDULED, RunState.SUCCEEDED, RunState.FAILED) == 2


async def test_ahead_of_counts_queued_runs_with_a_better_rank(harness: Harness) -> None:
    first, second, urgent = a_run(), a_run(), a_run(priority=1)
    for run in (first, second, urgent):
        await harness.submit(run)
        await harness.advance(SECOND)
    waiting, elsewhere = a_run(delay=HOUR), a_run(queue="other", tenant="acme")
    await harness.submit(waiting, elsewhere)
    ahead = harness.store.count_ahead
    assert [await ahead(run.id) for run in (urgent, first, second, elsewhere)] == [0, 1, 2, 0]
    assert await ahead(waiting.id) is None
    assert await ahead(an_id()) is None
    assert ids(await harness.claim(await harness.worker(), 1)) == [urgent.id]
    assert await ahead(urgent.id) is None
    assert await ahead(second.id) == 1


async def test_depths_can_be_limited_to_one_tenant(harness: Harness) -> None:
    now = await harness.now()
    old = a_run(tenant="acme", at=now - HOUR)
    mine = a_run(at=now - MINUTE)
    await harness.submit(old, mine, a_run(queue="other"))
    await harness.claim(await harness.worker(), queue="other")
    assert await harness.store.depths("acme") == [
        QueueBacklog(queue="default", queued=1, running=0, oldest_due=old.at, oldest_ready=old.at)
    ]
    assert await harness.store.depths("default") == [
        QueueBacklog(queue="default", queued=1, running=0, oldest_due=mine.at, oldest_ready=mine.at),
        QueueBacklog(queue="other", queued=0, running=1, oldest_due=None),
    ]
    assert await harness.store.depths("beta") == []
    assert [depth.queued for depth in await harness.store.depths()] == [2, 0]


async def test_a_held_run_is_read_as_its_worker_holds_it(harness: Harness) -> None:
    running, cancelled, queued, ended = a_run(payload=b"1"), a_run(), a_run(queue="other"), a_run()
    one, two, three = await harness.start(running, cancelled, ended)
    await harness.submit(queued)
    await harness.succeed(three)
    await harness.store.cancel([two.id])
    asked = [queued.id, running.id, an_id(), cancelled.id, ended.id, running.id]
    first, second, unknown, third, fourth, again = await harness.store.held(asked)
    assert (first, unknown, fourth) == (None, None, None)
    assert second is not None
    session = second.session
    assert session is not None
    assert second == again == msgspec.structs.replace(one, session=session)
    assert third == msgspec.structs.replace(two, session=session, cancel_requested=True)
    assert await harness.store.held([]) == []


async def test_jobs_are_listed_newest_first_without_payloads(harness: Harness) -> None:
    declared = [a_job(payload=b"1") for _ in range(3)]
    stored = [await harness.put(job) for job in declared]
    listed_jobs = await jobs_listed(harness, JobFilter(tenant="default"))
    assert listed_jobs == [msgspec.structs.replace(job, payload=b"null") for job in reversed(stored)]


async def test_jobs_are_found_by_source(harness: Harness) -> None:
    declared = msgspec.structs.replace(a_spec(name="declared"), source="app:billing")
    mine = await harness.put(a_job(declared))
    theirs = await harness.put(a_job(msgspec.structs.replace(declared, name="theirs", source="app:bill")))
    by_hand = await harness.put(a_job(a_spec(name="by-hand")))
    assert mine.spec.source == "app:billing"
    assert await jobs_found(harness, source="app:billing") == [mine.id]
    assert await jobs_found(harness) == [by_hand.id, theirs.id, mine.id]
    # A declaration with another source makes a new version.
    again = await harness.put(a_job(msgspec.structs.replace(declared, source="file:x.yaml")))
    assert (again.id, again.version) == (mine.id, 2)
    assert await jobs_found(harness, source="app:billing") == []


async def test_jobs_are_found_by_state_task_queue_tag_and_text(harness: Harness) -> None:
    report = await harness.put(a_job(a_spec(name="Monthly 100%", task="report", queue="mail", tags=("x", "y"))))
    resize = await harness.put(a_job(a_spec(name="nightly", task="Resize", tags=("x",))))
    over = await harness.put(a_job(a_spec(name="over", task="report")))
    acmes = await harness.put(a_job(a_spec(name="Monthly 100%", task="report", tags=("x",)), tenant="acme"))
    await harness.store.set_jobs_state([resize.id], JobState.PAUSED)
    await harness.store.set_jobs_state([over.id], JobState.CANCELLED)
    assert await jobs_found(harness) == [over.id, resize.id, report.id]
    assert await jobs_found(harness, states=frozenset({JobState.PAUSED})) == [resize.id]
    assert await jobs_found(harness, states=frozenset({JobState.SCHEDULED, JobState.CANCELLED})) == [over.id, report.id]
    assert await jobs_found(harness, task="report") == [over.id, report.id]
    assert await jobs_found(harness, queue="mail") == [report.id]
    assert await jobs_found(harness, tag="x") == [resize.id, report.id]
    assert await jobs_found(harness, tag="y", task="report") == [report.id]
    assert await jobs_found(harness, text="MONTHLY") == await jobs_found(harness, text="0%") == [report.id]
    assert await jobs_found(harness, text="rESI") == [resize.id]
    assert await jobs_found(harness, text=over.id[-12:]) == [over.id]
    assert [job.id for job in await jobs_listed(harness, JobFilter(tenant="acme", tag="x"))] == [acmes.id]
    assert await jobs_listed(harness, JobFilter(tenant="beta")) == []
    assert len(await jobs_listed(harness, JobFilter(tenant=None))) == 4


async def test_a_job_is_not_found_by_a_tag_of_an_older_version(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(name="report", tags=("old", "kept"))))
    await harness.put(a_job(a_spec(name="report", tags=("kept", "new"))))
    assert await jobs_found(harness, tag="old") == []
    assert await jobs_found(harness, tag="kept") == await jobs_found(harness, tag="new") == [job.id]


async def test_jobs_are_found_by_time_of_creation(harness: Harness) -> None:
    start = made_at(an_id()) - HOUR
    jobs = [a_job(id=JobId(make_id(start + number * SECOND, number))) for number in range(3)]
    for job in jobs:
        await harness.put(job)
    assert await jobs_found(harness, since=start + SECOND) == [jobs[2].id, jobs[1].id]
    assert await jobs_found(harness, until=start + SECOND) == [jobs[0].id]
    assert await jobs_found(harness, since=start + SECOND, until=start + 2 * SECOND) == [jobs[1].id]


async def test_job_pages_of_any_size_give_the_same_list(harness: Harness) -> None:
    for number in range(6):
        await harness.put(a_job(a_spec(tags=("x",) if number % 2 else ())))
    for wanted in (JobFilter(tenant=None), JobFilter(tenant="default", tag="x")):
        everything = await jobs_listed(harness, wanted)
        for limit in range(1, len(everything) + 2):
            assert await jobs_listed(harness, wanted, limit) == everything


async def test_live_sessions_are_listed(harness: Harness) -> None:
    before = await harness.now()
    first = await harness.worker()
    dying = await harness.worker(SHORT_LEASE)
    closed = await harness.worker()
    await harness.store.close_session(closed)
    await harness.submit(*some_runs(3))
    held = await harness.claim(first, 2)
    one, two = await harness.store.sessions("worker")
    assert (one.id, one.kind, one.name, one.running, one.draining) == (first, "worker", "worker", 2, False)
    assert (two.id, two.running) == (dying, 0)
    assert before <= one.started_at <= await harness.now() < one.lease_until
    await harness.succeed(held[0])
    await harness.advance(2 * SHORT_LEASE)
    assert [(row.id, row.running) for row in await harness.store.sessions("worker")] == [(first, 1)]


async def test_an_ended_session_can_be_read(harness: Harness) -> None:
    worker, dying = await harness.worker(), await harness.worker(SHORT_LEASE)
    await harness.submit(*some_runs(2))
    [held, _] = await harness.claim(worker)
    [living, _] = await harness.store.sessions("worker")
    assert await harness.store.session(worker) == living
    await harness.store.close_session(worker)
    await harness.advance(2 * SHORT_LEASE)
    for session, running in ((worker, 2), (dying, 0)):
        ended = await harness.store.session(session)
        assert ended is not None
        assert (ended.id, ended.kind, ended.running) == (session, "worker", running)
    [found] = await harness.store.held([held.id])
    assert found is not None
    assert (found.id, found.session) == (held.id, worker)
    scheduler = await harness.store.join("one", HOUR)
    joined = await harness.store.session(scheduler)
    assert joined is not None
    assert joined.kind == "scheduler"
    assert await harness.store.session(SessionId(987_654_321)) is None


async def test_the_session_of_a_scheduler_has_its_number_of_shards(harness: Harness) -> None:
    one, two = await harness.store.join("one", HOUR), await harness.store.join("two", HOUR)
    await harness.store.take(one, [0, 1, 2])
    await harness.store.take(two, [3])
    sessions = await harness.store.sessions("scheduler")
    assert [(row.id, row.kind, row.name, row.shards) for row in sessions] == [
        (one, "scheduler", "one", 3),
        (two, "scheduler", "two", 1),
    ]
    await harness.store.leave(one)
    assert [row.id for row in await harness.store.sessions("scheduler")] == [two]
    assert await harness.store.sessions("worker") == []


async def test_a_purged_run_is_not_listed(harness: Harness) -> None:
    runs: list[NewRun] = [a_run(about=About(tags=("x",))) for _ in range(2)]
    one, other = await harness.start(*runs)
    await harness.succeed(one, other)
    await harness.store.purge([one.id], Author("ops"))
    assert await found(harness) == await found(harness, tag="x") == [other.id]


async def test_job_versions_are_read_from_a_given_version(harness: Harness) -> None:
    job = a_job(payload=b"1")
    for number in range(1, 6):
        await harness.put(msgspec.structs.replace(job, payload=b"%d" % number))

    async def payloads(*, before: int | None = None, limit: int = 100) -> list[bytes]:
        return [kept.payload for kept in await harness.store.versions(job.id, before=before, limit=limit)]

    assert await payloads() == [b"5", b"4", b"3", b"2", b"1"]
    assert await payloads(limit=2) == [b"5", b"4"]
    assert await payloads(before=4, limit=2) == [b"3", b"2"]
    assert await payloads(before=1) == []
    assert await payloads(before=2**40, limit=1) == [b"5"]


async def test_recurring_jobs_are_counted(harness: Harness) -> None:
    jobs = [await harness.put(a_job(tenant="acme")) for _ in range(5)]
    await harness.put(a_job(tenant="beta"))
    await harness.store.set_jobs_state([jobs[0].id], JobState.PAUSED, Author("ada", "acme"))
    await harness.store.set_jobs_state([jobs[1].id], JobState.CANCELLED, Author("ada", "acme"))
    assert await harness.store.count_jobs("acme", 100) == 4
    assert await harness.store.count_jobs("acme", 3) == 3
    assert await harness.store.count_jobs("nobody", 3) == 0
