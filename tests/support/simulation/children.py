"""Simulated child processes of workers: the real code without the operating system."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import cast
from unittest.mock import patch

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.cause import UNKNOWN, Cause
from mainspring.core.ports.clock import Clock
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.executors import children as production_pool
from mainspring.core.worker.executors import sync_executors as production_executors
from mainspring.core.worker.executors.process import ChildProgram, Owner
from tests.support.simulation.acts import Stage
from tests.support.simulation.loop import Process, current_process

_TRAVEL: Micros = MILLISECOND // 5
#: The kernel reports a death after all output has been read.
_UNTIL_REAPED: Micros = 2 * MILLISECOND
_NEVER_LOOKED = -1


class SimulatedLivenessFile:
    def __init__(self) -> None:
        self.number = 0

    def record_renewal(self) -> None:
        self.number += 1

    def close(self) -> None: ...


class SimulatedChild:
    """Replaces ``ChildProcess`` by a process of the simulated world."""

    def __init__(
        self,
        program: ChildProgram,
        *,
        measures_memory: bool,
        alone: bool,
        clock: Clock,
        owner: Owner,
    ) -> None:
        worker = current_process.get()
        assert worker is not None
        assert worker.stage is not None
        self._owner = owner
        self._clock = clock
        self._liveness = cast(SimulatedLivenessFile, program.liveness)
        self._silence = program.silence
        self._stage: Stage = worker.stage
        self._worker = copy_context()
        self._loop = worker.loop
        self.pid = worker.loop.next_number()
        self.started_at = clock.monotonic()
        self.ready = False
        self.retiring = False
        self.asked = False
        self.condemned = False
        self.refusal: str | None = None
        self.slow = False
        self.withheld: list[tuple[Attempt, bytes | None, str | None, Cause]] = []
        self.finishing_since: Micros | None = None
        self.given = 0
        self.memory = 0
        self._running: dict[Attempt, asyncio.Task[None] | None] = {}
        self._backlog: dict[Attempt, None] = {}
        self._interrupted: dict[Attempt, None] = {}
        self._process = Process(f"{worker.name}/{self.pid}", worker.loop)
        self._process.parent = worker
        self._process.stage = worker.stage
        worker.when_it_dies.append(self._process.kill)
        self._process.when_it_dies.append(self._died)
        self._process.spawn(self._live(), "child")

    def __hash__(self) -> int:
        # The pool keeps its children in a set, whose order must not depend on addresses.
        return self.pid

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def accepts(self) -> bool:
        return not (self.retiring or self.condemned or self.refusal is not None or self._interrupted or self.slow)

    @property
    def load(self) -> int:
        return len(self._running) + len(self._backlog)

    @property
    def hosted(self) -> list[Attempt]:
        return list(self._running)

    @property
    def backlog(self) -> list[Attempt]:
        return list(self._backlog)

    def give(self, attempt: Attempt) -> None:
        self.given += 1
        if self.ready:
            self._begin(attempt)
        else:
            self._backlog[attempt] = None

    def forget(self, attempt: Attempt) -> None:
        del self._backlog[attempt]

    def interrupt(self, attempt: Attempt) -> None:
        self._interrupted[attempt] = None
        self._loop.call_later(_TRAVEL / SECOND, self._strike, attempt, context=self._process.context)

    def finish(self) -> None:
        self.retiring = True
        if self.finishing_since is None:
            self.finishing_since = self._clock.monotonic()
            self._loop.call_later(_TRAVEL / SECOND, self._process.kill, context=self._process.context)

    def refuse(self, error: str) -> None:
        self.refusal = error

    def terminate(self) -> None:
        # It has no children that would receive the signal.
        self.retiring = self.asked = True

    def leaves_behind(self) -> bool:
        return False

    def condemn(self) -> None:
        self.condemned = True
        self._process.kill()

    # In the child.

    async def _live(self) -> None:
        await asyncio.sleep(self._loop.chance.uniform(0.02, 0.4))
        self._tell(self._is_ready)
        seen, still = _NEVER_LOOKED, 0
        while still < self._silence:
            still = still + 1 if self._liveness.number == seen else 0
            seen = self._liveness.number
            await asyncio.sleep(1)
        self._process.kill()

    async def _call(self, attempt: Attempt) -> None:
        result, error = None, None
        try:
            result = await self._stage.perform(attempt.held)
        except (Exception, asyncio.CancelledError) as raised:
            if self._process.dead:
                raise
            error = f"{type(raised).__name__}: {raised}"
        self._tell(self._ended, attempt, result, error)

    def _start(self, attempt: Attempt) -> None:
        if self._process.alive:
            self._running[attempt] = self._process.spawn(self._call(attempt), "handler")

    def _strike(self, attempt: Attempt) -> None:
        task = self._running.get(attempt)
        if task is not None:
            task.cancel()

    def _died(self) -> None:
        self._loop.call_later(_UNTIL_REAPED / SECOND, self._exited, context=self._worker)

    # In the worker.

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        self._loop.call_later(_TRAVEL / SECOND, what, *arguments, context=self._worker)

    def _begin(self, attempt: Attempt) -> None:
        self._running[attempt] = None
        self._owner.begin(attempt)
        self._loop.call_later(_TRAVEL / SECOND, self._start, attempt, context=self._process.context)

    def _is_ready(self) -> None:
        self.ready = True
        self.slow = False
        backlog, self._backlog = self._backlog, {}
        for attempt in backlog:
            self._begin(attempt)
        self._owner.started()

    def _ended(self, attempt: Attempt, result: bytes | None, error: str | None) -> None:
        del self._running[attempt]
        self._interrupted.pop(attempt, None)
        self._owner.ended(self, attempt, result, error, UNKNOWN)  # type: ignore[arg-type]

    def _exited(self) -> None:
        self._owner.exited(self, -9)  # type: ignore[arg-type]


@contextmanager
def simulated_children() -> Iterator[None]:
    """Workers start simulated children instead of real ones."""
    with (
        patch.object(production_pool, "ChildProcess", SimulatedChild),
        patch.object(production_executors, "LivenessFile", SimulatedLivenessFile),
    ):
        yield
