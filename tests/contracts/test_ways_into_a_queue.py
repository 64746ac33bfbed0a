"""A run comes into its queue in many ways. Its rank, its times and its first attempt do not depend on the way."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.runs.rank import LATE_PENALTY
from mainspring.core.model.runs.run import RunState
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_spec, a_tick, an_id, every
from tests.support.store_harness import Harness, ids

#: Queues a run at this moment and returns its id. The options are those of the run.
Way = Callable[..., Awaitable[RunId]]

KEY: dict[str, Any] = {"key": "key"}
LIMIT: dict[str, Any] = {"limits": (a_limit(),)}


async def submit(harness: Harness, beside: tuple[int, ...] = (), **options: Any) -> RunId:
    """``beside``: the delays of other runs in the same batch."""
    run = a_run(**options)
    await harness.submit(run, *(a_run(queue="other", delay=delay) for delay in beside))
    return run.id


async def stage(harness: Harness, **options: Any) -> RunId:
    run = a_run(delay=MINUTE, **options)
    await harness.submit(run)
    await harness.move_clock(MINUTE)
    assert (await harness.stage()).runs == 1
    return run.id


async def follow(harness: Harness, parts: dict[str, Any], **options: Any) -> RunId:
    """It waits for a run with the same key or limit, which ends now."""
    [held] = await harness.start(a_run(**parts))
    run = a_run(**parts, **options)
    await harness.submit(run)
    await harness.move_clock(MINUTE)
    await harness.succeed(held)
    return run.id


async def depend(harness: Harness, **options: Any) -> RunId:
    parent = a_run()
    [held] = await harness.start(parent)
    run = a_run(after=[parent], **options)
    await harness.submit(run)
    await harness.move_clock(MINUTE)
    await harness.succeed(held)
    await harness.resolve()
    return run.id


async def tick(
    harness: Harness,
    parts: dict[str, Any],
    *,
    ahead: int = 0,
    late: bool = False,
    waits: bool = False,
    **options: Any,
) -> RunId:
    """``ahead``: how long after the tick its run is due. ``waits``: its key or limit is held until now."""
    held = await harness.start(a_run(**parts)) if waits else []
    schedule = every(HOUR, start=await harness.now() + MINUTE)
    job = await harness.put(a_job(a_spec(schedule=schedule, policy=a_policy(**parts), **options)))
    assert job.next_fire is not None
    await harness.move_clock(MINUTE)
    due = a_tick(job, job.next_fire, due=job.next_fire + ahead, late=late)
    assert due.run_id is not None
    await harness.store.fire(await harness.owner(), [a_fire(job, due, next_fire=job.next_fire + HOUR)])
    if ahead:
        await harness.move_clock(ahead)
        assert (await harness.stage()).runs == 1
    await harness.succeed(*held)
    return due.run_id


async def retry(harness: Harness, parts: dict[str, Any]) -> RunId:
    [held] = await harness.start(a_run(policy=a_policy(pause=MINUTE, **parts)))
    await harness.fail(held)
    await harness.move_clock(MINUTE)
    assert (await harness.stage()).runs == 1
    return held.id


WAYS: dict[str, Way] = {
    "submitted": submit,
    "submitted in a batch": partial(submit, beside=(0,)),
    "submitted in a batch with a later one": partial(submit, beside=(DAY,)),
    "submitted with a key": partial(submit, **KEY),
    "submitted with a limit": partial(submit, **LIMIT),
    "staged": stage,
    "staged with a key": partial(stage, **KEY),
    "staged with a limit": partial(stage, **LIMIT),
    "after the holder of its key": partial(follow, parts=KEY),
    "after the holder of its limit": partial(follow, parts=LIMIT),
    "after its parent": depend,
    "tick": partial(tick, parts={}),
    "tick with a key": partial(tick, parts=KEY),
    "tick with a limit": partial(tick, parts=LIMIT),
    "tick that is due later": partial(tick, parts={}, ahead=MINUTE),
    "tick with a key that is due later": partial(tick, parts=KEY, ahead=MINUTE),
    "tick with a limit that is due later": partial(tick, parts=LIMIT, ahead=MINUTE),
    "tick after the holder of its key": partial(tick, parts=KEY, waits=True),
    "tick after the holder of its limit": partial(tick, parts=LIMIT, waits=True),
}

#: These rank as if they had been queued a minute later.
LATE_WAYS: dict[str, Way] = {
    "retry": partial(retry, parts={}),
    "retry with a key": partial(retry, parts=KEY),
    "retry with a limit": partial(retry, parts=LIMIT),
    "late tick": partial(tick, parts={}, late=True),
    "late tick with a key": partial(tick, parts=KEY, late=True),
    "late tick with a limit": partial(tick, parts=LIMIT, late=True),
    "late tick that is due later": partial(tick, parts={}, late=True, ahead=MINUTE),
    "late tick after the holder of its key": partial(tick, parts=KEY, late=True, waits=True),
    "late tick after the holder of its limit": partial(tick, parts=LIMIT, late=True, waits=True),
}


def an_id_beside(run: RunId, distance: int) -> RunId:
    """A new id that sorts before or after the one of a run, as if it was made a millisecond earlier or later."""
    return RunId(f"{int(run[:12], 16) + distance:012x}{an_id()[12:]}")


async def check_rank(harness: Harness, run: RunId) -> None:
    """Only the ids decide between a run and two that are submitted now."""
    runs = [a_run(id=an_id_beside(run, distance)) for distance in (1, -1)]
    for one in runs:
        await harness.submit(one)
    assert ids(await harness.claim(await harness.worker())) == sorted([run, *ids(runs)])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_a_run_ranks_by_the_moment_at_which_it_is_queued(harness: Harness, way: Way) -> None:
    run = await way(harness)
    await check_rank(harness, run)


@pytest.mark.parametrize("way", LATE_WAYS.values(), ids=LATE_WAYS.keys())
async def test_a_late_run_ranks_as_if_it_was_queued_a_minute_later(harness: Harness, way: Way) -> None:
    run = await way(harness)
    await harness.move_clock(LATE_PENALTY)
    await check_rank(harness, run)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
async def test_a_run_starts_with_its_first_attempt_and_its_own_times(harness: Harness, way: Way) -> None:
    run = await way(harness, start_within=HOUR, deadline=2 * HOUR)
    view = await harness.view(run)
    assert view.state is RunState.QUEUED
    assert (view.start_by, view.deadline) == (view.due + HOUR, view.due + 2 * HOUR)
    [held] = await harness.claim(await harness.worker())
    assert (held.id, held.attempt, held.lost) == (run, 1, 0)
    assert (held.started_at, held.deadline) == (await harness.now(), view.deadline)
