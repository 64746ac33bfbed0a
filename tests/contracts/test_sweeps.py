"""The sweep of PostgreSQL corrects wrong rows, which no component writes, and leaves right ones alone."""

from collections.abc import AsyncIterator

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.limits.limits import Breaker, build_limiters
from mainspring.core.model.runs.run import RunState
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.kept_connections import KeptConnections
from tests.support.rival import Rival, connect_rival, open_frozen_store
from tests.support.store_harness import PostgresHarness

pytestmark = pytest.mark.postgres

LIMIT = a_limit()
[LIMITER] = build_limiters("default", "greet", (LIMIT,), None)
BLOCKED, QUEUED = RunState.BLOCKED, RunState.QUEUED


@pytest.fixture
async def harness(contract_database: str, kept_connections: KeptConnections) -> AsyncIterator[PostgresHarness]:
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


@pytest.fixture
async def rival(harness: PostgresHarness) -> AsyncIterator[Rival]:
    async with connect_rival(harness) as rival:
        yield rival


@pytest.mark.parametrize("counted", [0, 2])
async def test_a_limit_that_counts_too_few_or_too_many_runs_is_corrected(
    harness: PostgresHarness, counted: int
) -> None:
    run = a_run(limits=(a_limit(most=2),))
    await harness.submit(run)
    await harness._connection.execute("UPDATE limiter SET used = $1", counted)
    assert await harness.store.sweep(10) == 1
    runs = [a_run(limits=(a_limit(most=2),)) for _ in range(2)]
    await harness.submit(*runs)
    assert await harness.states(runs) == [QUEUED, BLOCKED]


async def test_a_limit_that_counts_a_run_although_none_is_left_is_corrected(harness: PostgresHarness) -> None:
    await harness.succeed(*await harness.start(a_run(limits=(LIMIT,))))
    await harness._connection.execute("UPDATE limiter SET used = 1")
    assert await harness.store.sweep(10) == 1
    [accepted] = await harness.submit(a_run(limits=(LIMIT,)))
    assert accepted.state is QUEUED


async def test_the_probe_of_an_open_breaker_is_no_wrong_count(harness: PostgresHarness) -> None:
    """A breaker counts its probe only, not its other runs."""
    policy = a_policy(retries=0, breaker=Breaker(failures=1, pause=MINUTE))
    held = await harness.start(*(a_run(policy=policy) for _ in range(3)))
    await harness.fail(held[0])
    await harness.move_clock(MINUTE)
    await harness.submit(a_run(policy=policy))
    assert await harness.store.sweep(10) == 0
    await harness.fail(*held[1:])


async def test_a_probe_of_a_breaker_that_has_vanished_is_corrected(harness: PostgresHarness) -> None:
    policy = a_policy(retries=0, breaker=Breaker(failures=1, pause=MINUTE))
    await harness.fail(*await harness.start(a_run(policy=policy)))
    await harness._connection.execute("UPDATE limiter SET used = 1")
    assert await harness.store.sweep(10) == 1


async def test_a_sweep_corrects_as_many_limits_as_it_may(harness: PostgresHarness) -> None:
    await harness.submit(*(a_run(limits=(a_limit(name),)) for name in ("one", "two")))
    await harness._connection.execute("UPDATE limiter SET used = 0")
    # The next count is made after a pause, so that counting takes a small part of the time.
    assert await harness.store.sweep(1) == 1
    wrong = await harness._connection.fetchval("SELECT count(*) FROM limiter WHERE used = 0")
    assert wrong == 1
    await harness._connection.execute("UPDATE limiter SET used = 1")


async def test_a_blocked_run_without_a_limiter_is_admitted(harness: PostgresHarness, rival: Rival) -> None:
    """It skips a run that another holds, and takes as many as it may."""
    limits = [a_limit(name) for name in ("one", "two", "three")]
    holders = await harness.start(*(a_run(limits=(limit,)) for limit in limits))
    runs = [a_run(limits=(limit,)) for limit in limits]
    await harness.submit(*runs)
    await harness._connection.execute("UPDATE waiting SET waits = NULL")
    await rival.hold("waiting WHERE id = $1", runs[0].id)
    assert await rival.at_once(harness.store.sweep(1)) == 1
    unassigned = "SELECT count(*) FROM waiting WHERE waits IS NULL"
    assert await harness._connection.fetchval(unassigned) == 2
    assert await rival.at_once(harness.store.sweep(10)) == 1
    await rival.release()
    assert await harness.store.sweep(10) == 1
    assert await harness._connection.fetchval(unassigned) == 0
    await harness.succeed(*holders)
    assert await harness.states(runs) == [QUEUED] * 3


async def test_a_sweep_reads_each_limiter_once(harness: PostgresHarness) -> None:
    """Two runs are blocked by the first limiter, and one by the second: a sweep of two finds both limiters."""
    limits = sorted(
        (a_limit(name) for name in ("one", "two")),
        key=lambda limit: build_limiters("default", "greet", (limit,), None)[0].number,
    )
    await harness.submit(*(a_run(limits=(limit,)) for limit in limits))
    runs = [a_run(limits=(limit,)) for limit in (limits[0], limits[0], limits[1])]
    await harness.submit(*runs)
    # The holders of the limits have vanished without passing them on.
    await harness._connection.execute("DELETE FROM run")
    await harness._connection.execute("UPDATE limiter SET used = 0, wake_at = NULL")
    assert await harness.store.sweep(2) == 2
    assert await harness.states(runs) == [QUEUED, BLOCKED, QUEUED]


@pytest.mark.parametrize("holder", ["queued", "running", "waits for its retry"])
async def test_runs_that_wait_for_a_key_are_not_stuck_while_it_has_a_holder(
    harness: PostgresHarness, holder: str
) -> None:
    policy = a_policy(key="key", pause=HOUR)
    first, second = a_run(policy=policy), a_run(policy=policy)
    await harness.submit(first, second)
    if holder != "queued":
        held = await harness.claim(await harness.worker())
        if holder == "waits for its retry":
            await harness.fail(*held)
    assert await harness.store.sweep(10) == 0
    assert await harness.state(second.id) is BLOCKED


@pytest.mark.parametrize("place", ["run", "waiting"])
async def test_runs_that_wait_for_a_key_whose_holder_has_vanished_are_queued(
    harness: PostgresHarness, place: str
) -> None:
    policy = a_policy(key="key", pause=HOUR)
    first, second = a_run(policy=policy), a_run(policy=policy)
    await harness.submit(first, second)
    if place == "waiting":
        await harness.fail(*await harness.claim(await harness.worker()))
    await harness._connection.execute(f"DELETE FROM {place} WHERE id = $1", first.id)
    assert await harness.store.sweep(10) > 0
    assert await harness.state(second.id) is QUEUED


@pytest.mark.parametrize("state", ["scheduled", "queued", "running"])
async def test_a_child_of_a_live_parent_is_not_stuck(harness: PostgresHarness, state: str) -> None:
    """Beside a child whose parent has vanished, which is skipped."""
    parents = [a_run(delay=HOUR if state == "scheduled" else 0) for _ in range(2)]
    children = [a_run(after=[parent], delay=HOUR) for parent in parents]
    await harness.submit(*parents, *children)
    if state == "running":
        await harness.claim(await harness.worker())
    place = "waiting" if state == "scheduled" else "run"
    await harness._connection.execute(f"DELETE FROM {place} WHERE id = $1", parents[0].id)
    assert await harness.store.sweep(10) > 0
    assert await harness.states(children) == [RunState.SKIPPED, BLOCKED]


async def test_a_child_whose_parents_were_counted_wrong_is_counted_again(harness: PostgresHarness) -> None:
    parents = [a_run(delay=HOUR) for _ in range(2)]
    decided, waiting = a_run(after=parents[:1]), a_run(after=parents)
    await harness.submit(*parents, decided, waiting)
    # Every parent of the first child has been decided, but the count was lost.
    await harness._connection.execute("UPDATE edge SET state = 5 WHERE parent = $1", parents[0].id)
    assert await harness.store.sweep(10) == 1
    assert await harness.states([decided, waiting]) == [QUEUED, BLOCKED]
