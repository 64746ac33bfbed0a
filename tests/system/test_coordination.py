"""Real schedulers whose shards another engine grants: one dies, or the engine does, and no tick is lost or doubled."""

import os
from collections.abc import Callable

import pytest

from tests.support.coordination_harness import OUTSIDE
from tests.support.failover import BREAKABLE, outage, throwaway
from tests.support.scheduler_cluster import cluster

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180)]

large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")


@pytest.mark.parametrize("engine", OUTSIDE)
async def test_the_shards_of_a_dead_scheduler_are_served_by_the_others(
    engine: str, address_of: Callable[[str], str], postgres_dsn: str
) -> None:
    async with cluster(postgres_dsn, address_of(engine), schedulers=2, crons=20) as found:
        figures = await found.end(next(iter(found.schedulers)), "kill")
        # Two seconds on a machine of its own: see docs/operations/coordination.md. Here others are at work, too.
        assert figures.moved < 30
        ticks = await found.ticks()
    assert ticks.expected > 0
    assert (ticks.missing, ticks.doubled, ticks.skipped) == (0, 0, 0)


# By python -m tests.support.failover --fault away for a minute.
@pytest.mark.parametrize("engine", ["etcd", pytest.param("redis", marks=large), pytest.param("zookeeper", marks=large)])
async def test_without_its_engine_nothing_is_lost_and_workers_go_on(
    engine: str, address_of: Callable[[str], str], postgres_dsn: str
) -> None:
    address_of(engine)  # or this is skipped
    with throwaway(BREAKABLE[engine]) as ensemble:
        async with cluster(postgres_dsn, ensemble.address(), schedulers=2, crons=20) as found:
            # Longer than the leases, in the store and in the engine.
            figures = await outage(found, ensemble, 4, runs=20)
    ticks = figures.ticks
    assert ticks.latest > 1
    assert (ticks.missing, ticks.doubled, ticks.skipped) == (0, 0, 0)
