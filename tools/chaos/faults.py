"""The faults, each a small class: what it breaks, how it is repaired, and how long it is watched."""

import asyncio
import os
import signal
from typing import ClassVar, Literal

from tools.chaos.cluster import FAKETIME, Cluster
from tools.chaos.link import BOTH, Way
from tools.chaos.sites import Site, SmallDiskSite, StandbySite

#: Seconds. The leases of schedulers and workers.
LEASES = {"scheduler": 1.5, "worker": 10.0, "api": 1.5}
#: A frozen process stays so for one of these many leases, in turn; one that is cut off for one of those.
FROZEN = (0.5, 1.2, 2.0, 1.2, 0.5, 1.2, 0.5, 5.0, 1.2, 0.5)
CUT = (1.2, 1.2, 1.5, 1.2, 2.0)
COORDINATORS = ("store", "etcd", "zookeeper")
Kind = Literal["scheduler", "worker", "api"]


class Fault:
    """Something that goes wrong, and is put right."""

    name: ClassVar[str]
    site: ClassVar[type[Site]] = Site
    faketime: ClassVar[bool] = False
    #: The coordinators or brokers that it can be tried with.
    tried_with: ClassVar[tuple[str, ...]] = COORDINATORS
    #: It does something to schedulers: each coordinator has a row of its own in the table. Others have the store's.
    hits_schedulers: ClassVar[bool] = False
    #: Only for those who ask for it by name: another one says nearly the same.
    variant: ClassVar[bool] = False
    #: Of several servers, each process gets one.
    one_address: ClassVar[bool] = False

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        """Break and repair. The time counts from the call."""
        raise NotImplementedError

    def impossible(self) -> str:
        """Why it cannot be tried here; empty if it can."""
        return ""


class Kill(Fault):
    kind: ClassVar[Kind]

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        victims = cluster.of(self.kind)
        victim = victims[repetition % len(victims)]
        await victim.kill()
        await asyncio.sleep(3)
        victim.start()


class KillScheduler(Kill):
    name, kind, hits_schedulers = "kill-scheduler", "scheduler", True


class KillWorker(Kill):
    name, kind = "kill-worker", "worker"


class KillApi(Kill):
    name, kind = "kill-api", "api"


class Freeze(Fault):
    """Stop a process by a signal, and let it continue as if nothing had happened."""

    kind: ClassVar[Kind]

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        victims = cluster.of(self.kind)
        victim = victims[repetition % len(victims)]
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(FROZEN[repetition % len(FROZEN)] * LEASES[self.kind])
        victim.send(signal.SIGCONT)


class FreezeScheduler(Freeze):
    name, kind, hits_schedulers = "freeze-scheduler", "scheduler", True


class FreezeWorker(Freeze):
    name, kind = "freeze-worker", "worker"


class FreezeApi(Freeze):
    name, kind = "freeze-api", "api"


class Cut(Fault):
    """A partition between a process and the store: all is silence, and then everything arrives."""

    kind: ClassVar[Kind]
    #: Which way is silent; in turn.
    ways: ClassVar[tuple[tuple[Way, ...], ...]] = (BOTH,)

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        victims = cluster.of(self.kind)
        victim = victims[repetition % len(victims)]
        victim.silence(*self.ways[repetition % len(self.ways)])
        await asyncio.sleep(CUT[repetition % len(CUT)] * LEASES[self.kind])
        await victim.open()


class CutScheduler(Cut):
    name, kind, hits_schedulers = "cut-scheduler", "scheduler", True


class CutSchedulerOneWay(Cut):
    name, kind, ways = "cut-scheduler-one-way", "scheduler", (("there",), ("back",))


class CutWorker(Cut):
    name, kind = "cut-worker", "worker"


class CutWorkerOneWay(Cut):
    name, kind, ways = "cut-worker-one-way", "worker", (("there",), ("back",))


class RestartPostgres(Fault):
    name = "restart-postgres"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        await asyncio.to_thread(site.server.restart, "immediate")


class PromoteStandby(Fault):
    """Every process knows the addresses of both servers. The old primary stays up, and would write."""

    name, site = "promote-standby", StandbySite

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        assert isinstance(site, StandbySite)
        await asyncio.to_thread(site.promote)
        await asyncio.sleep(12)
        left = await site.rebuild()
        cluster.lead(left, site.standby_port)


class MoveAddress(Fault):
    """The one address leads to the new primary. Open connections still lead to the old one, which is up."""

    name, site, variant, one_address = "move-address", StandbySite, True, True

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        assert isinstance(site, StandbySite)
        old = site.server.port
        await asyncio.to_thread(site.promote)
        cluster.lead(old, site.server.port)
        await asyncio.sleep(20)
        await site.rebuild()


class DiskFull(Fault):
    name, site = "disk-full", SmallDiskSite

    def impossible(self) -> str:
        return "" if os.geteuid() == 0 else "only root may mount a file system"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        assert isinstance(site, SmallDiskSite)
        await asyncio.to_thread(site.fill)
        await asyncio.sleep(5)
        await asyncio.to_thread(site.empty)


class StepClock(Fault):
    """An hour ahead, or back, on one node: the first scheduler, the first worker and the first API."""

    name, faketime = "step-clock", True

    def impossible(self) -> str:
        return "" if FAKETIME.exists() else "libfaketime is not installed. On Debian: apt-get install libfaketime"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        cluster.step_clock(-3_600 if repetition % 2 else 3_600)
        await asyncio.sleep(8)
        cluster.step_clock(0)


class RollingRestart(Fault):
    """Every process is asked to leave and started again, one node after the other."""

    name, hits_schedulers = "rolling-restart", True

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        for node in range(cluster.nodes):
            members = cluster.node(node)
            await asyncio.gather(*(member.stop() for member in members))
            for member in members:
                member.start()
            await cluster.until_back(site.server.dsn)


class LoseDatacenter(Fault):
    """A scheduler, a worker and an API are gone in the same moment."""

    name, hits_schedulers = "lose-datacenter", True

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        gone = cluster.node(repetition % 2)
        for member in gone:
            member.send(signal.SIGKILL)
        await asyncio.sleep(4)
        for member in gone:
            member.start()
