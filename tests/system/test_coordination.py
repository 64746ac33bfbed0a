"""Real schedulers with a coordinator: one of them or the coordinator fails, and no tick is lost or doubled."""

import os
from collections.abc import Callable

import pytest

from tests.support.coordination_harness import OUTSIDE
from tests.support.failover import BREAKABLE, outage, throwaway
from tests.support.scheduler_cluster import cluster

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900)]

large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")


@pytest.mark.parametrize("coordinator", OUTSIDE)
async def test_other_schedulers_take_over_the_shards_of_a_killed_one(
    coordinator: str, address_of: Callable[[str], str], postgres_dsn: str
) -> None:
    async with cluster(postgres_dsn, address_of(coordinator), schedulers=2, crons=20) as found:
        # docs/operate/coordination.md has how long this takes.
        await found.end(next(iter(found.schedulers)), "kill")
        ticks = await found.ticks()
    assert ticks.expected > 0
    assert (ticks.missing, ticks.doubled, ticks.skipped) == (0, 0, 0)


# Measured by python -m tests.support.failover --fault away.
@pytest.mark.parametrize(
    "coordinator", ["etcd", pytest.param("redis", marks=large), pytest.param("zookeeper", marks=large)]
)
async def test_an_outage_of_the_coordinator_delays_ticks_but_loses_none_and_workers_continue(
    coordinator: str, address_of: Callable[[str], str], postgres_dsn: str
) -> None:
    address_of(coordinator)  # Skips the test if it is not installed.
    with throwaway(BREAKABLE[coordinator]) as ensemble:
        async with cluster(postgres_dsn, ensemble.address(), schedulers=2, crons=20) as found:
            ticks = (await outage(found, ensemble, runs=20)).ticks
    assert ticks.latest > 1
    assert (ticks.missing, ticks.doubled, ticks.skipped) == (0, 0, 0)
