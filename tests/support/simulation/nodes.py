"""The processes of a world: schedulers and workers made of the production code, each on a machine with its clock."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from random import Random

from mainspring.core.cluster.datacenters import DatacenterKeeper
from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.dispatch.dispatcher import Dispatcher
from mainspring.core.maintenance.housekeeper import Housekeeper
from mainspring.core.maintenance.reaper import Reaper
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import Micros
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.supervisor import Supervisor
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.core.worker.handler import AsyncHandler, Handler, SyncHandler
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.features.slo.service import SloKeeper
from tests.support.simulation.acts import Stage
from tests.support.simulation.broker import BrokerServer, LossyBroker
from tests.support.simulation.clock import NodeClock
from tests.support.simulation.faults import Faults
from tests.support.simulation.loop import Process, WorldLoop
from tests.support.simulation.store import FaultyStore, RecordedStore
from tests.support.simulation.wakeups import Exchange, LossyWakeups
from tests.support.simulation.workload import CHILD, LOOP


class Machine:
    """A machine. Each start makes a new process under the same name and clock."""

    def __init__(
        self,
        name: str,
        loop: WorldLoop,
        truth: RecordedStore,
        exchange: Exchange,
        faults: Faults,
        clock: NodeClock,
        seed: int,
    ) -> None:
        self.name = name
        self.loop = loop
        self.truth = truth
        self.exchange = exchange
        self.faults = faults
        self.clock = clock
        self._seed = seed
        self._starts = 0
        self.process: Process | None = None
        #: The broker for hints, if any.
        self.broker: BrokerServer | None = None
        self._asked_to_leave = asyncio.Event()
        self._asked_again = asyncio.Event()

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    def boot(self) -> None:
        assert not self.up
        self._starts += 1
        process = self.process = Process(f"{self.name}#{self._starts}", self.loop)
        self._asked_to_leave = asyncio.Event()
        self._asked_again = asyncio.Event()
        self.store = FaultyStore(self.truth, process, self.faults)
        self.wakeups = LossyWakeups(self.exchange, process, self.faults)
        self.random = Random(f"{self._seed} {process.name}")
        process.spawn(self._main(process), self.name)

    def ask_to_leave(self) -> None:
        """Like SIGTERM. A second call stops without a grace period."""
        if self._asked_to_leave.is_set():
            self._asked_again.set()
        self._asked_to_leave.set()

    async def _main(self, process: Process) -> None:
        # If it could not start, its supervisor restarts it.
        with suppress(StoreUnavailable):
            await self.serve(process, self._asked_to_leave)
        if process.alive:
            process.loop.call_soon(process.kill, context=Context())

    def brokers(self, process: Process) -> Brokers | None:
        if self.broker is None:
            return None
        guarded = GuardedBroker(LossyBroker(self.broker, process, self.faults, self.clock), self.clock)
        return Brokers([guarded], {"*": guarded}, "world")

    async def serve(self, process: Process, asked_to_leave: asyncio.Event) -> None:
        raise NotImplementedError


class SchedulerMachine(Machine):
    shard_lease: Micros
    use_wheel = True
    #: Some worker is in a data center.
    keeps_datacenters = False

    async def serve(self, process: Process, asked_to_leave: asyncio.Event) -> None:
        keeper = ShardKeeper(
            self.store, self.store.shards, self.wakeups, self.clock, name=process.name, ttl=self.shard_lease
        )
        scheduler = Scheduler(self.store, keeper, self.wakeups, self.clock, use_wheel=self.use_wheel)
        reaper = Reaper(self.store, self.wakeups, self.clock, self.random)
        objectives = SloKeeper(self.store, self.wakeups, self.clock)
        housekeeper = Housekeeper(self.store, self.wakeups, self.clock)
        services = [keeper, scheduler, reaper, objectives, housekeeper]
        if self.keeps_datacenters:
            services.append(DatacenterKeeper(self.store, self.wakeups, self.clock))
        brokers = self.brokers(process)
        if brokers is not None:
            services.append(Dispatcher(self.store, brokers, self.wakeups, self.clock, keeper.owned))
        async with Supervisor(*services):
            await asked_to_leave.wait()


class WorkerMachine(Machine):
    settings: WorkerSettings
    stage: Stage
    tasks: tuple[str, ...] = (LOOP, CHILD)

    async def serve(self, process: Process, asked_to_leave: asyncio.Event) -> None:
        process.stage = self.stage
        worker = Worker(
            WorkerRuntime(self.store, self.wakeups, self.clock, self.settings, self.random),
            self,
            source="simulated",
            brokers=self._feeds(process),
        )
        await worker.start()
        while not asked_to_leave.is_set() and not worker.wants_recycling:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asked_to_leave.wait()
        if worker.wants_recycling:
            await worker.left()
            return
        leaving = asyncio.create_task(worker.stop(), name="stopping")
        await asyncio.wait(
            [leaving, asyncio.create_task(self._asked_again.wait(), name="a second signal")],
            return_when="FIRST_COMPLETED",
        )
        worker.stop_now()
        await leaving

    def _feeds(self, process: Process) -> dict[str, GuardedBroker]:
        brokers = self.brokers(process)
        return {} if brokers is None else dict.fromkeys(self.settings.queues, brokers.all[0])

    def handlers(self) -> Mapping[str, Handler]:
        known: dict[str, Handler] = {
            LOOP: AsyncHandler(LOOP, self.stage.perform),
            CHILD: SyncHandler(CHILD, _never_called_here),
        }
        return {task: known[task] for task in self.tasks}


def _never_called_here(_: object) -> bytes | None:
    raise AssertionError("a simulated child acts by itself")
