"""Operations: editing, purging, tagging and draining."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.names import MAX_TAGS
from mainspring.core.model.runs.new_run import About, JobRef, NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import JobFilter, LogReport, RunFilter
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import Demand, NewSession
from tests.support.builders import a_job, a_policy, a_run, a_spec, an_id, every, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids

pytestmark = pytest.mark.api

ADA = Author("ada", why="because")
READER = "dashboard"


def changed(run: NewRun, **changes: object) -> NewRun:
    return msgspec.structs.replace(run, **changes)


async def edit(harness: Harness, run: NewRun, **changes: object) -> RunState:
    """Edit a run and return its new state."""
    answer = await harness.store.edit_run(changed(run, **changes), ADA)
    assert answer is not None
    assert (answer.id, answer.new, answer.conflict) == (run.id, False, False)
    assert answer.state is await harness.state(run.id)
    return answer.state


async def actions(harness: Harness) -> list[tuple[str, str, str, int]]:
    entries = (await harness.store.audit(None))[::-1]
    return [(entry.tenant, entry.action, entry.target, entry.count) for entry in entries]


# Editing


@pytest.mark.parametrize("delay", [0, HOUR])
async def test_every_field_of_a_run_that_has_not_started_can_be_edited(harness: Harness, delay: int) -> None:
    run = a_run(delay=delay, about=About(name="old", tags=("a",)))
    await harness.submit(run)
    made = await harness.view(run.id)
    now = await harness.now()
    new = changed(
        run,
        task="resize",
        payload=b'"new"',
        queue="images",
        priority=1,
        policy=a_policy(retries=9, timeout=17 * MINUTE),
        at=now + 2 * HOUR,
        start_within=HOUR,
        deadline=2 * HOUR,
        about=About(name="new", owner="ada", tags=("b", "c")),
    )
    answer = await harness.store.edit_run(new, ADA)
    assert answer == SubmitResult(run.id, RunState.SCHEDULED, new=False)
    [view] = await harness.store.runs([run.id], payloads=True)
    assert view is not None
    assert (view.task, view.payload, view.queue, view.priority) == ("resize", b'"new"', "images", 1)
    assert (view.policy, view.about) == (new.policy, new.about)
    assert (view.due, view.start_by, view.deadline) == (now + 2 * HOUR, now + 3 * HOUR, now + 4 * HOUR)
    assert (view.created_at, view.tenant) == (made.created_at, "default")
    await harness.advance(2 * HOUR + MINUTE)
    await harness.stage()
    [held] = await harness.claim(await harness.worker(), queue="images")
    assert (held.id, held.task, held.payload, held.policy, held.priority, held.deadline) == (
        run.id,
        "resize",
        b'"new"',
        new.policy,
        1,
        now + 4 * HOUR,
    )
    assert held.attempt_until == held.started_at + 17 * MINUTE


async def test_a_new_due_time_moves_a_run_between_scheduled_and_queued(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    worker = await harness.worker()
    assert await edit(harness, run, delay=HOUR) is RunState.SCHEDULED
    assert await harness.claim(worker) == []
    assert await edit(harness, run, delay=2 * HOUR) is RunState.SCHEDULED
    await harness.advance(90 * MINUTE)
    await harness.stage()
    assert await harness.claim(worker) == [], "the old due time does not count"
    assert await edit(harness, run, delay=0) is RunState.QUEUED
    assert ids(await harness.claim(worker)) == [run.id]
    await harness.advance(DAY)
    assert (await harness.stage()).runs == 0


async def test_a_run_moved_to_another_queue_is_claimed_only_from_there(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    assert await edit(harness, run, queue="other") is RunState.QUEUED
    worker = await harness.worker()
    assert await harness.claim(worker) == []
    assert ids(await harness.claim(worker, queue="other")) == [run.id]


async def test_an_edited_run_that_stays_queued_keeps_its_age(harness: Harness) -> None:
    old, young = a_run(), a_run()
    await harness.submit(old)
    await harness.advance(MINUTE)
    await harness.submit(young)
    await harness.advance(MINUTE)
    view = await harness.view(old.id)
    await edit(harness, old, payload=b"2", at=view.due)
    assert (await harness.view(old.id)).queued_at == view.queued_at
    assert ids(await harness.claim(await harness.worker(), 1)) == [old.id]


async def test_an_edited_priority_changes_the_rank(harness: Harness) -> None:
    first, second, third = some_runs(3)
    for run in (first, second, third):
        await harness.submit(run)
        await harness.advance(SECOND)
    await edit(harness, third, priority=1)
    await edit(harness, first, priority=10)
    worker = await harness.worker()
    assert [ids(await harness.claim(worker, 1)) for _ in range(3)] == [[third.id], [second.id], [first.id]]


async def test_edited_time_limits_replace_the_old_ones(harness: Harness) -> None:
    relaxed, stricter = a_run(start_within=MINUTE), a_run(deadline=HOUR)
    await harness.submit(relaxed, stricter)
    await edit(harness, relaxed, start_within=None)
    await edit(harness, stricter, start_within=MINUTE, deadline=None)
    await harness.advance(2 * HOUR)
    await harness.store.expire(10)
    assert await harness.states([relaxed, stricter]) == [RunState.QUEUED, RunState.SKIPPED]


async def test_started_and_ended_runs_and_runs_of_a_job_cannot_be_edited(harness: Harness) -> None:
    running, released, retried, ended = a_run(), a_run(), a_run(), a_run()
    held = await harness.start(running, released, retried, ended)
    await harness.complete(complete_release(held[1]))
    await harness.fail(held[2])
    await harness.succeed(held[3])
    cancelled = a_run(delay=HOUR)
    job = await harness.put(a_job())
    by_hand = a_run(job=JobRef(id=job.id, version=1), delay=HOUR)
    await harness.submit(cancelled, by_hand)
    await harness.store.cancel([cancelled.id])
    for run in (running, released, retried, ended, cancelled, by_hand, a_run()):
        before = await harness.store.runs([run.id], payloads=True)
        assert await harness.store.edit_run(changed(run, payload=b"2", queue="x", delay=DAY), ADA) is None
        assert await harness.store.runs([run.id], payloads=True) == before
    assert await actions(harness) == []


async def test_an_edit_of_a_run_that_has_changed_since_it_was_read_is_a_conflict(harness: Harness) -> None:
    """Every field that an edit replaces counts; the current state of the run does not."""
    changes = (
        {"payload": b"2"},
        {"priority": 1},
        {"queue": "x"},
        {"task": "x"},
        {"policy": a_policy(retries=9)},
        {"about": About(owner="ada")},
        {"start_within": HOUR},
        {"deadline": HOUR},
    )
    for change in changes:
        run = a_run(delay=HOUR)
        await harness.submit(run)
        [read] = await harness.store.runs([run.id], payloads=True)
        assert read is not None
        at = read.due
        first = await harness.store.edit_run(changed(run, at=at, **change), ADA, was=read)
        assert first == SubmitResult(run.id, RunState.SCHEDULED, new=False)
        before = await harness.store.runs([run.id], payloads=True)
        second = await harness.store.edit_run(changed(run, at=at + 1), ADA, was=read)
        assert second == SubmitResult(run.id, RunState.SCHEDULED, new=False, conflict=True)
        assert await harness.store.runs([run.id], payloads=True) == before
        [read] = before
        assert read is not None
        await harness.advance(2 * HOUR)
        await harness.stage()
        queued = await harness.store.edit_run(changed(run, at=at), ADA, was=read)
        assert queued == SubmitResult(run.id, RunState.QUEUED, new=False)
    edits = [entry for entry in await actions(harness) if entry[1] == "runs.edit"]
    assert len(edits) == 2 * len(changes)


async def test_of_concurrent_edits_one_succeeds(harness: Harness) -> None:
    run = a_run(delay=HOUR)
    await harness.submit(run)
    [read] = await harness.store.runs([run.id], payloads=True)
    answers = await asyncio.gather(
        *(harness.store.edit_run(changed(run, priority=priority), ADA, was=read) for priority in (1, 2, 3, 4))
    )
    assert [answer is not None and answer.conflict for answer in answers].count(False) == 1


async def test_a_run_of_another_tenant_cannot_be_edited(harness: Harness) -> None:
    run = a_run(tenant="acme")
    await harness.submit(run)
    assert await harness.store.edit_run(changed(run, tenant="beta", payload=b"2"), ADA) is None
    [view] = await harness.store.runs([run.id], payloads=True)
    assert view is not None
    assert (view.tenant, view.payload) == ("acme", run.payload)


async def test_the_audit_entry_of_an_edit_has_the_changed_fields(harness: Harness) -> None:
    run = a_run(at=await harness.now() + HOUR, tenant="acme", about=About(tags=("a",)), payload=b'"old"')
    await harness.submit(run)
    later = await harness.now() + 2 * HOUR
    await edit(harness, run, at=later, payload=b'"new"', about=About(tags=("b",)), priority=2)
    [entry] = await harness.store.audit("acme")
    assert (entry.author, entry.action, entry.target, entry.count, entry.why) == (
        "ada",
        "runs.edit",
        run.id,
        1,
        "because",
    )
    assert entry.before is not None
    assert entry.after is not None
    assert msgspec.json.decode(entry.before) == {
        "due": run.at,
        "payload": '"old"',
        "about": {"tags": ["a"]},
        "priority": 5,
    }
    assert msgspec.json.decode(entry.after) == {
        "due": later,
        "payload": '"new"',
        "about": {"tags": ["b"]},
        "priority": 2,
    }


async def test_an_edit_that_changes_nothing_is_not_audited(harness: Harness) -> None:
    run = a_run(at=await harness.now() + HOUR)
    await harness.submit(run)
    await edit(harness, run)
    assert await actions(harness) == []


async def test_an_edit_emits_run_queued_only_if_it_queues_the_run(harness: Harness) -> None:
    queued, waiting = a_run(), a_run(delay=HOUR)
    await harness.submit(queued, waiting)
    # PostgreSQL takes a run created at this very instant for one of the same transaction.
    await harness.move_clock(1)
    await harness.store.attach_reader(READER)
    await edit(harness, queued, priority=1)
    await edit(harness, queued, delay=HOUR)
    assert await harness.unread_events(READER) == []
    await edit(harness, waiting, delay=0)
    assert await harness.unread_events(READER) == [("run.queued", (waiting.id,))]


async def test_a_key_holder_that_is_delayed_releases_its_key(harness: Harness) -> None:
    first, second, third = some_runs(3, key="video-1")
    await harness.submit(first, second, third)
    assert await edit(harness, first, delay=HOUR) is RunState.SCHEDULED
    assert await harness.states([second, third]) == [RunState.QUEUED, RunState.BLOCKED]
    await harness.advance(2 * HOUR)
    await harness.stage()
    assert await harness.states([first, second, third]) == [RunState.BLOCKED, RunState.QUEUED, RunState.BLOCKED]


async def test_a_key_holder_that_loses_its_key_releases_it(harness: Harness) -> None:
    first, second = some_runs(2, key="video-1")
    await harness.submit(first, second)
    assert await edit(harness, first, policy=a_policy()) is RunState.QUEUED
    assert await harness.states([first, second]) == [RunState.QUEUED, RunState.QUEUED]


async def test_an_edited_key_holder_keeps_the_key_while_no_other_run_is_due_before_it(harness: Harness) -> None:
    first, second = some_runs(2, key="video-1")
    await harness.submit(first)
    await harness.advance(MINUTE)
    await harness.submit(second)
    before = await harness.view(first.id)
    await harness.store.attach_reader(READER)
    assert await edit(harness, first, at=before.due, priority=9, queue="other") is RunState.QUEUED
    assert await harness.states([second]) == [RunState.BLOCKED]
    assert (await harness.view(first.id)).queued_at == before.queued_at
    assert await harness.unread_events(READER) == []
    [held] = await harness.claim(await harness.worker(), queue="other")
    await harness.succeed(held)
    assert await harness.states([second]) == [RunState.QUEUED]


async def test_a_key_holder_that_becomes_due_later_waits_behind_the_next_run(harness: Harness) -> None:
    first, second = some_runs(2, key="video-1")
    await harness.submit(first)
    await harness.advance(MINUTE)
    await harness.submit(second)
    await harness.advance(MINUTE)
    assert await edit(harness, first) is RunState.BLOCKED
    assert await harness.states([second]) == [RunState.QUEUED]


async def test_a_blocked_run_that_loses_its_key_is_queued(harness: Harness) -> None:
    first, second = some_runs(2, key="video-1")
    await harness.submit(first, second)
    assert await edit(harness, second, policy=a_policy()) is RunState.QUEUED
    assert len(await harness.claim(await harness.worker())) == 2


async def test_a_blocked_run_edited_to_an_earlier_due_time_is_next(harness: Harness) -> None:
    first, second, third = some_runs(3, key="video-1")
    await harness.submit(first, second, third)
    [held] = await harness.claim(await harness.worker())
    assert await edit(harness, third, at=await harness.now() - HOUR) is RunState.BLOCKED
    await harness.succeed(held)
    assert await harness.states([second, third]) == [RunState.BLOCKED, RunState.QUEUED]


async def test_a_run_edited_to_have_a_key_waits_for_it(harness: Harness) -> None:
    holder, queued, waiting = a_run(key="video-1"), a_run(), a_run(delay=HOUR)
    await harness.submit(holder, queued, waiting)
    policy = a_policy(key="video-1")
    assert await edit(harness, queued, policy=policy) is RunState.BLOCKED
    assert await edit(harness, waiting, policy=policy, delay=0) is RunState.BLOCKED
    other = a_run()
    await harness.submit(other)
    assert await edit(harness, other, policy=a_policy(key="video-2")) is RunState.QUEUED
    [blocked] = await harness.submit(a_run(key="video-2"))
    assert blocked.state is RunState.BLOCKED


async def test_a_blocked_run_can_be_edited_to_another_key(harness: Harness) -> None:
    one, two, moving = a_run(key="one"), a_run(key="two"), a_run(key="one")
    await harness.submit(one, two, moving)
    assert await edit(harness, moving, policy=a_policy(key="two")) is RunState.BLOCKED
    held = {run.id: run for run in await harness.claim(await harness.worker())}
    await harness.succeed(held[one.id])
    assert await harness.state(moving.id) is RunState.BLOCKED
    await harness.succeed(held[two.id])
    assert await harness.state(moving.id) is RunState.QUEUED


# Purging


async def test_an_ended_run_is_purged_with_all_its_data(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(retries=0)))
    await harness.store.append_log([LogReport(run=held.id, fence=held.fence, text="printed")])
    await harness.fail(held)
    assert await harness.store.purge([held.id], ADA) == [held.id]
    assert await harness.store.runs([held.id]) == [None]
    assert await harness.store.attempts(held.id) == []
    assert await harness.store.log(held.id, 0, 10) == []
    assert await harness.store.purge([held.id], ADA) == []
    [again] = await harness.submit(a_run(id=held.id))
    assert again.new


async def test_only_ended_runs_and_jobs_are_purged(harness: Harness) -> None:
    running, succeeded, failed = await harness.start(
        a_run(queue="a"), a_run(queue="a"), a_run(queue="a", policy=a_policy(retries=0))
    )
    await harness.succeed(succeeded)
    await harness.fail(failed)
    queued, waiting, cancelled = a_run(), a_run(delay=HOUR), a_run(delay=HOUR)
    await harness.submit(queued, waiting, cancelled)
    await harness.store.cancel([cancelled.id])
    live, paused, over = [await harness.put(a_job()) for _ in range(3)]
    await harness.store.set_jobs_state([paused.id], JobState.PAUSED)
    await harness.store.set_jobs_state([over.id], JobState.CANCELLED)
    finished = await harness.put(a_job(a_spec(schedule=every(HOUR, end=await harness.now() - DAY))))
    asked: list[RunId | JobId] = [
        waiting.id,
        over.id,
        failed.id,
        running.id,
        an_id(),
        live.id,
        cancelled.id,
        paused.id,
        queued.id,
    ]
    asked += [succeeded.id, finished.id]
    gone = await harness.store.purge(asked, ADA)
    assert gone == [over.id, failed.id, cancelled.id, succeeded.id, finished.id]
    assert None not in await harness.store.runs([running.id, queued.id, waiting.id])
    assert None not in await harness.store.jobs([live.id, paused.id])
    assert await harness.store.jobs([over.id, finished.id]) == [None, None]


async def test_a_purged_job_keeps_its_runs_and_frees_its_name(harness: Harness) -> None:
    minutely = every(MINUTE, start=await harness.now() + 30 * SECOND)
    job = await harness.put(a_job(a_spec(name="report", schedule=minutely)))
    await harness.advance(MINUTE)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    [held] = await harness.claim(await harness.worker())
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await harness.store.purge([job.id], ADA) == [job.id]
    assert await harness.ticks(job.id) == []
    assert await harness.store.versions(job.id) == []
    assert await harness.store.job_named("default", "report") is None
    assert entry.run_id == held.id
    await harness.succeed(held)
    assert await harness.state(held.id) is RunState.SUCCEEDED
    fresh = await harness.put(a_job(a_spec(name="report")))
    assert (fresh.id != job.id, fresh.version) == (True, 1)


async def test_a_waiting_run_of_a_purged_job_keeps_its_payload(harness: Harness) -> None:
    start = await harness.now() + 30 * SECOND
    job = await harness.put(
        a_job(a_spec(schedule=every(MINUTE, start=start, end=start + 90 * SECOND)), payload=b'"kept"')
    )
    held: list[HeldRun] = []
    for number in range(2):
        await harness.advance(MINUTE)
        await harness.fire_due()
        held += await harness.claim(await harness.worker())
        assert len(held) == number + 1
        await (harness.fail if number else harness.succeed)(held[-1])
    await harness.advance(MINUTE)
    await harness.fire_due()
    assert await harness.states(held) == [RunState.SUCCEEDED, RunState.SCHEDULED]
    assert await harness.store.purge([job.id], ADA) == [job.id]
    await harness.advance(30 * DAY)
    while await harness.store.prune(Retention(), 100):
        continue
    assert await harness.store.runs([held[0].id]) == [None]
    await harness.stage()
    [again] = await harness.claim(await harness.worker())
    assert (again.id, again.payload) == (held[1].id, b'"kept"')


async def test_a_purge_is_one_audit_entry_per_tenant(harness: Harness) -> None:
    runs = [a_run(), a_run(), a_run(tenant="acme")]
    held = await harness.start(*runs)
    await harness.succeed(*held)
    await harness.store.purge([*ids(runs), JobId(an_id())], ADA)
    await harness.store.purge(ids(runs), ADA)
    assert sorted(await actions(harness)) == [
        ("acme", "jobs.purge", runs[2].id, 1),
        ("default", "jobs.purge", runs[0].id, 2),
    ]


async def test_retention_works_after_a_purge(harness: Harness) -> None:
    held = await harness.start(*some_runs(3))
    await harness.succeed(*held)
    await harness.store.purge([held[0].id], ADA)
    await harness.advance(10 * DAY)
    while await harness.store.prune(Retention(), 100):
        continue
    assert await harness.store.runs(ids(held)) == [None] * 3


# Tags


async def tags(harness: Harness, run: RunId) -> tuple[str, ...]:
    about = (await harness.view(run)).about
    return () if about is None else about.tags


async def with_tag(harness: Harness, tag: str) -> list[str]:
    runs = await harness.store.list_runs(RunFilter(tenant=None, tag=tag), None, 100)
    jobs = await harness.store.list_jobs(JobFilter(tenant=None, tag=tag), None, 100)
    return sorted([*(run.id for run in runs.items), *(job.id for job in jobs.items)])


async def test_the_tags_of_one_off_runs_are_changed_in_every_state(harness: Harness) -> None:
    about = About(name="report", owner="ada", tags=("a", "b"))
    ended, running = a_run(about=about), a_run(about=about)
    held, _ = await harness.start(ended, running)
    await harness.succeed(held)
    queued, waiting = a_run(about=about), a_run(about=about, delay=HOUR)
    await harness.submit(queued, waiting)
    runs = [ended.id, running.id, queued.id, waiting.id]
    assert await harness.store.retag(runs, ["c"], ["a"], ADA) == 4
    assert [await tags(harness, run) for run in runs] == [("b", "c")] * 4
    view = (await harness.view(queued.id)).about
    assert view is not None
    assert (view.name, view.owner) == ("report", "ada")
    assert await with_tag(harness, "c") == sorted(runs)
    assert await with_tag(harness, "a") == []
    assert await harness.states([ended, running, queued, waiting]) == [
        RunState.SUCCEEDED,
        RunState.RUNNING,
        RunState.QUEUED,
        RunState.SCHEDULED,
    ]


async def test_tags_are_added_to_and_removed_from_a_run_without_tags(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    assert await harness.store.retag([run.id], ["x"], [], ADA) == 1
    assert (await harness.view(run.id)).about == About(tags=("x",))
    assert await harness.store.retag([run.id], [], ["x"], ADA) == 1
    assert (await harness.view(run.id)).about is None


async def test_a_tag_change_counts_only_changed_runs(harness: Harness) -> None:
    tagged, plain = a_run(about=About(tags=("a",))), a_run()
    await harness.submit(tagged, plain)
    asked: list[RunId | JobId] = [tagged.id, plain.id, an_id(), tagged.id]
    assert await harness.store.retag(asked, ["a"], [], ADA) == 1
    assert await harness.store.retag(asked, ["a"], ["a", "z"], ADA) == 0, "a tag that is both removed and added stays"
    assert await harness.store.retag(asked, [], ["z"], ADA) == 0
    assert [row[1:] for row in await actions(harness)] == [("jobs.retag", plain.id, 1)]


async def test_changing_the_tags_of_a_job_makes_a_new_version(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(tags=("a",)), payload=b'"kept"'))
    assert await harness.store.retag([job.id], ["b"], ["a"], ADA) == 1
    changed = await harness.job(job.id)
    assert (changed.version, changed.spec.tags, changed.payload) == (2, ("b",), b'"kept"')
    assert (changed.next_fire, changed.state) == (job.next_fire, job.state)
    assert changed.rev > job.rev
    newest, first = await harness.store.versions(job.id)
    assert (newest.spec.tags, newest.payload, newest.made_by, newest.why) == (("b",), b'"kept"', "ada", "because")
    assert first.spec.tags == ("a",)
    assert await with_tag(harness, "b") == [job.id]
    assert await with_tag(harness, "a") == []
    await harness.advance(2 * MINUTE)
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    assert held.payload == b'"kept"'


async def test_the_tags_of_the_runs_of_a_job_cannot_be_changed(harness: Harness) -> None:
    job = await harness.put(a_job())
    by_hand = a_run(job=JobRef(id=job.id, version=1))
    await harness.submit(by_hand)
    await harness.advance(MINUTE + SECOND)
    await harness.fire_due()
    # Just before a full minute two ticks are due, and the first is skipped.
    [tick] = [one.run_id for one in await harness.ticks(job.id) if one.run_id is not None]
    assert await harness.store.retag([by_hand.id, tick], ["x"], [], ADA) == 0


async def test_a_run_that_would_have_too_many_tags_is_not_changed(harness: Harness) -> None:
    full, room = a_run(about=About(tags=tuple(f"t{n}" for n in range(MAX_TAGS)))), a_run()
    await harness.submit(full, room)
    assert await harness.store.retag([full.id, room.id], ["x"], [], ADA) == 1
    assert await with_tag(harness, "x") == [room.id]
    assert await harness.store.retag([full.id], ["x"], ["t0"], ADA) == 1


async def test_the_tags_of_a_run_of_another_tenant_are_not_changed(harness: Harness) -> None:
    mine, others = a_run(tenant="acme"), a_run(tenant="beta")
    await harness.submit(mine, others)
    job = await harness.put(a_job(tenant="beta"))
    assert await harness.store.retag([mine.id, others.id, job.id], ["x"], [], Author("ada", "acme")) == 1
    assert await with_tag(harness, "x") == [mine.id]
    assert await harness.store.retag([mine.id, others.id, job.id], ["x"], [], ADA) == 2


async def test_the_audit_entry_of_a_tag_change_has_the_tags(harness: Harness) -> None:
    run, job = a_run(about=About(tags=("a",))), await harness.put(a_job(tenant="acme"))
    await harness.submit(run)
    await harness.store.retag([run.id, job.id], ["b"], [], ADA)
    [mine] = await harness.store.audit("default")
    assert (mine.action, mine.target, mine.count, mine.why) == ("jobs.retag", run.id, 1, "because")
    assert mine.before is not None
    assert mine.after is not None
    assert msgspec.json.decode(mine.before) == {"tags": ["a"]}
    assert msgspec.json.decode(mine.after) == {"tags": ["a", "b"]}
    assert [entry.target for entry in await harness.store.audit("acme")] == [job.id]


# Draining


async def test_a_drained_worker_learns_it_with_its_next_heartbeat(harness: Harness) -> None:
    worker, other = await harness.worker(), await harness.worker()
    assert not (await harness.store.heartbeat(worker, MINUTE, [], [], 0)).draining
    assert await harness.store.drain(worker, ADA)
    for _ in range(2):
        heartbeat = await harness.store.heartbeat(worker, MINUTE, [], [], 0)
        assert (heartbeat.alive, heartbeat.draining) == (True, True)
    assert not (await harness.store.heartbeat(other, MINUTE, [], [], 0)).draining
    assert [(row.id, row.draining) for row in await harness.store.sessions("worker")] == [
        (worker, True),
        (other, False),
    ]


async def test_draining_a_worker_keeps_its_runs(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run(), a_run())
    [held] = await harness.claim(worker, 1)
    await harness.store.drain(worker, ADA)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [held.id], [], harness.last_claim(worker))
    assert (heartbeat.returned, heartbeat.cancels) == (0, ())
    await harness.succeed(held)


@pytest.mark.parametrize("tenant", [None, "default"])
async def test_a_draining_worker_claims_nothing(harness: Harness, tenant: str | None) -> None:
    worker, other = await harness.worker(), await harness.worker()
    await harness.submit(a_run())
    await harness.store.drain(worker, ADA)
    assert await harness.store.claim(worker, 1, [Demand("default", 1, tenant)]) == []
    assert len(await harness.store.claim(other, 1, [Demand("default", 1, tenant)])) == 1


async def test_a_drain_is_audited_once(harness: Harness) -> None:
    worker = await harness.worker()
    assert await harness.store.drain(worker, ADA)
    assert await harness.store.drain(worker, ADA)
    assert await actions(harness) == [("", "workers.drain", str(worker), 1)]


async def test_only_a_live_worker_can_be_drained(harness: Harness) -> None:
    closed, dying = await harness.worker(), await harness.worker(SHORT_LEASE)
    await harness.store.close_session(closed)
    await harness.advance(2 * SHORT_LEASE)
    scheduler = await harness.store.join("scheduler", HOUR)
    for session in (closed, dying, scheduler, SessionId(987_654_321)):
        assert not await harness.store.drain(session, ADA)
    assert await actions(harness) == []


async def test_a_session_has_the_queues_and_tasks_of_its_worker(harness: Harness) -> None:
    new = NewSession(
        name="größe 🕰",
        kind="worker",
        ttl=HOUR,
        version="1.2",
        datacenter="eu-1",
        queues=("default", "mail"),
        tasks=("greet", "größe/→"),
        owner="key:0123456789ab",
    )
    opened = await harness.store.open_session(new)
    await harness.store.heartbeat(opened, 2 * HOUR, [], [], 0)
    [session] = await harness.store.sessions("worker")
    assert (session.owner, session.lease) == (new.owner, HOUR)
    assert (session.name, session.version, session.datacenter) == (new.name, "1.2", "eu-1")
    assert (session.queues, session.tasks, session.shards) == (new.queues, new.tasks, 0)


async def test_an_edit_leaves_the_tags_of_other_runs(harness: Harness) -> None:
    runs = [a_run(about=About(tags=("a",))) for _ in range(2)]
    await harness.submit(*runs)
    await edit(harness, runs[0], about=About(tags=("b",)))
    assert [await tags(harness, run.id) for run in runs] == [("b",), ("a",)]
    assert (await with_tag(harness, "a"), await with_tag(harness, "b")) == ([runs[1].id], [runs[0].id])
