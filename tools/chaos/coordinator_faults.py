"""Faults of a coordinator, and of the wire to it."""

import asyncio
import signal
from typing import ClassVar

from tools.chaos.cluster import Cluster
from tools.chaos.ensembles import Ensemble, Node, freeze, leader_of, thaw
from tools.chaos.faults import CUT, LEASES, Fault
from tools.chaos.link import BOTH, Way
from tools.chaos.sites import Site


class CoordinatorFault(Fault):
    tried_with: ClassVar[tuple[str, ...]] = ("etcd", "zookeeper")
    hits_schedulers = True


class KillCoordinatorLeader(CoordinatorFault):
    name = "kill-coordinator-leader"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        leader = await _leader(cluster)
        await asyncio.to_thread(leader.signal, signal.SIGKILL)
        await asyncio.sleep(3)
        await asyncio.to_thread(leader.start)


class FreezeCoordinatorMajority(CoordinatorFault):
    """No scheduler can renew: due ticks wait, and fire when the ensemble is back."""

    name = "freeze-coordinator-majority"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        nodes = _coordinator(cluster).nodes
        most = nodes[: len(nodes) // 2 + 1]
        freeze(most)
        await asyncio.sleep(5)
        thaw(most)


class CutSchedulerFromCoordinator(CoordinatorFault):
    """The scheduler reaches the store, but cannot prove its lease: others take its place, and it must notice."""

    name = "cut-scheduler-coordinator"
    ways: ClassVar[tuple[tuple[Way, ...], ...]] = (BOTH, ("there",), ("back",))

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        schedulers = cluster.of("scheduler")
        victim = schedulers[repetition % len(schedulers)]
        for link in victim.coordinator_links:
            link.silence(*self.ways[repetition % len(self.ways)])
        await asyncio.sleep(2 * CUT[repetition % len(CUT)] * LEASES["scheduler"])
        await victim.open()


class ExpireSession(CoordinatorFault):
    """A scheduler is frozen until its session is over, and notices it when it continues."""

    name, tried_with = "expire-session", ("zookeeper",)

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        schedulers = cluster.of("scheduler")
        victim = schedulers[repetition % len(schedulers)]
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(3 * LEASES["scheduler"])
        victim.send(signal.SIGCONT)


def _coordinator(cluster: Cluster) -> Ensemble:
    assert cluster.ensemble is not None
    return cluster.ensemble


async def _leader(cluster: Cluster) -> Node:
    async with asyncio.timeout(20):
        while (leader := await asyncio.to_thread(leader_of, _coordinator(cluster))) is None:
            await asyncio.sleep(0.1)
    return leader
