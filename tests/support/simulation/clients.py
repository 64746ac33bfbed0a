"""Clients: they submit, declare, cancel, pause and change things, and retry when the store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.submit.jobs import Jobs
from tests.support.simulation.history import History
from tests.support.simulation.loop import Process
from tests.support.simulation.nodes import Machine
from tests.support.simulation.scenario import Scenario
from tests.support.simulation.store import FaultyStore
from tests.support.simulation.wakeups import LossyWakeups
from tests.support.simulation.workload import Workload

T = TypeVar("T")


class Client:
    """A process that uses ``Jobs`` like an application."""

    def __init__(self, machine: Machine, history: History) -> None:
        self.machine = machine
        self.begun = False
        self.done = False
        self._history = history
        self._runs: list[RunId] = []
        #: Runs that the store has accepted, with their tenants.
        self._there: list[tuple[str, RunId]] = []
        self._jobs: dict[JobId, JobSpec] = {}

    def begin(self, scenario: Scenario, until: Instant) -> None:
        machine = self.machine
        self.begun = True
        process = machine.process = Process(machine.name, machine.loop)
        store = FaultyStore(machine.truth, process, machine.faults)
        wakeups = LossyWakeups(machine.exchange, process, machine.faults)
        self._chance = Random(f"{scenario.seed} {machine.name}")
        self._workload = Workload(
            self._chance,
            scenario.policies,
            scenario.heavy,
            calendars=scenario.operating > 0,
            datacenters=tuple(sorted({datacenter for datacenter in scenario.datacenters if datacenter})),
        )
        self._store = store
        self._ids = Jobs(store, wakeups, machine.clock, self._chance, shards=scenario.shards)
        process.spawn(self._live(scenario, until), machine.name)

    async def _live(self, scenario: Scenario, until: Instant) -> None:
        length = scenario.troubled + scenario.settling + scenario.calm
        async with asyncio.TaskGroup() as group:
            for number in range(scenario.jobs // 2):
                group.create_task(self._declare(f"{self.machine.name} job {number}", until))
            for _ in range(scenario.runs // 2):
                group.create_task(self._submit_at(self._chance.random() * length))
            for _ in range(scenario.killers):
                group.create_task(self._submit_one(self._workload.killer, scenario.troubled // 2))
            for _ in range(scenario.immortals):
                group.create_task(self._submit_one(self._workload.immortal, scenario.troubled // 2))
            for _ in range(round(scenario.meddling * 16)):
                group.create_task(self._meddle_at(self._chance.random() * length, until))
        self.done = True

    async def _submit_at(self, after: float) -> None:
        await asyncio.sleep(after / SECOND)
        keyed = self._chance.random() < 0.25
        policies = [self._workload.policy(keyed=keyed) for _ in range(self._chance.choice([1] * 8 + [4, 4, 15]))]
        ids = self._ids.new_run_ids(policy.ordering_key for policy in policies)
        # Due times and limits from a clock that is an hour off would test nothing.
        now = self.machine.loop.true_now()
        runs = [self._workload.run(run, policy, now) for run, policy in zip(ids, policies, strict=True)]
        runs = [self._workload.placed(self._workload.heavy(self._workload.limited(run))) for run in runs]
        runs = self._workload.related(runs, self._there)
        if len(runs) == 1:
            runs = [self._workload.unique(runs[0])]
        await self._submit(runs)

    async def _submit_one(self, make: Callable[[RunId], NewRun], within: Micros) -> None:
        await asyncio.sleep(self._chance.random() * within / SECOND)
        await self._submit([make(self._ids.new_run_id())])

    async def _submit(self, runs: list[NewRun]) -> None:
        for run in runs:
            self._history.truth.submitted[run.id] = run
            self._runs.append(run.id)
        if len(runs) == 1:
            accepted = await self._insist(lambda: self._ids.submit(runs[0]))
            answers = [] if accepted is None else [accepted]
        else:
            answers = await self._insist(lambda: self._ids.submit_many(runs)) or []
        self._history.truth.accepted += [answer.id for answer in answers]
        self._there += [(run.tenant, answer.id) for run, answer in zip(runs, answers, strict=False)]

    async def _declare(self, name: str, until: Instant) -> None:
        await asyncio.sleep(self._chance.random() * 3)
        await self._put(self._workload.spec(name, self.machine.loop.true_now(), until))

    async def _put(self, spec: JobSpec) -> None:
        job = NewJob(id=self._ids.new_job_id("default", spec.name), spec=spec, payload=self._workload.job_payload())
        put = await self._insist(lambda: self._ids.put_jobs([job]))
        for answer in put or ():
            self._history.truth.declared.append(answer.job.id)
            self._jobs[answer.job.id] = spec

    async def _meddle_at(self, after: float, until: Instant) -> None:
        await asyncio.sleep(after / SECOND)
        chance = self._chance
        what = chance.choices(["cancel", "pause", "resume", "change", "cancel job"], [8, 2, 2, 2, 1])[0]
        if what == "cancel":
            if self._runs:
                chosen = chance.sample(self._runs, min(len(self._runs), chance.randint(1, 3)))
                await self._insist(lambda: self._ids.cancel_runs(chosen))
            return
        if not self._jobs:
            return
        job = chance.choice(list(self._jobs))
        match what:
            case "pause":
                ends = self.machine.loop.true_now() + round(chance.uniform(0.5, 6) * SECOND)
                resume_at = ends if chance.random() < 0.6 else None
                author = Author("client", why=chance.choice(["", "a rest"]))
                await self._insist(lambda: self._ids.pause([job], author, resume_at=resume_at))
            case "resume":
                await self._insist(lambda: self._ids.resume([job]))
            case "cancel job":
                await self._insist(lambda: self._ids.cancel_jobs([job]))
            case _:
                await self._put(self._changed(self._jobs[job], until))

    def _changed(self, spec: JobSpec, until: Instant) -> JobSpec:
        """The same job with another schedule, or with other policies."""
        fresh = self._workload.spec(spec.name, self.machine.loop.true_now(), until)
        match self._chance.choice(["schedule", "policies", "overlap"]):
            case "schedule":
                # Some policies are invalid with some schedules.
                return msgspec.structs.replace(
                    spec,
                    schedule=fresh.schedule,
                    when_closed=fresh.when_closed,
                    slo=fresh.slo,
                    datacenters=() if fresh.fixed_delay is not None else spec.datacenters,
                )
            case "overlap":
                return msgspec.structs.replace(spec, overlap=fresh.overlap)
            case _:
                return msgspec.structs.replace(
                    spec,
                    catch_up=fresh.catch_up,
                    policy=fresh.policy,
                    priority=fresh.priority,
                    datacenters=() if spec.fixed_delay is not None else fresh.datacenters,
                )

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Retry with the same ids after ``Jobs`` has stopped retrying. Some clients stop, too."""
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if self._chance.random() < 0.2:
                    return None
            await asyncio.sleep(self._chance.random() * 400 * MILLISECOND / SECOND)
