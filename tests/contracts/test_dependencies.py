"""Dependencies: runs that wait for the end of other runs."""

import asyncio
from collections.abc import Sequence
from itertools import product

import pytest

from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_cancel
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.workflows.dependencies import DependencyRule, EndedParent, decide
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_limit, a_policy, a_run, an_id, some_runs
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED, SCHEDULED = RunState.QUEUED, RunState.BLOCKED, RunState.SCHEDULED
SUCCEEDED, FAILED, CANCELLED, SKIPPED = RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED
NO_RETRY = a_policy(retries=0)
READER = "dashboard"


async def start_for(harness: Harness, ends: Sequence[RunState]) -> list[HeldRun]:
    """Start one run for each of these outcomes."""
    return await harness.start(*(a_run(policy=NO_RETRY) for _ in ends))


async def end_run(harness: Harness, held: HeldRun, end: RunState) -> None:
    match end:
        case RunState.SUCCEEDED:
            await harness.succeed(held)
        case RunState.FAILED:
            await harness.fail(held)
        case _:
            await harness.store.cancel([held.id])
            await harness.complete(complete_cancel(held))
    await harness.resolve()


async def test_a_child_waits_for_its_parents(harness: Harness) -> None:
    one, two = some_runs(2)
    held = await harness.start(one, two)
    child = a_run(after=[one, two])
    [accepted] = await harness.submit(child)
    assert accepted.state is BLOCKED
    await harness.succeed(held[0])
    await harness.resolve()
    assert await harness.state(child.id) is BLOCKED
    await harness.succeed(held[1])
    assert await harness.state(child.id) is QUEUED, "the completion has resolved the child"
    view = await harness.view(child.id)
    assert (view.parents, view.rule, view.limiter) == (2, DependencyRule.ALL_SUCCEEDED, None)


@pytest.mark.parametrize("rule", list(DependencyRule))
async def test_every_rule_decides_by_the_states_of_the_parents(harness: Harness, rule: DependencyRule) -> None:
    """Try all pairs of outcomes: both parents end after the submission of the child, one, or none."""
    for ends in product([SUCCEEDED, FAILED, CANCELLED], repeat=2):
        held = await start_for(harness, ends)
        child = a_run(after=held, rule=rule)
        await harness.submit(child)
        for number, (run, end) in enumerate(zip(held, ends, strict=True), 1):
            await end_run(harness, run, end)
            assert await harness.state(child.id) is _expected(rule, ends[:number], 2), (ends, number)
        late = a_run(after=held, rule=rule)
        [accepted] = await harness.submit(late)
        assert accepted.state is _expected(rule, ends, 2), ends
        await harness.store.cancel(ids([child, late]))


def _expected(rule: DependencyRule, ends: Sequence[RunState], parents: int) -> RunState:
    succeeded = sum(end is SUCCEEDED for end in ends)
    ended = EndedParent(
        parents=parents,
        succeeded=succeeded,
        otherwise=len(ends) - succeeded,
        failed=sum(end is FAILED for end in ends),
    )
    return {"wait": BLOCKED, "go": QUEUED, "skip": SKIPPED}[decide(rule, ended)]


async def test_the_reason_of_a_skip_names_the_parent(harness: Harness) -> None:
    [held] = await start_for(harness, [FAILED])
    child = a_run(after=[held])
    clean_up = a_run(after=[a_run(id=held.id)], rule=DependencyRule.ANY_FAILED)
    await harness.submit(child, clean_up)
    await harness.fail(held)
    await harness.resolve()
    view = await harness.view(child.id)
    assert (view.state, view.reason) == (SKIPPED, f"parent {held.id} failed")
    assert view.finished_at is not None
    assert await harness.state(clean_up.id) is QUEUED
    [good] = await harness.start(a_run(queue="other"))
    clean_up = a_run(after=[good], rule=DependencyRule.ANY_FAILED)
    await harness.submit(clean_up)
    await harness.succeed(good)
    await harness.resolve()
    assert (await harness.view(clean_up.id)).reason == "nothing to clean up"


async def test_a_skip_propagates_through_generations_of_children(harness: Harness) -> None:
    [held] = await start_for(harness, [FAILED])
    generations = [a_run(after=[held])]
    for _ in range(30):
        generations.append(a_run(after=[generations[-1]]))
    last = a_run(after=[generations[-1]], rule=DependencyRule.ALL_DONE)
    await harness.submit(*reversed(generations), last)
    await harness.fail(held)
    await harness.resolve()
    assert set(await harness.states(generations)) == {SKIPPED}
    assert await harness.state(last.id) is QUEUED


async def test_a_graph_can_be_submitted_in_one_batch_in_any_order(harness: Harness) -> None:
    top = a_run()
    left, right = a_run(after=[top]), a_run(after=[top])
    bottom = a_run(after=[left, right])
    accepted = await harness.submit(bottom, right, top, left)
    assert [answer.state for answer in accepted] == [BLOCKED, BLOCKED, QUEUED, BLOCKED]
    worker = await harness.worker()
    order = []
    while held := await harness.claim(worker):
        order.append(sorted(ids(held)))
        await harness.succeed(*held)
    assert order == [[top.id], sorted([left.id, right.id]), [bottom.id]]


async def test_parents_may_be_in_any_state(harness: Harness) -> None:
    done, running = await harness.start(*some_runs(2))
    await harness.succeed(done)
    delayed, queued = a_run(delay=HOUR), a_run()
    await harness.submit(delayed, queued)
    await harness.advance(DAY)
    children = [a_run(after=[parent]) for parent in (done, running, delayed, queued)]
    accepted = await harness.submit(*children)
    assert [answer.state for answer in accepted] == [QUEUED, BLOCKED, BLOCKED, BLOCKED]


async def test_an_unknown_parent_rejects_the_whole_batch(harness: Harness) -> None:
    plain, parent = a_run(), a_run(tenant="acme")
    await harness.submit(parent)
    for missing in (an_id(), parent.id):
        child = a_run(after=[plain, a_run(id=missing)])
        with pytest.raises(NotFound, match=missing):
            await harness.submit(plain, child)
    assert await harness.store.runs(ids([plain, child])) == [None, None]


async def test_a_dependency_cycle_rejects_the_whole_batch(harness: Harness) -> None:
    one, two = an_id(), an_id()
    circle = [a_run(id=one, after=[a_run(id=two)]), a_run(id=two, after=[a_run(id=one)])]
    with pytest.raises(Invalid, match="circle"):
        await harness.submit(a_run(), *circle)
    with pytest.raises(Invalid, match="circle"):
        await harness.submit(a_run(id=one, after=[a_run(id=one)]))
    assert await harness.store.runs([one, two]) == [None, None]


async def test_a_known_run_in_the_batch_can_be_a_parent(harness: Harness) -> None:
    key, unique = Idempotency("order-1", b"x"), Unique(key="report")
    by_key, by_unique = a_run(idempotency=key), a_run(unique=unique)
    await harness.submit(by_key, by_unique)
    again = [a_run(idempotency=key), a_run(unique=unique)]
    child = a_run(after=again)
    answers = await harness.submit(*again, child)
    assert [(answer.id, answer.new) for answer in answers[:2]] == [(by_key.id, False), (by_unique.id, False)]
    assert view_ids(await harness.store.parents(child.id)) == [by_key.id, by_unique.id]
    held = await harness.claim(await harness.worker())
    await harness.succeed(*held)
    await harness.resolve()
    assert await harness.state(child.id) is QUEUED


async def test_a_resolved_child_waits_for_its_due_time(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    later, soon = a_run(after=[held], delay=HOUR), a_run(after=[held], delay=MINUTE)
    accepted = await harness.submit(later, soon)
    assert [answer.state for answer in accepted] == [BLOCKED, BLOCKED]
    await harness.advance(10 * MINUTE)
    assert (await harness.stage()).runs == 0
    before = await harness.now()
    await harness.succeed(held)
    await harness.resolve()
    assert await harness.states([later, soon]) == [SCHEDULED, QUEUED]
    assert before <= (await harness.view(soon.id)).due <= await harness.now(), "the child is due when it is resolved"
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 1
    assert await harness.state(later.id) is QUEUED


async def test_time_limits_of_a_child_count_from_its_resolution(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    child = a_run(after=[held], start_within=10 * MINUTE, deadline=20 * MINUTE)
    await harness.submit(child)
    await harness.advance(HOUR)
    assert await harness.store.expire(10) == 0
    await harness.succeed(held)
    await harness.resolve()
    view = await harness.view(child.id)
    assert (view.state, view.start_by, view.deadline) == (QUEUED, view.due + 10 * MINUTE, view.due + 20 * MINUTE)
    await harness.advance(11 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.state(child.id) is SKIPPED


async def test_a_child_takes_its_ordering_key_and_limits_after_its_parents(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    keyed = a_run(after=[held], key="video")
    limited = a_run(after=[held], limits=(a_limit(),))
    await harness.submit(keyed, limited)
    first, other = a_run(key="video"), a_run(limits=(a_limit(),))
    accepted = await harness.submit(first, other)
    assert [answer.state for answer in accepted] == [QUEUED, QUEUED], "a run that waits for its parents holds no limit"
    await harness.succeed(held)
    await harness.resolve()
    assert await harness.states([keyed, limited]) == [BLOCKED, BLOCKED]
    assert (await harness.view(limited.id)).limiter is not None
    await harness.succeed(*await harness.claim(await harness.worker()))
    assert await harness.states([keyed, limited]) == [QUEUED, QUEUED]


@pytest.mark.parametrize(
    "way", ["cancelled while queued", "cancelled while it waits", "expired", "deadline", "replaced", "worker left"]
)
async def test_every_way_to_end_a_parent_resolves_its_children(harness: Harness, way: str) -> None:
    match way:
        case "cancelled while queued" | "cancelled while it waits":
            parent = a_run(delay=HOUR if way.endswith("waits") else 0)
        case "expired":
            parent = a_run(start_within=MINUTE)
        case "deadline":
            parent = a_run(deadline=MINUTE)
        case "replaced":
            parent = a_run(unique=Unique(key="report"))
        case _:
            worker = await harness.worker()
            parent = a_run(target=worker)
    await harness.submit(parent)
    child, done = a_run(after=[parent]), a_run(after=[parent], rule=DependencyRule.ALL_DONE)
    await harness.submit(child, done)
    match way:
        case "cancelled while queued" | "cancelled while it waits":
            await harness.store.cancel([parent.id])
        case "expired" | "deadline":
            await harness.advance(2 * MINUTE)
            await harness.store.expire(10)
        case "replaced":
            await harness.submit(a_run(unique=Unique(key="report", otherwise="replace"), queue="other"))
        case _:
            await harness.store.close_session(worker)
            await harness.store.expire(10)
    await harness.resolve()
    assert await harness.states([child, done]) == [SKIPPED, QUEUED]
    assert (await harness.view(child.id)).reason == f"parent {parent.id} {await harness.state(parent.id)}"


async def test_an_unreadable_parent_resolves_its_children(harness: Harness) -> None:
    parent = a_run()
    await harness.submit(parent)
    child = a_run(after=[parent], rule=DependencyRule.ANY_FAILED)
    await harness.submit(child)
    await harness.spoil_policy(parent.id)
    worker = await harness.worker()
    await harness.claim(worker)
    await harness.resolve()
    assert await harness.states([parent, child]) == [FAILED, QUEUED]


async def test_a_parent_that_is_retried_has_not_ended(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    child = a_run(after=[held])
    await harness.submit(child)
    await harness.fail(held)
    await harness.resolve()
    assert await harness.state(child.id) is BLOCKED


async def test_cancelling_a_waiting_child_resolves_its_own_children(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    child = a_run(after=[held])
    grandchild = a_run(after=[child])
    await harness.submit(child, grandchild)
    await harness.store.cancel([child.id])
    await harness.resolve()
    assert await harness.states([child, grandchild]) == [CANCELLED, SKIPPED]
    await harness.succeed(held)
    await harness.resolve()
    assert await harness.states([child, grandchild]) == [CANCELLED, SKIPPED]


async def test_an_edited_child_still_waits_for_its_parents(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    child = a_run(after=[held])
    await harness.submit(child)
    edited = a_run(id=child.id, queue="other", delay=HOUR, start_within=MINUTE)
    answer = await harness.store.edit_run(edited, Author("ada"))
    assert answer is not None
    assert answer.state is BLOCKED
    await harness.succeed(held)
    await harness.resolve()
    view = await harness.view(child.id)
    assert (view.state, view.queue, view.start_by) == (SCHEDULED, "other", view.due + MINUTE)


async def test_a_child_submitted_twice_is_one_run(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    child = a_run(after=[held])
    await harness.submit(child)
    [again] = await harness.submit(child)
    assert (again.new, again.state) == (False, BLOCKED)
    await harness.succeed(held)
    await harness.resolve()
    [again] = await harness.submit(child)
    assert (again.new, again.state) == (False, QUEUED)


async def test_lets_go_is_set_for_a_run_with_children(harness: Harness) -> None:
    parent = a_run()
    await harness.submit(parent, a_run(after=[parent]))
    [held] = await harness.claim(await harness.worker())
    assert held.unblocks_others


async def test_resolved_and_skipped_children_emit_events(harness: Harness) -> None:
    good, bad = await start_for(harness, [SUCCEEDED, FAILED])
    await harness.store.attach_reader(READER)
    goes, skipped = a_run(after=[good]), a_run(after=[bad])
    await harness.submit(goes, skipped)
    await harness.succeed(good)
    await harness.fail(bad)
    await harness.resolve()
    events = [(kind, run) for kind, runs in await harness.unread_events(READER) for run in runs]
    assert ("run.queued", goes.id) in events
    assert ("run.skipped", skipped.id) in events
    assert ("run.queued", skipped.id) not in events


async def test_parents_and_children_can_be_listed(harness: Harness) -> None:
    one, two = some_runs(2)
    await harness.submit(one, two)
    children = [a_run(after=[two, one]) for _ in range(3)]
    await harness.submit(*reversed(children))
    for child in children:
        assert view_ids(await harness.store.parents(child.id)) == [two.id, one.id]
        assert await harness.store.parent_ids(child.id) == [two.id, one.id]
    assert view_ids(await harness.store.children(one.id, None, 2)) == ids(children[:2])
    assert view_ids(await harness.store.children(one.id, children[1].id, 2)) == ids(children[2:])
    assert await harness.store.parents(one.id) == []
    assert await harness.store.children(children[0].id, None, 10) == []
    await harness.succeed(*await harness.claim(await harness.worker()))
    await harness.resolve()
    assert [view.state for view in await harness.store.parents(children[0].id)] == [SUCCEEDED, SUCCEEDED]
    assert len(await harness.store.children(one.id, None, 10)) == 3, "dependencies are kept"
    mine, others = harness.store.seen_by("default"), harness.store.seen_by("acme")
    assert len(await mine.parents(children[0].id)) == 2
    assert await others.parents(children[0].id) == []
    assert await others.children(one.id, None, 10) == []


async def test_pruned_parents_are_missing_in_the_list(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.succeed(held)
    child = a_run(after=[held], delay=300 * DAY)
    await harness.submit(child)
    await harness.store.purge([held.id], Author("ada"))
    assert await harness.store.parents(child.id) == []
    assert (await harness.view(child.id)).parents == 1
    await harness.store.cancel([child.id])
    await harness.advance(40 * DAY)
    while await harness.store.prune(Retention(), 1_000):
        pass
    assert await harness.store.runs([child.id]) == [None]
    assert await harness.store.children(held.id, None, 10) == []


async def test_a_parent_purged_before_the_resolution_counts_as_ended(harness: Harness) -> None:
    parent = a_run()
    child = a_run(after=[parent], rule=DependencyRule.ALL_DONE)
    await harness.submit(parent, child)
    await harness.store.cancel([parent.id])
    await harness.store.purge([parent.id], Author("ada"))
    await harness.resolve()
    assert await harness.state(child.id) is QUEUED


async def test_many_children_are_resolved_in_batches(harness: Harness) -> None:
    parent = a_run()
    children = [a_run(after=[parent], queue="children") for _ in range(250)]
    await harness.submit(parent, *children)
    await harness.store.cancel([parent.id])
    found, calls = 0, 0
    while some := await harness.store.resolve(100):
        found, calls = found + some, calls + 1
    assert (found, calls >= 3) == (250, True)
    assert set(await harness.states(children)) == {SKIPPED}


async def test_a_child_of_many_parents_is_queued_once(harness: Harness) -> None:
    parents = some_runs(60)
    child = a_run(after=parents, queue="child")
    await harness.submit(*parents, child)
    worker = await harness.worker()
    held = await harness.claim(worker)
    await harness.store.attach_reader(READER)
    await asyncio.gather(*(harness.succeed(*held[start : start + 10]) for start in range(0, 60, 10)))
    await asyncio.gather(*(harness.resolve() for _ in range(3)))
    assert await harness.state(child.id) is QUEUED
    queued = [run for kind, runs in await harness.unread_events(READER) if kind == "run.queued" for run in runs]
    assert queued == [child.id]


async def test_children_submitted_while_their_parent_ends_are_not_lost(harness: Harness) -> None:
    """The submit sees a running parent, the completion sees no children: without a lock nothing resolves them."""
    worker = await harness.worker()
    for _ in range(30):
        parent = a_run(queue="parents")
        await harness.submit(parent)
        [held] = await harness.claim(worker, queue="parents")
        child = a_run(after=[parent])
        await asyncio.gather(harness.submit(child), harness.succeed(held))
        await harness.resolve()
        assert await harness.state(child.id) is QUEUED


async def test_a_graph_of_layers_completes(harness: Harness) -> None:
    layers: list[list[NewRun]] = [some_runs(5)]
    for _ in range(5):
        layers.append([a_run(after=layers[-1]) for _ in range(5)])
    await harness.submit(*(run for layer in layers for run in layer))
    worker = await harness.worker()
    done: list[RunId] = []
    while held := await harness.claim(worker):
        done += ids(held)
        await harness.succeed(*held)
        await harness.resolve()
    assert [set(done[start : start + 5]) for start in range(0, 30, 5)] == [set(ids(layer)) for layer in layers]


def view_ids(views: Sequence[object]) -> list[RunId]:
    return [view.id for view in views]  # type: ignore[attr-defined]
