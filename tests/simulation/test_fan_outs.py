"""Fan-outs while workers are killed at any moment: each completes with every member once and correct counts."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.workflows.fan_out import build_fan_out_tag
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.handler import AsyncHandler, Handler
from mainspring.features.fan_out.task import build_fan_in_handler, build_fan_out_handler
from tests.support.simulation.acts import Act, Stage
from tests.support.simulation.directed import Director, play
from tests.support.simulation.nodes import WorkerMachine
from tests.support.simulation.workload import LOOP

pytestmark = pytest.mark.simulation

MEMBERS, AT_A_TIME = 60, 20
_handlers = WorkerMachine.handlers


class UnreliableStore:
    """The store as fan-outs see it: writes go through the unreliable network of the simulated world."""

    def __init__(self, machine: WorkerMachine) -> None:
        self._machine = machine
        self.shards = machine.truth.shards

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        truth = self._machine.stage.history.truth
        for run in runs:
            truth.submitted.setdefault(run.id, run)
        accepted = await self._machine.store.submit(runs)
        truth.accepted += [answer.id for answer in accepted if answer.new]
        return accepted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine.store if name == "cancel" else self._machine.truth, name)


def with_fan_outs(machine: WorkerMachine) -> Mapping[str, Handler]:
    async def opened() -> Any:
        store = UnreliableStore(machine)
        jobs = Jobs(store, machine.wakeups, machine.clock, machine.random, shards=store.shards)
        return jobs, store

    own = {FAN_OUT: build_fan_out_handler(opened), FAN_IN: build_fan_in_handler(opened)}
    return {**_handlers(machine), **{name: record_calls(machine.stage, handler) for name, handler in own.items()}}


def record_calls(stage: Stage, handler: AsyncHandler) -> AsyncHandler:
    """Record every call of a handler for the checker."""

    async def invoke(held: HeldRun) -> bytes | None:
        with stage.writing_down(held):
            return await handler.invoke(held)

    return AsyncHandler(handler.task, invoke, harmless=True)


def a_fan_out(director: Director, chance: Random) -> NewRun:
    """A fan-out with some members that fail."""
    acts = [
        Act(chance.choice(["work", "work", "work", "fail"]), chance.randint(1, 300) * MILLISECOND)
        for _ in range(MEMBERS)
    ]
    plan = {
        "task": LOOP,
        "items": [msgspec.Raw(act.payload()) for act in acts],
        "options": {"maxRetries": 1, "retry": {"backoff": "fixed", "firstDelay": "100ms"}},
        "atATime": AT_A_TIME,
        "onFailure": "go-on",
    }
    policy = RunPolicy(retry=RetryPolicy(max_retries=20, backoff="fixed", first_delay=100 * MILLISECOND))
    run = director.run(Act(), task=FAN_OUT, policy=policy)
    return msgspec.structs.replace(run, payload=msgspec.json.encode(plan))


@pytest.mark.parametrize("seed", range(4))
def test_every_fan_out_completes_with_each_member_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerMachine, "handlers", with_fan_outs)
    chance = Random(seed)
    cancels = seed == 3

    async def script(director: Director) -> None:
        world = director.world
        world.keep_up()
        [root] = director.submit(a_fan_out(director, chance))

        def members() -> list[Any]:
            return [
                run
                for run in world.store.tables.runs.values()
                if run.about is not None and build_fan_out_tag(root) in run.about.tags
            ]

        for _ in range(6):
            await director.sleep(chance.uniform(0.2, 1.5))
            assert sum(not run.state.ended for run in members()) <= AT_A_TIME
            machine = chance.choice(world.workers)
            if machine.process is not None and machine.up:
                machine.process.kill()
        if cancels:
            director.cancel(root)
        await director.until(lambda: director.state(root).ended, within=300)
        if cancels:
            await director.sleep(30)
            assert all(run.state.ended for run in members())
            return
        assert director.state(root) is RunState.SUCCEEDED, director.row(root).error
        found = msgspec.json.decode(director.row(root).result)
        states = [run.state for run in members()]
        assert (len(states), found["members"]) == (MEMBERS, MEMBERS)
        for state in (RunState.SUCCEEDED, RunState.FAILED):
            assert found.get(state.value, 0) == states.count(state)

    play(script, workers=({"default": 6}, {"default": 6}), shards=4)
