"""Dead letters: failed runs that were not replayed or discarded, single and in groups."""

import pytest

from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import DeadGroup, RunFilter
from tests.support.builders import a_policy, a_run, an_id
from tests.support.store_harness import Harness, ids

pytestmark = pytest.mark.api

ADA = Author("ada", why="known")
DEAD = RunFilter(tenant="default", dead=True)


def a_failing_run(*, task: str = "greet", tenant: str = "default", queue: str = "default") -> NewRun:
    return a_run(task=task, tenant=tenant, queue=queue, policy=a_policy(retries=0))


async def run_and_fail(harness: Harness, *runs: NewRun, error: str = "boom") -> list[HeldRun]:
    held = await harness.start(*runs)
    await harness.fail(*held, error=error)
    return held


async def list_dead(harness: Harness, tenant: str | None = "default", fingerprint: str = "") -> list[RunId]:
    wanted = RunFilter(tenant=tenant, dead=True, fingerprint=fingerprint)
    return [view.id for view in (await harness.store.list_runs(wanted, None, 1_000)).items]


async def test_a_failed_run_is_a_dead_letter_with_a_fingerprint(harness: Harness) -> None:
    failed, retried, succeeded = a_failing_run(), a_run(), a_failing_run()
    one, two, three = await harness.start(failed, retried, succeeded)
    await harness.fail(one, two, error="ValueError: no 17")
    await harness.succeed(three)
    assert await list_dead(harness) == [failed.id]
    view = await harness.view(failed.id)
    assert view.fingerprint == compute_fingerprint("error", "ValueError: no 17")
    assert await list_dead(harness, fingerprint=compute_fingerprint("error", "ValueError: no 4")) == [failed.id]
    assert await list_dead(harness, fingerprint=compute_fingerprint("timeout", "ValueError: no 17")) == []
    assert [(await harness.view(run.id)).fingerprint for run in (retried, succeeded)] == ["", ""]


async def test_only_the_last_failure_of_a_run_is_a_dead_letter(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(retries=1)))
    await harness.fail(held, error="first")
    assert await list_dead(harness) == []
    await harness.advance(HOUR)
    await harness.stage()
    [again] = await harness.claim(await harness.worker())
    await harness.fail(again, error="ValueError: no 17")
    assert await list_dead(harness) == [held.id]
    assert (await harness.view(held.id)).fingerprint == compute_fingerprint("error", "ValueError: no 17")


async def test_every_kind_of_failure_has_a_fingerprint(harness: Harness) -> None:
    missed = a_run(deadline=MINUTE, queue="nobody")
    [lost] = await harness.start(a_run(policy=a_policy(at_most_once=True)))
    await harness.complete(complete_loss(lost, blamed=False))
    await harness.submit(missed)
    await harness.advance(HOUR)
    await harness.store.expire(10)
    assert (await harness.view(missed.id)).fingerprint == compute_fingerprint("deadline", "")
    assert (await harness.view(lost.id)).fingerprint == compute_fingerprint(
        "lost", "its worker died; at-most-once is never repeated"
    )
    assert sorted(await list_dead(harness)) == sorted([missed.id, lost.id])


async def test_a_replay_removes_the_run_from_the_dead_letters(harness: Harness) -> None:
    one, other = a_failing_run(), a_failing_run()
    await run_and_fail(harness, one, other)
    replay = a_run(replay_of=one.id)
    await harness.submit(replay)
    assert await list_dead(harness) == [other.id]
    assert await harness.state(one.id) is RunState.FAILED
    assert (await harness.view(replay.id)).replay_of == one.id
    failed = RunFilter(tenant="default", states=frozenset({RunState.FAILED}))
    listed = (await harness.store.list_runs(failed, None, 10)).items
    assert [view.id for view in listed] == [other.id, one.id], "the failed run stays in the history"
    await harness.submit(a_run(id=replay.id, replay_of=other.id))
    assert await list_dead(harness) == [other.id], "a rejected replay removes no dead letter"


async def test_a_replay_that_fails_is_a_dead_letter_itself(harness: Harness) -> None:
    first = a_failing_run()
    await run_and_fail(harness, first)
    replay = a_run(replay_of=first.id, policy=a_policy(retries=0))
    await run_and_fail(harness, replay)
    assert await list_dead(harness) == [replay.id]


async def test_a_replay_does_not_remove_a_dead_letter_of_another_tenant(harness: Harness) -> None:
    mine, done = a_failing_run(), a_run()
    await run_and_fail(harness, mine)
    [held] = await harness.start(done)
    await harness.succeed(held)
    await harness.submit(a_run(tenant="acme", replay_of=mine.id), a_run(replay_of=done.id), a_run(replay_of=an_id()))
    assert await list_dead(harness) == [mine.id]
    assert await harness.state(done.id) is RunState.SUCCEEDED


async def test_dead_letters_can_be_discarded(harness: Harness) -> None:
    runs = [a_failing_run() for _ in range(3)]
    await run_and_fail(harness, *runs)
    assert await harness.store.discard([runs[0].id, runs[2].id, runs[0].id], ADA) == 2
    assert await list_dead(harness) == [runs[1].id]
    assert await harness.states(runs) == [RunState.FAILED] * 3
    assert len(await harness.store.attempts(runs[0].id)) == 1
    assert await harness.store.discard([run.id for run in runs], ADA) == 1
    assert await harness.store.discard([run.id for run in runs], ADA) == 0


async def test_discarded_dead_letters_can_be_restored(harness: Harness) -> None:
    runs = [a_failing_run() for _ in range(4)]
    await run_and_fail(harness, *runs)
    await harness.store.discard(ids(runs[:3]), ADA)
    # A discarded run that was replayed cannot be restored.
    await harness.submit(a_run(replay_of=runs[2].id))
    assert await harness.store.bring_back([*ids(runs), runs[0].id, an_id()], ADA) == 2
    assert sorted(await list_dead(harness)) == sorted(ids([runs[0], runs[1], runs[3]]))
    assert await harness.store.bring_back(ids(runs), ADA) == 0
    newest = (await harness.store.audit(None))[0]
    assert (newest.action, newest.count) == ("runs.bring_back", 2)
    assert await harness.store.discard(ids(runs), ADA) == 3


async def test_only_dead_letters_can_be_discarded(harness: Harness) -> None:
    running, ended = await harness.start(a_run(queue="a"), a_run(queue="a"))
    await harness.succeed(ended)
    queued, cancelled, replayed = a_run(), a_run(delay=HOUR), a_failing_run(queue="b")
    await run_and_fail(harness, replayed)
    await harness.submit(queued, cancelled, a_run(replay_of=replayed.id))
    await harness.store.cancel([cancelled.id])
    asked = [running.id, ended.id, queued.id, cancelled.id, replayed.id, an_id()]
    assert await harness.store.discard(asked, ADA) == 0
    assert await harness.store.audit(None) == []


async def test_a_discard_is_one_audit_entry_per_tenant(harness: Harness) -> None:
    mine, others = [a_failing_run() for _ in range(2)], [a_failing_run(tenant="acme")]
    await run_and_fail(harness, *mine, *others)
    await harness.store.discard([*ids(mine), *ids(others)], ADA)
    entries = await harness.store.audit(None)
    assert sorted((entry.tenant, entry.author, entry.action, entry.count, entry.why) for entry in entries) == [
        ("acme", "ada", "runs.discard", 1, "known"),
        ("default", "ada", "runs.discard", 2, "known"),
    ]


async def test_dead_letters_are_grouped_by_fingerprint_largest_group_first(harness: Harness) -> None:
    many = await run_and_fail(harness, *(a_failing_run() for _ in range(2)), error="ValueError: no 1")
    await harness.advance(MINUTE)
    [third] = await run_and_fail(harness, a_failing_run(), error="ValueError: no 22")
    [single] = await run_and_fail(harness, a_failing_run(), error="KeyError: 'x'")
    await harness.advance(MINUTE)
    [other_task] = await run_and_fail(harness, a_failing_run(task="resize"), error="ValueError: no 3")
    groups = await harness.store.dead_groups(DEAD, 10)
    first, last = await harness.view(many[0].id), await harness.view(third.id)
    assert first.finished_at is not None
    assert last.finished_at is not None
    assert groups[0] == DeadGroup(
        fingerprint=compute_fingerprint("error", "ValueError: no 1"),
        task="greet",
        reason="error",
        count=3,
        first_at=first.finished_at,
        last_at=last.finished_at,
        sample=third.id,
        error="ValueError: no 22",
        trend=(*[0] * 23, 3),
    )
    assert [(group.task, group.count, group.sample) for group in groups[1:]] == [
        ("resize", 1, other_task.id),
        ("greet", 1, single.id),
    ]
    assert await harness.store.dead_groups(DEAD, 2) == groups[:2]


async def test_groups_follow_the_filter(harness: Harness) -> None:
    mine, others, images = a_failing_run(), a_failing_run(tenant="acme"), a_failing_run(queue="images")
    await run_and_fail(harness, mine, others, images)
    await harness.submit(a_run())

    async def counts(wanted: RunFilter) -> list[int]:
        return [group.count for group in await harness.store.dead_groups(wanted, 10)]

    assert await counts(DEAD) == await counts(RunFilter(tenant="default")) == [2]
    assert await counts(RunFilter(tenant="default", queue="images")) == [1]
    assert await counts(RunFilter(tenant="acme", dead=True)) == [1]
    assert await counts(RunFilter(tenant="beta", dead=True)) == []
    assert await counts(RunFilter(tenant=None, dead=True)) == [3]
    assert await counts(RunFilter(tenant="default", task="unknown")) == []


async def test_replayed_and_discarded_runs_are_in_no_group(harness: Harness) -> None:
    replayed, discarded, left = a_failing_run(), a_failing_run(), a_failing_run()
    await run_and_fail(harness, replayed, discarded, left)
    await harness.submit(a_run(replay_of=replayed.id))
    await harness.store.discard([discarded.id], ADA)
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.count, group.sample) == (1, left.id)
    await harness.store.purge([left.id], ADA)
    assert await harness.store.dead_groups(DEAD, 10) == []


async def test_a_group_of_runs_that_never_started_has_no_error(harness: Harness) -> None:
    await harness.submit(a_run(deadline=MINUTE))
    await harness.advance(HOUR)
    await harness.store.expire(10)
    [group] = await harness.store.dead_groups(DEAD, 10)
    assert (group.reason, group.error) == ("deadline", "")
