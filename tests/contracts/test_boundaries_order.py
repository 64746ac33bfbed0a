"""Order: one microsecond decides between two runs, and the id decides a tie."""

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.rank import HEAD_START, LATE_PENALTY
from mainspring.core.model.runs.run import RunState
from tests.support.boundaries import (
    around_the_boundary,
    on_every_claim_path,
    prepare_claim_path,
    skip_on_a_sharded_store,
)
from tests.support.builders import a_job, a_limit, a_run, a_spec, an_id, every
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED = RunState.QUEUED, RunState.BLOCKED


def two_ids(larger_first: bool) -> tuple[str, str]:
    """Two new ids, the smaller one first unless asked otherwise."""
    smaller, larger = an_id(), an_id()
    return (larger, smaller) if larger_first else (smaller, larger)


@on_every_claim_path
@pytest.mark.parametrize("larger_first", [False, True])
async def test_a_claim_takes_the_smaller_id_of_two_equal_runs(harness: Harness, path: str, larger_first: bool) -> None:
    way = await prepare_claim_path(harness, path)
    runs = [way.adapt(a_run(id=one)) for one in two_ids(larger_first)]  # type: ignore[arg-type]
    for run in runs:
        await harness.submit(run)
    worker = await way.worker(HOUR)
    hinted = sorted(runs, key=lambda run: run.id)[:1] if path == "hinted" else runs
    assert ids(await way.claim(worker, hinted, 1)) == [min(ids(runs))]


@on_every_claim_path
@around_the_boundary
async def test_an_older_run_goes_first_after_one_head_start(harness: Harness, path: str, offset: int) -> None:
    """A less urgent run goes first if it is more than a head start older; a tie goes to the smaller id."""
    way = await prepare_claim_path(harness, path)
    worker = await way.worker(HOUR)
    urgent = way.adapt(a_run(priority=4))
    older = way.adapt(a_run(priority=5))
    # A batch is ranked by another statement than a single run.
    await harness.submit(older, a_run(queue="other"))
    await harness.move_clock(HEAD_START + offset)
    await harness.submit(urgent)
    first = older if offset > 0 else urgent
    claimed = await way.claim(worker, [urgent, older])
    assert claimed[0].id == first.id
    assert len(claimed) == 2


@around_the_boundary
async def test_a_lost_run_goes_behind_runs_of_the_next_minute(harness: Harness, offset: int) -> None:
    fresh = a_run()
    [held] = await harness.start(a_run())
    await harness.complete(complete_loss(held, blamed=False))
    await harness.move_clock(LATE_PENALTY + offset)
    await harness.submit(fresh)
    [first, _] = await harness.claim(await harness.worker())
    assert first.id == (held.id if offset > 0 else fresh.id)


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@around_the_boundary
async def test_the_run_that_is_due_first_goes_first(harness: Harness, kind: str, offset: int) -> None:
    """Of two blocked runs the one that is due first follows; the smaller id decides a tie."""
    parts = {"key": "key"} if kind == "ordering key" else {"limits": (a_limit(),)}

    def a_blocked_run(at: int) -> NewRun:
        return a_run(at=at, **parts)

    [held] = await harness.start(a_run(**parts))
    await harness.move_clock(MINUTE)
    due = held.started_at + 10
    smaller, larger = a_blocked_run(due), a_blocked_run(due + offset)
    await harness.submit(larger)
    await harness.submit(smaller)
    assert await harness.states([smaller, larger]) == [BLOCKED, BLOCKED]
    await harness.succeed(held)
    expected = [BLOCKED, QUEUED] if offset < 0 else [QUEUED, BLOCKED]
    assert await harness.states([smaller, larger]) == expected


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@around_the_boundary
async def test_a_batch_takes_its_key_in_the_order_of_due_time_and_id(harness: Harness, kind: str, offset: int) -> None:
    parts = {"key": "key"} if kind == "ordering key" else {"limits": (a_limit(),)}
    now = await harness.now()
    smaller, larger = (a_run(at=now - 10 + add, **parts) for add in (0, offset))
    await harness.submit(larger, smaller)
    expected = [BLOCKED, QUEUED] if offset < 0 else [QUEUED, BLOCKED]
    assert await harness.states([smaller, larger]) == expected


@pytest.mark.parametrize("kind", ["plain", "ordering key", "limit"])
@around_the_boundary
async def test_staging_takes_the_oldest_run_of_a_shard_first(harness: Harness, kind: str, offset: int) -> None:
    """The smaller id decides a tie of runs with a key or a limit."""
    parts = {"plain": {}, "ordering key": {"key": "key"}, "limit": {"limits": (a_limit(),)}}[kind]
    due = await harness.now() + MINUTE
    one, two = a_run(at=due, shard=3, **parts), a_run(at=due + offset, shard=3, **parts)  # type: ignore[arg-type]
    await harness.submit(two)
    await harness.submit(one)
    await harness.move_clock(HOUR)
    assert (await harness.stage(1)).runs == 1
    states = await harness.states([one, two])
    if offset or kind != "plain":
        assert states == ([QUEUED, RunState.SCHEDULED] if offset >= 0 else [RunState.SCHEDULED, QUEUED])
    else:
        assert sorted(states) == sorted([QUEUED, RunState.SCHEDULED])


@around_the_boundary
async def test_due_jobs_and_upcoming_runs_are_cut_after_the_earliest(harness: Harness, offset: int) -> None:
    due = await harness.now() + MINUTE
    # Upcoming runs are listed by the millisecond.
    late, early = sorted((due, due + 1_000 * offset), reverse=True)
    for at in (late, early):
        await harness.put(a_job(a_spec(schedule=every(HOUR, start=at)), shard=3))
        await harness.submit(a_run(at=at, shard=3))
    [job] = await harness.store.due_jobs([3], due + HOUR, 1)
    assert job.next_fire == early
    [(_, upcoming)] = await harness.store.upcoming([3], due + HOUR, 1)
    assert early <= upcoming < early + 1_000


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@around_the_boundary
async def test_staging_takes_the_oldest_blocked_run_of_all_shards_first(
    harness: Harness, kind: str, offset: int
) -> None:
    skip_on_a_sharded_store(harness, "each server of a sharded store stages up to the limit")
    parts = {"key": "key"} if kind == "ordering key" else {"limits": (a_limit(),)}
    due = await harness.now() + MINUTE
    one, two = (a_run(at=due + add, shard=shard, **parts) for add, shard in ((0, 4), (offset, 3)))
    await harness.submit(two)
    await harness.submit(one)
    await harness.move_clock(HOUR)
    assert (await harness.stage(1)).runs == 1
    # The smaller id decides a tie.
    first = one if offset >= 0 else two
    assert await harness.states([first]) == [QUEUED]


@pytest.mark.parametrize("place", ["queued", "scheduled"])
@pytest.mark.parametrize("missed", ["start_within", "deadline"])
@pytest.mark.parametrize("larger_first", [False, True])
async def test_expiry_ends_the_run_whose_time_passed_first(
    harness: Harness, place: str, missed: str, larger_first: bool
) -> None:
    delay = MINUTE if place == "scheduled" else 0
    first, second = (
        a_run(id=one, delay=delay, **{missed: MINUTE + add})  # type: ignore[arg-type]
        for add, one in enumerate(two_ids(larger_first))
    )
    await harness.submit(second)
    await harness.submit(first)
    await harness.move_clock(HOUR)
    assert await harness.store.expire(1) == 1
    assert [state.ended for state in await harness.states([first, second])] == [True, False]
