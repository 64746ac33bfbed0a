"""Faults of processes, machines and the store while clients keep working."""

import asyncio
from typing import TYPE_CHECKING

from mainspring.core.model.base.instant import MINUTE, SECOND, Micros

if TYPE_CHECKING:
    from tests.support.simulation.nodes import Machine
    from tests.support.simulation.world import World

_HOUR = 60 * MINUTE
_BREAKABLE = ("complete", "claim", "heartbeat", "stage", "fire", "renew", "take", "due_jobs", "upcoming", "lost_runs")


class ChaosMonkey:
    """Injects one fault after another, as often as the scenario says."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = world.loop.chance
        self._scenario = world.scenario
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._datacenters = world.history.truth.datacenters
        #: Data centers that are down.
        self._lost: set[str] = set()

    async def torment(self) -> None:
        names, weights = zip(*self._scenario.chaos.weights().items(), strict=True)
        upkeep = asyncio.create_task(self._start_the_fallen())
        try:
            while any(weights):
                await self._sleep(round(self._scenario.chaos.every * self._chance.expovariate(1)))
                [name] = self._chance.choices(names, weights)
                # Several faults may be active at once.
                task = asyncio.create_task(getattr(self, f"_{name}")())
                self._under_way[task] = None
                task.add_done_callback(self._under_way.pop)
        finally:
            upkeep.cancel()
            for task in list(self._under_way):
                task.cancel()

    async def _freeze(self) -> None:
        machine = self._pick_machine()
        if machine is None or machine.process is None or machine.process.frozen:
            return
        lease = self._scenario.worker.lease if machine.name.startswith("worker") else self._scenario.shard_lease
        duration = round(self._chance.uniform(0.1, 2.5) * lease)
        self._note(f"{machine.process.name} is frozen for {duration / SECOND:.2f} s")
        process, since = machine.process, self._world.now()
        process.freeze()
        try:
            await self._sleep(duration)
        finally:
            process.thaw()
            self._world.history.truth.freezes.append((process.name, since, self._world.now()))

    async def _kill(self) -> None:
        machine = self._pick_machine()
        if machine is not None and machine.process is not None:
            self._note(f"{machine.process.name} is killed")
            machine.process.kill()

    async def _restart(self) -> None:
        machine = self._pick_machine()
        if machine is not None and machine.process is not None:
            self._note(f"{machine.process.name} is asked to leave")
            machine.ask_to_leave()
            if self._chance.random() < 0.3:
                await self._sleep(round(self._chance.random() * 2 * SECOND))
                machine.ask_to_leave()

    async def _cut_off(self) -> None:
        machine = self._pick_machine()
        if machine is None or machine.process is None:
            return
        name, duration = machine.process.name, round(self._chance.uniform(0.1, 12) * SECOND)
        self._note(f"{name} is cut off for {duration / SECOND:.2f} s")
        self._world.faults.cut_off.add(name)
        await self._sleep(duration)
        self._world.faults.cut_off.discard(name)

    async def _store_away(self) -> None:
        faults = self._world.faults
        if faults.away:
            return
        duration = round(self._chance.uniform(0.1, 6) * SECOND)
        faults.away, faults.silent = True, self._chance.random() < 0.5
        self._note(f"the store is away for {duration / SECOND:.2f} s")
        await self._sleep(duration)
        faults.away = faults.silent = False

    async def _break_operation(self) -> None:
        """One operation fails for all processes, as if a table were locked."""
        operation = self._chance.choice(_BREAKABLE)
        duration = round(self._chance.uniform(0.5, 8) * SECOND)
        self._note(f"{operation} fails for {duration / SECOND:.2f} s")
        self._world.faults.broken.add(operation)
        await self._sleep(duration)
        self._world.faults.broken.discard(operation)

    async def _step_clock(self) -> None:
        machine = self._chance.choice(self._world.machines)
        machine.clock.skew = self._chance.randint(-_HOUR, _HOUR)
        self._note(f"the clock of {machine.name} is set to {machine.clock.skew / SECOND:+.1f} s")

    async def _step_store_clock(self) -> None:
        step = self._chance.randint(-3 * SECOND, 3 * SECOND)
        self._world.store_clock.offset += step
        self._world.history.truth.clock_steps += abs(step)
        self._note(f"the store's clock is set by {step / SECOND:+.2f} s")

    async def _lose_datacenter(self) -> None:
        name = self._chance.choice(sorted(set(self._datacenters.values())))
        if name in self._lost:
            return
        duration = round(self._chance.uniform(1, 12) * SECOND)
        self._note(f"all workers in {name} are dead for {duration / SECOND:.2f} s")
        self._lost.add(name)
        for machine in self._world.workers:
            if self._datacenters.get(machine.name) == name and machine.process is not None:
                machine.process.kill()
        await self._sleep(duration)
        self._lost.discard(name)

    async def _start_the_fallen(self) -> None:
        """A supervisor that restarts processes some time after they died."""
        while True:
            await asyncio.sleep(0.25)
            for machine in self._world.machines:
                if self._datacenters.get(machine.name) in self._lost:
                    continue
                if not machine.up and self._chance.random() < 0.2:
                    machine.boot()

    def _pick_machine(self) -> "Machine | None":
        up = [machine for machine in self._world.machines if machine.up]
        return self._chance.choice(up) if up else None

    async def _sleep(self, duration: Micros) -> None:
        await asyncio.sleep(duration / SECOND)

    def _note(self, what: str) -> None:
        self._world.note(what)
