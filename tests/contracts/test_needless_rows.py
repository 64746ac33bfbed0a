"""PostgreSQL writes no row that nothing reads: an event without a reader, or the end of a run without children.

Every call would pay for them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.boundaries import ADA, CLAIM_PATHS, prepare_claim_path
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, every
from tests.support.kept_connections import KeptConnections
from tests.support.rival import open_frozen_store
from tests.support.store_harness import PostgresHarness, ids

pytestmark = pytest.mark.postgres


@pytest.fixture
async def harness(contract_database: str, kept_connections: KeptConnections) -> AsyncIterator[PostgresHarness]:
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


async def submit_in_every_way(harness: PostgresHarness) -> None:
    await harness.submit(a_run())
    await harness.submit(a_run(), a_run())
    await harness.submit(a_run(), a_run(delay=HOUR))
    await harness.submit(a_run(key="key"), a_run(key="key"))


async def claim_on_every_path(harness: PostgresHarness) -> None:
    for path in CLAIM_PATHS:
        way = await prepare_claim_path(harness, path)
        worker, run = await way.worker(HOUR), way.adapt(a_run())
        await harness.submit(run)
        assert await way.claim(worker, [run])


async def complete_in_every_way(harness: PostgresHarness) -> None:
    released, succeeded, retried, failed = await harness.start(
        a_run(), a_run(), a_run(), a_run(policy=a_policy(retries=0))
    )
    await harness.complete(complete_release(released))
    await harness.succeed(succeeded)
    await harness.fail(retried, failed)


async def return_by_a_heartbeat(harness: PostgresHarness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    await harness.claim(worker)
    assert (await harness.store.heartbeat(worker, HOUR, (), (), harness.last_claim(worker))).returned == 1


async def cancel_in_every_state(harness: PostgresHarness) -> None:
    [running] = await harness.start(a_run())
    runs = [a_run(), a_run(delay=HOUR)]
    await harness.submit(*runs)
    await harness.store.cancel([running.id, *ids(runs)])


async def expire_in_every_state(harness: PostgresHarness) -> None:
    await harness.submit(a_run(start_within=MINUTE), a_run(delay=MINUTE, deadline=MINUTE))
    await harness.move_clock(HOUR)
    assert await harness.store.expire(10) == 2


async def replace(harness: PostgresHarness) -> None:
    for _ in range(2):
        await harness.submit(a_run(unique=Unique(key="key", otherwise="replace")))


async def finish(harness: PostgresHarness) -> None:
    runs = [a_run(), a_run(delay=HOUR)]
    await harness.submit(*runs)
    await harness.store.finish([KnownOutcome(run=run.id, state=RunState.CANCELLED) for run in runs], ADA)


async def stage_in_every_way(harness: PostgresHarness) -> None:
    await harness.submit(a_run(delay=MINUTE), a_run(delay=MINUTE, key="key"), a_run(delay=MINUTE, limits=(a_limit(),)))
    await harness.move_clock(MINUTE)
    assert (await harness.stage()).runs == 3


async def pass_on(harness: PostgresHarness) -> None:
    """A key and a limit."""
    [with_key, with_limit] = await harness.start(a_run(key="key"), a_run(limits=(a_limit(),)))
    runs = [a_run(key="key"), a_run(limits=(a_limit(),))]
    await harness.submit(*runs)
    await harness.succeed(with_key, with_limit)
    assert await harness.states(runs) == [RunState.QUEUED] * 2


async def release_a_child(harness: PostgresHarness) -> None:
    [parent] = await harness.start(a_run())
    child = a_run(after=[parent])
    await harness.submit(child)
    await harness.succeed(parent)
    await harness.resolve()
    assert await harness.state(child.id) is RunState.QUEUED


async def recall(harness: PostgresHarness) -> None:
    policy = a_policy(retries=0, breaker=Breaker(failures=1))
    held = await harness.start(a_run(policy=policy))
    await harness.submit(a_run(policy=policy))
    await harness.fail(*held)


async def fire(harness: PostgresHarness) -> None:
    for policy in (a_policy(), a_policy(key="key"), a_policy(limits=(a_limit(),))):
        await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + MINUTE), policy=policy)))
    await harness.move_clock(MINUTE)
    assert [fired.runs for fired in await harness.fire_due()] == [1, 1, 1]


async def open_and_lose_sessions(harness: PostgresHarness) -> None:
    worker = await harness.worker(MINUTE)
    await harness.store.close_session(await harness.worker())
    await harness.move_clock(MINUTE)
    assert await harness.store.lost_runs(10) == []
    assert not (await harness.store.heartbeat(worker, HOUR, (), (), 0)).alive


@pytest.mark.parametrize(
    "act",
    [
        *(submit_in_every_way, claim_on_every_path, complete_in_every_way, return_by_a_heartbeat),
        *(cancel_in_every_state, expire_in_every_state, replace, finish, stage_in_every_way, pass_on),
        *(release_a_child, recall, fire, open_and_lose_sessions),
    ],
)
async def test_no_event_is_stored_without_a_reader_and_no_end_without_children(
    harness: PostgresHarness, act: Callable[[PostgresHarness], Awaitable[None]]
) -> None:
    await act(harness)
    assert await harness._connection.fetchval("SELECT count(*) FROM outbox") == 0
    assert await harness._connection.fetchval("SELECT count(*) FROM ended_parent") == 0


async def test_upkeep_deletes_an_ended_session_a_week_later_unless_it_owns_shards_or_runs(
    harness: PostgresHarness,
) -> None:
    idle, busy = await harness.worker(MINUTE), await harness.worker(MINUTE)
    owner, other = await harness.store.join("owner", MINUTE), await harness.store.join("other", MINUTE)
    await harness.submit(a_run())
    await harness.claim(busy)
    await harness.store.take(owner, [1])
    await harness.move_clock(MINUTE)
    await harness.store.lost_runs(10)
    for past, left in ((0, [idle, busy, owner, other]), (1, [busy, owner])):
        await harness.move_clock(past or 7 * DAY)
        await harness.store.prune(Retention(), 10)
        found = await harness._connection.fetch("SELECT id FROM session ORDER BY id")
        assert [row["id"] for row in found] == left
