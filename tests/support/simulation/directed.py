"""Worlds without randomness: a test sets the processes and the fate of each message."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import msgspec

from mainspring.core.model.base.ids import IdMaker, JobId, RunId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobSpec, JobState, NewJob
from mainspring.core.ports.storage.answers import PutResult
from tests.support.simulation.acts import Act
from tests.support.simulation.faults import Fate, Rates, Scripted
from tests.support.simulation.history import HandlerCall, History, Step
from tests.support.simulation.invariants import violations
from tests.support.simulation.nodes import Machine
from tests.support.simulation.scenario import Scenario, a_worker
from tests.support.simulation.workload import LOOP
from tests.support.simulation.world import World, simulate

LEASE: Micros = 4 * SECOND


class Director:
    """Acts on a world directly, without a network in between."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.start = world.now()
        self._ids = IdMaker(world.loop.chance)
        self._names = count(1)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, true: Callable[[], bool], within: float = 60) -> None:
        """Wait for a condition, to the millisecond."""
        for _ in range(round(within * 1_000)):
            if true():
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"not true after {within} s")

    def run(self, act: Act, **options: Any) -> NewRun:
        policy = options.pop("policy", RunPolicy())
        run = self._ids.run(self.world.now(), 0)
        return NewRun(id=run, task=options.pop("task", LOOP), payload=act.payload(), policy=policy, **options)

    def submit(self, *runs: NewRun) -> list[RunId]:
        for run in runs:
            self.world.history.truth.submitted[run.id] = run
        self.do("submit", list(runs))
        self.world.history.truth.accepted += [run.id for run in runs]
        return [run.id for run in runs]

    def put(self, spec: JobSpec, act: Act | None = None) -> JobId:
        job = NewJob(
            id=self._ids.job(self.world.now(), 0), spec=spec, payload=(act if act is not None else Act()).payload()
        )
        [put] = self.do("put_jobs", [job])
        assert isinstance(put, PutResult)
        return put.job.id

    def cancel(self, *runs: RunId) -> None:
        self.do("cancel", list(runs))

    def cancel_job(self, job: JobId) -> None:
        self.do("set_jobs_state", [job], JobState.CANCELLED)

    def do(self, operation: str, *arguments: Any) -> Any:
        return self.world.store.apply("director", self.world.now(), operation, arguments)

    def next(
        self, operation: str, fate: Fate = Fate.ANSWERED, *, of: str = "", request: float = 0.001, reply: float = 0.001
    ) -> None:
        """Set the fate of the next message of a kind. Times are in seconds."""
        self.world.faults.script.append(
            Scripted(
                operation=operation,
                process=of,
                fate=fate,
                request=round(request * SECOND),
                reply=round(reply * SECOND),
            )
        )

    async def begins(self, run: RunId) -> Machine:
        """Wait until the handler of a run has begun, and return its machine."""

        def calls() -> list[HandlerCall]:
            return [call for call in self.world.history.calls if call.run == run and call.ended is None]

        await self.until(lambda: bool(calls()))
        name = calls()[-1].process.partition("#")[0]
        return next(machine for machine in self.world.workers if machine.name == name)

    async def ends(self, run: RunId) -> None:
        """Wait until no handler of a run is left."""
        calls = self.world.history.calls
        await self.until(lambda: all(call.ended is not None for call in calls if call.run == run))

    def state(self, run: RunId) -> RunState:
        return self.world.store.tables.runs[run].state

    def row(self, run: RunId) -> Any:
        return self.world.store.tables.runs[run]

    def steps(self, operation: str) -> list[Step]:
        return [step for step in self.world.history.steps if step.operation == operation]

    def elapsed(self, at: Instant) -> float:
        return (at - self.start) / SECOND


def play(
    script: Callable[[Director], Coroutine[Any, Any, None]],
    *,
    schedulers: int = 1,
    workers: tuple[dict[str, int], ...] = ({"default": 4},),
    **options: Any,
) -> History:
    """Play a script until all runs have ended. A violated invariant is an error."""
    scenario = Scenario(
        seed=0,
        schedulers=schedulers,
        workers=workers,
        worker=a_worker(LEASE),
        rates=Rates(latency=1_000),
        **options,
    )

    async def live(world: World) -> None:
        for machine in world.machines:
            machine.boot()
        await asyncio.sleep(1)
        await script(Director(world))
        await world.quiesce()
        world.take_stock()

    history = simulate(scenario, live=live)
    assert violations(history) == []
    return history


def without(history: History, **changes: Any) -> History:
    """A copy of the history with other facts."""
    return msgspec.structs.replace(history, truth=msgspec.structs.replace(history.truth, **changes))
