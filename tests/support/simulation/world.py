"""A world: schedulers, workers and clients around one store, from its first moment until everything has ended."""

import asyncio
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.schedules.calendar import CalendarSpec
from mainspring.core.model.schedules.job import JobState
from tests.support.simulation.acts import Stage
from tests.support.simulation.broker import BrokerServer
from tests.support.simulation.chaos import ChaosMonkey
from tests.support.simulation.children import simulated_children
from tests.support.simulation.clients import Client
from tests.support.simulation.clock import NodeClock, StoreClock
from tests.support.simulation.faults import Faults
from tests.support.simulation.history import History
from tests.support.simulation.loop import WorldLoop, run_world
from tests.support.simulation.nodes import Machine, SchedulerMachine, WorkerMachine
from tests.support.simulation.operators import SOMEBODY, Operator
from tests.support.simulation.scenario import Scenario
from tests.support.simulation.store import RecordedStore
from tests.support.simulation.wakeups import Exchange
from tests.support.simulation.workload import CALENDARS, LOOP

#: In a calm stretch nothing is staged later than this …
PUNCTUAL: Micros = 100 * MILLISECOND
#: … or, without look-ahead, than two polls, in case a job changes between the first one and its fire.
UNFORESEEN: Micros = 150 * MILLISECOND


class World:
    def __init__(
        self, loop: WorldLoop, scenario: Scenario, make_store: Callable[[StoreClock, int, History], RecordedStore]
    ) -> None:
        self.loop = loop
        self.scenario = scenario
        self.history = History()
        self.faults = Faults(loop.chance, scenario.rates, scenario.patience)
        self.faults.all_arrive_by = scenario.troubled + 3 * scenario.patience
        self.exchange = Exchange()
        self.store_clock = StoreClock(loop)
        self.store = make_store(self.store_clock, scenario.shards, self.history)
        self.store.tables.readers["checker"] = self.store.tables.position
        self.stage = Stage(self.store, self.history)
        self.broker = BrokerServer() if scenario.broker else None
        self.schedulers = [self._a_scheduler(number + 1) for number in range(scenario.schedulers)]
        self.workers = [self._a_worker(number + 1, slots) for number, slots in enumerate(scenario.workers)]
        self.clients = [Client(self._a_machine(Machine, f"client-{number}"), self.history) for number in (1, 2)]
        if scenario.operating:
            self.clients.append(Operator(self._a_machine(Machine, "operator"), self.history))
            for name in CALENDARS:
                self.store.apply("world", self.now(), "put_calendar", ("default", name, CalendarSpec(), SOMEBODY))
        # Their clocks drift.
        self.history.truth.look_every = scenario.worker.poll_interval // 2 + MILLISECOND
        self.history.truth.punctual = PUNCTUAL if scenario.use_wheel else UNFORESEEN
        self._keep_up: asyncio.Task[None] | None = None
        loop.set_exception_handler(self._caught)

    @property
    def machines(self) -> list[Machine]:
        return [*self.schedulers, *self.workers]

    def now(self) -> Instant:
        return max(self.store.tables.now, self.store_clock.now())

    async def live(self) -> None:
        """Run all phases: faults, recovery, a calm stretch, and the end of all runs."""
        scenario = self.scenario
        for machine in self.machines:
            machine.boot()
        calm_ends = self.loop.true_now() + scenario.troubled + scenario.settling + scenario.calm
        for client in self.clients:
            client.begin(scenario, calm_ends)
        chaos = asyncio.create_task(ChaosMonkey(self).torment(), name="chaos")
        await asyncio.sleep(scenario.troubled / SECOND)
        chaos.cancel()
        await asyncio.gather(chaos, return_exceptions=True)
        self.heal()
        await self.recover()
        calm_begins = self.now()
        await asyncio.sleep(scenario.calm / SECOND)
        self.history.truth.calm.append((calm_begins, self.now()))
        await self.quiesce()
        self.take_stock()

    def heal(self) -> None:
        """Stop all faults, and start every process that is down."""
        self.note("all is well")
        self.faults.stop()
        for machine in self.machines:
            if machine.process is not None:
                machine.process.thaw()
            if not machine.up:
                machine.boot()
        self.keep_up()

    async def recover(self) -> None:
        """Wait until the recovery phase has passed on the store's clock.

        Leases expire by that clock. After a step back it stands still until it reaches its last reading again, and so
        does every lease that a late or unanswered request has left behind.
        """
        recovered = self.now() + self.scenario.settling
        await asyncio.sleep((recovered - self.store_clock.now()) / SECOND)

    def keep_up(self) -> None:
        """From now on, restart every process that dies."""
        self._keep_up = asyncio.create_task(self._keep_everybody_up(), name="supervision")

    async def _keep_everybody_up(self) -> None:
        """Handlers may still kill their workers, and some processes may still be stopping."""
        while True:
            await asyncio.sleep(0.5)
            for machine in self.machines:
                if not machine.up:
                    machine.boot()

    async def quiesce(self) -> None:
        give_up = self.loop.true_now() + self.scenario.ending
        while not self._all_has_ended() and self.loop.true_now() < give_up:  # noqa: ASYNC110 (in virtual time)
            await asyncio.sleep(0.25)
        # Wait for messages in flight, and for one more pass of every reaper.
        await asyncio.sleep(2.5)

    def _all_has_ended(self) -> bool:
        tables = self.store.tables
        return (
            all(client.done or not client.begun for client in self.clients)
            and all(run.state.ended for run in tables.runs.values())
            and all(job.state in (JobState.FINISHED, JobState.CANCELLED) for job in tables.jobs.values())
        )

    def take_stock(self) -> None:
        truth, tables = self.history.truth, self.store.tables
        truth.runs = dict(tables.runs)
        truth.jobs = dict(tables.jobs)
        truth.ledgers = {job: ledger.between(0, 1 << 62, 1 << 30) for job, ledger in tables.ledgers.items()}
        truth.events = list(tables.outbox)
        truth.leftovers = [
            f"limiter {number}: {limiter.state}, {list(limiter.occupants)} occupants, {limiter.line.entries} in line"
            for number, limiter in tables.limiters.by_number.items()
            if limiter.state.used or limiter.occupants or limiter.line
        ]
        truth.leftovers += [f"children of {parent} were not decided" for parent, _, _ in tables.dependencies.ended]
        truth.ended_at = self.now()

    async def end(self) -> None:
        """Kill all processes, so that nothing is left on the loop."""
        if self._keep_up is not None:
            self._keep_up.cancel()
        for machine in [*self.machines, *(client.machine for client in self.clients)]:
            if machine.process is not None:
                machine.process.kill()
        await asyncio.sleep(0.01)

    def note(self, what: str) -> None:
        self.history.chaos.append((self.loop.elapsed, what))

    def _a_machine(self, kind: type[Any], name: str) -> Any:
        chance = self.loop.chance
        skew = chance.randint(-self.scenario.skew, self.scenario.skew)
        clock = NodeClock(self.loop, skew, chance.uniform(-1, 1) * 1e-4)
        machine = kind(name, self.loop, self.store, self.exchange, self.faults, clock, self.scenario.seed)
        machine.broker = self.broker
        return machine

    def _a_scheduler(self, number: int) -> SchedulerMachine:
        machine: SchedulerMachine = self._a_machine(SchedulerMachine, f"scheduler-{number}")
        machine.shard_lease = self.scenario.shard_lease
        machine.use_wheel = self.scenario.use_wheel
        machine.keeps_datacenters = any(self.scenario.datacenters)
        return machine

    def _a_worker(self, number: int, slots: dict[str, int]) -> WorkerMachine:
        machine: WorkerMachine = self._a_machine(WorkerMachine, f"worker-{number}")
        datacenter = dict(enumerate(self.scenario.datacenters, 1)).get(number, "")
        machine.settings = msgspec.structs.replace(
            self.scenario.worker, name=machine.name, queues=slots, datacenter=datacenter
        )
        if datacenter:
            self.history.truth.datacenters[machine.name] = datacenter
        machine.stage = self.stage
        if self.scenario.old_worker and number == 1:
            machine.tasks = (LOOP,)
        for queue, most in slots.items():
            self.history.truth.slots[f"{machine.name} {queue}"] = most
        return machine

    def _caught(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.history.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


def simulate(
    scenario: Scenario,
    make_store: Callable[[StoreClock, int, History], RecordedStore] = RecordedStore,
    live: Callable[[World], Any] = World.live,
) -> History:
    """Run a world to its end, and return its history."""
    histories: list[History] = []

    async def main(loop: WorldLoop) -> History:
        world = World(loop, scenario, make_store)
        histories.append(world.history)
        await live(world)
        await world.end()
        return world.history

    with simulated_children(), _errors_recorded_in(histories):
        return run_world(main, start=scenario.start, seed=scenario.seed)


@contextmanager
def _errors_recorded_in(histories: list[History]) -> Iterator[None]:
    """Services survive their errors and log them. The simulation records logged exceptions and drops other lines."""

    def keep(_: object, __: str, event: MutableMapping[str, Any]) -> str:
        if event.get("exc_info") and histories:
            error = sys.exc_info()[1] if event["exc_info"] is True else event["exc_info"]
            histories[-1].errors.append(f"{event.get('event')}: {error!r}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(40),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
