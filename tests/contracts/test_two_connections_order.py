"""Locks of PostgreSQL are taken in one order, independent of the order of a batch, so that two batches never deadlock.

A second connection holds one of two rows. A call that needs both waits for it. If it waits for the first row in order,
it must not hold the second one yet; if it waits for the second, it must hold the first one already.
"""

import hashlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.limits import build_limiters
from mainspring.core.model.runs.completion import CompletionAnswer, complete_release, complete_success
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.job import JobState
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.postgres.rows import compute_order_lock
from tests.support.boundaries import on_every_claim_path, prepare_claim_path
from tests.support.builders import a_job, a_limit, a_run, a_spec, every
from tests.support.kept_connections import KeptConnections
from tests.support.plans import read_rows_as_they_lie
from tests.support.rival import Rival, connect_rival, open_frozen_store
from tests.support.store_harness import PostgresHarness, ids

pytestmark = pytest.mark.postgres

#: A query for one row, and the keys of the two rows that a call needs, in lock order.
Rows = tuple[str, Sequence[object]]

which_row_is_held = pytest.mark.parametrize("held", [0, 1], ids=["first held", "second held"])
whatever_the_order = pytest.mark.parametrize("reverse", [False, True], ids=["in order", "in reverse"])


@pytest.fixture
async def harness(
    contract_database: str, monkeypatch: pytest.MonkeyPatch, kept_connections: KeptConnections
) -> AsyncIterator[PostgresHarness]:
    read_rows_as_they_lie(monkeypatch)
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


@pytest.fixture
async def rival(harness: PostgresHarness) -> AsyncIterator[Rival]:
    async with connect_rival(harness) as rival:
        yield rival


async def check_order(rival: Rival, call: Coroutine[Any, Any, object], rows: Rows, held: int) -> None:
    """Hold one of two rows, run a call that needs both, and check that it locks the first one first."""
    query, keys = rows
    await rival.hold(query, keys[held])
    waiting = await rival.waits(call)
    assert await rival.is_locked(query, keys[1 - held]) is (held == 1)
    await rival.release()
    await waiting


async def submit_each(harness: PostgresHarness, runs: Sequence[NewRun]) -> None:
    """Submit one run after the other: the rows of a batch would lie in lock order."""
    for run in runs:
        await harness.submit(run)


async def run_each(harness: PostgresHarness, runs: Sequence[NewRun]) -> None:
    for run in runs:
        await harness.succeed(*await harness.start(run))


def in_order(things: Sequence[Any], reverse: bool) -> list[Any]:
    return list(reversed(things)) if reverse else list(things)


def sort_names(number: Any) -> list[str]:
    """Return two names, the one with the smaller number first."""
    return sorted(("one", "two"), key=number)


def limiter_number(name: str) -> int:
    [limiter] = build_limiters("default", "greet", (a_limit(name, 5),), None)
    return limiter.number


def key_number(name: str) -> int:
    return compute_order_lock("default", name)


def runs_of(kind: str, reverse: bool, **more: Any) -> tuple[list[NewRun], Rows]:
    """Return two runs, each with a key or a limit of its own, and the rows that they lock."""
    if kind == "ordering key":
        names = sort_names(key_number)
        runs = [a_run(key=name, **more) for name in names]
        return in_order(runs, reverse), ("key_lock WHERE key = $1", [key_number(name) for name in names])
    names = sort_names(limiter_number)
    runs = [a_run(limits=(a_limit(name, 5),), **more) for name in names]
    return in_order(runs, reverse), ("limiter WHERE number = $1", [limiter_number(name) for name in names])


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@which_row_is_held
@whatever_the_order
async def test_a_submit_locks_keys_and_limits_in_order(
    harness: PostgresHarness, rival: Rival, kind: str, held: int, reverse: bool
) -> None:
    runs, rows = runs_of(kind, reverse)
    await run_each(harness, runs)
    again, _ = runs_of(kind, reverse)
    await check_order(rival, harness.submit(*again), rows, held)


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@which_row_is_held
@whatever_the_order
async def test_a_completion_locks_keys_and_limits_in_order(
    harness: PostgresHarness, rival: Rival, kind: str, held: int, reverse: bool
) -> None:
    runs, rows = runs_of(kind, reverse)
    await submit_each(harness, runs)
    claimed = await harness.claim(await harness.worker())
    call = harness.store.complete([complete_success(one, None) for one in claimed])
    await check_order(rival, call, rows, held)


@pytest.mark.parametrize("kind", ["ordering key", "limit"])
@which_row_is_held
@whatever_the_order
async def test_staging_locks_keys_and_limits_in_order(
    harness: PostgresHarness, rival: Rival, kind: str, held: int, reverse: bool
) -> None:
    await harness.owner()
    runs, rows = runs_of(kind, reverse)
    await run_each(harness, runs)
    again, _ = runs_of(kind, reverse, delay=MINUTE)
    await harness.submit(*again)
    await harness.move_clock(MINUTE)
    await check_order(rival, harness.stage(), rows, held)


@which_row_is_held
@whatever_the_order
async def test_a_claim_locks_limits_per_period_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    limits = {name: a_limit(name, 5, HOUR) for name in ("one", "two")}
    numbers = {name: build_limiters("default", "greet", (limit,), None)[0].number for name, limit in limits.items()}
    names = sorted(limits, key=numbers.__getitem__)
    await submit_each(harness, [a_run(limits=(limits[name],)) for name in in_order(names, reverse)])
    worker = await harness.worker()
    rows = ("limiter WHERE number = $1", [numbers[name] for name in names])
    await check_order(rival, harness.claim(worker), rows, held)


@which_row_is_held
@whatever_the_order
async def test_a_submit_locks_used_idempotency_keys_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    digests = {name: hashlib.sha256(name.encode()).digest() for name in ("one", "two")}
    names = sorted(digests, key=digests.__getitem__)

    def some_runs() -> list[NewRun]:
        return [a_run(idempotency=Idempotency(name, b"same")) for name in in_order(names, reverse)]

    await submit_each(harness, some_runs())
    await harness.move_clock(KEYS_KEPT)
    rows = ("idempotency WHERE key = $1", [digests[name] for name in names])
    await check_order(rival, harness.submit(*some_runs()), rows, held)


@which_row_is_held
@whatever_the_order
async def test_a_submit_locks_unique_keys_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    digests = {name: hashlib.sha256(name.encode()).digest() for name in ("one", "two")}
    names = sorted(digests, key=digests.__getitem__)

    def some_runs() -> list[NewRun]:
        return [a_run(unique=Unique(key=name)) for name in in_order(names, reverse)]

    await submit_each(harness, some_runs())
    rows = ("unique_run WHERE key = $1", [digests[name] for name in names])
    await check_order(rival, harness.submit(*some_runs()), rows, held)


@pytest.mark.parametrize("place", ["waiting", "run"])
@which_row_is_held
@whatever_the_order
async def test_a_submit_locks_parents_in_order(
    harness: PostgresHarness, rival: Rival, place: str, held: int, reverse: bool
) -> None:
    parents = [a_run(delay=DAY if place == "waiting" else 0) for _ in range(2)]
    await harness.submit(*in_order(parents, reverse))
    child = a_run(after=in_order(parents, reverse))
    await check_order(rival, harness.submit(child), (f"{place} WHERE id = $1", ids(parents)), held)


@which_row_is_held
@whatever_the_order
async def test_resolving_locks_children_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    parent = a_run(delay=DAY)
    children = [a_run(after=[parent]) for _ in range(2)]
    await submit_each(harness, [parent, *in_order(children, reverse)])
    # The parent has ended, and its children are not decided yet.
    await harness._connection.execute("INSERT INTO ended_parent (run_id, state, at) VALUES ($1, 5, 0)", parent.id)
    await check_order(rival, harness.resolve(), ("waiting WHERE id = $1", ids(children)), held)


@which_row_is_held
@whatever_the_order
async def test_many_leases_are_renewed_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    workers: list[SessionId] = [await harness.worker() for _ in range(2)]
    if reverse:
        # The new version of its row lies behind that of the other.
        await harness.store.renew_leases([(workers[0], HOUR)])
    call = harness.store.renew_leases([(worker, HOUR) for worker in in_order(workers, reverse)])
    await check_order(rival, call, ("session WHERE id = $1", workers), held)


@which_row_is_held
@whatever_the_order
async def test_epochs_are_raised_in_order(harness: PostgresHarness, rival: Rival, held: int, reverse: bool) -> None:
    member = await harness.store.join("member", HOUR)
    if reverse:
        # The new version of its row lies behind that of the other.
        await harness.store.take(await harness.store.join("other", HOUR), [1])
    epochs = await harness.store.epochs([1, 2])
    call = harness.store.seal(member, {shard: epochs[shard] for shard in in_order([1, 2], reverse)})
    await check_order(rival, call, ("shard WHERE id = $1", [1, 2]), held)


@which_row_is_held
@whatever_the_order
async def test_jobs_change_their_state_in_order(
    harness: PostgresHarness, rival: Rival, held: int, reverse: bool
) -> None:
    new = [a_job(a_spec(schedule=every(DAY))) for _ in range(2)]
    jobs = [(await harness.put(job)).id for job in in_order(new, reverse)]
    call = harness.store.set_jobs_state(jobs, JobState.PAUSED)
    await check_order(rival, call, ("job WHERE id = $1", [job.id for job in new]), held)


@on_every_claim_path
async def test_a_fence_that_was_drawn_earlier_is_raised_above_that_of_the_run(
    harness: PostgresHarness, path: str
) -> None:
    """Another claim may draw its fence later, and start and release the run before this one finds it."""
    way = await prepare_claim_path(harness, path)
    worker, run = await way.worker(HOUR), way.adapt(a_run())
    await harness.submit(run)
    [first] = await way.claim(worker, [run])
    await harness.complete(complete_release(first))
    await harness._connection.execute("SELECT setval('fence_seq', 1)")
    [second] = await way.claim(worker, [run])
    assert second.fence > first.fence
    assert await harness.complete(complete_success(first, None)) == [CompletionAnswer.STALE]
    assert await harness.complete(complete_success(second, None)) == [CompletionAnswer.ACCEPTED]
    # Later tests draw from the same sequence.
    await harness._connection.execute("SELECT setval('fence_seq', $1)", first.fence & ((1 << 40) - 1))


async def test_one_claim_may_give_runs_different_fences(harness: PostgresHarness) -> None:
    worker, old, new = await harness.worker(), a_run(), a_run()
    await harness.submit(old)
    [first] = await harness.claim(worker)
    await harness.complete(complete_release(first))
    await harness.submit(new)
    await harness._connection.execute("SELECT setval('fence_seq', 1)")
    fences = {held.id: held.fence for held in await harness.claim(worker)}
    assert fences[old.id] == first.fence + 1
    assert fences[new.id] < first.fence
    await harness._connection.execute("SELECT setval('fence_seq', $1)", first.fence & ((1 << 40) - 1))
