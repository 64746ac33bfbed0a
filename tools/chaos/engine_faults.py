"""Faults of a coordination engine, and of the wire to it."""

import asyncio
import signal
from typing import ClassVar

from tools.chaos.cluster import Cluster
from tools.chaos.engines import Engine, Node, freeze, leader_of, thaw
from tools.chaos.faults import CUT, LEASES, Fault
from tools.chaos.link import BOTH, Way
from tools.chaos.sites import Site


class EngineFault(Fault):
    engines: ClassVar[tuple[str, ...]] = ("etcd", "zookeeper")
    hits_schedulers = True


class KillEngineLeader(EngineFault):
    name = "kill-engine-leader"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        leader = await _leader(cluster)
        await asyncio.to_thread(leader.signal, signal.SIGKILL)
        await asyncio.sleep(3)
        await asyncio.to_thread(leader.start)


class FreezeEngineMajority(EngineFault):
    """No scheduler can renew: due ticks wait, and fire when the ensemble is back."""

    name = "freeze-engine-majority"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        nodes = _engine(cluster).nodes
        most = nodes[: len(nodes) // 2 + 1]
        freeze(most)
        await asyncio.sleep(5)
        thaw(most)


class CutSchedulerFromEngine(EngineFault):
    """The scheduler reaches the store, but cannot prove its lease: others take its place, and it must notice."""

    name = "cut-scheduler-engine"
    ways: ClassVar[tuple[tuple[Way, ...], ...]] = (BOTH, ("there",), ("back",))

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        schedulers = cluster.of("scheduler")
        victim = schedulers[repetition % len(schedulers)]
        for link in victim.engine_links:
            link.silence(*self.ways[repetition % len(self.ways)])
        await asyncio.sleep(2 * CUT[repetition % len(CUT)] * LEASES["scheduler"])
        await victim.open()


class ExpireSession(EngineFault):
    """A scheduler is frozen until its session is over, and notices it when it continues."""

    name, engines = "expire-session", ("zookeeper",)

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        schedulers = cluster.of("scheduler")
        victim = schedulers[repetition % len(schedulers)]
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(3 * LEASES["scheduler"])
        victim.send(signal.SIGCONT)


def _engine(cluster: Cluster) -> Engine:
    assert cluster.engine is not None
    return cluster.engine


async def _leader(cluster: Cluster) -> Node:
    async with asyncio.timeout(20):
        while (leader := await asyncio.to_thread(leader_of, _engine(cluster))) is None:
            await asyncio.sleep(0.1)
    return leader
