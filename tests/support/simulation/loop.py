"""The virtual loop of a world of processes: each can be frozen or killed while the others continue.

A process is a context variable. Whatever its code schedules (tasks, timers, callbacks) carries the context, and with it
the process; the loop asks the process before it runs any of it. So a process is frozen as SIGSTOP does it: in the
middle of whatever it does, without its code taking part.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappush
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.testing.virtual_time import VirtualLoop
from tests.support.simulation.history import HandlerCall

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

#: Nothing in a world takes longer than this.
_LONGEST: Micros = 3_600 * SECOND


class Process:
    """A simulated operating system process. ``None`` in the context is the world itself."""

    def __init__(self, name: str, loop: "WorldLoop") -> None:
        self.name = name
        self.loop = loop
        self.frozen = False
        #: Its actions have no effect on other processes any more.
        self.dead = False
        #: Not even its clean-up runs any more.
        self.gone = False
        #: Callbacks that became due while it was frozen, in order.
        self.held: list[asyncio.Handle] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.when_it_dies: list[Callable[[], None]] = []
        self.context = Context()
        self.context.run(current_process.set, self)
        #: Its parent process; it dies with it.
        self.parent: Process | None = None
        #: Runs and records the acts of its handlers.
        self.stage: Any = None
        self.calls: list[HandlerCall] = []

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Run a coroutine as part of this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        held, self.held = self.held, []
        for handle in held:
            self.loop.run_soon(handle)

    def kill(self) -> None:
        """Like kill -9: nothing it does reaches other processes. Its tasks are unwound only for tidiness."""
        if self.dead:
            return
        self.dead = True
        for callback in self.when_it_dies:
            callback()
        self.thaw()
        for task in list(self.tasks):
            task.cancel()
        self.loop.call_later(0, self._bury, 5, context=Context())

    def _bury(self, patience: int) -> None:
        for task in list(self.tasks):
            task.cancel()
        if self.tasks and patience:
            self.loop.call_later(0, self._bury, patience - 1, context=Context())
            return
        self.gone = True
        assert not self.tasks, f"{self.name} does not die: {list(self.tasks)}"

    @property
    def alive(self) -> bool:
        return not self.dead


current_process: ContextVar[Process | None] = ContextVar("current_process", default=None)


class _Handle(asyncio.Handle):
    """A callback of a process: runs unless the process is frozen or gone."""

    __slots__ = ("process",)
    process: Process

    def _run(self) -> None:
        _run_or_hold(self, self.process)


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: Process

    def _run(self) -> None:
        _run_or_hold(self, self.process)


def _run_or_hold(handle: asyncio.Handle, process: Process) -> None:
    if process.frozen:
        process.held.append(handle)
    elif not process.gone:
        _really_run(handle)


_really_run: Callable[[asyncio.Handle], None] = asyncio.Handle._run


class WorldLoop(VirtualLoop):
    """The loop that all processes of a world share."""

    def __init__(self, *, start: Instant, seed: int) -> None:
        super().__init__(start=start, seed=seed, longest=_LONGEST)
        self.chance = Random(f"world {seed}")
        self._numbers = count(1)

    def next_number(self) -> int:
        """A number that is unique in this world."""
        return next(self._numbers)

    def true_now(self) -> Instant:
        """The true time of the world."""
        return self.start + self.elapsed

    def run_soon(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)  # type: ignore[attr-defined]

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        process = context.get(current_process)
        handle: asyncio.Handle
        if process is None:
            handle = asyncio.Handle(callback, args, self, context)
        else:
            handle = _Handle(callback, args, self, context)
            handle.process = process
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        process = context.get(current_process)
        timer: asyncio.TimerHandle
        if process is None:
            timer = asyncio.TimerHandle(when, callback, args, self, context)
        else:
            timer = _TimerHandle(when, callback, args, self, context)
            timer.process = process
        heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = (context or copy_context()).get(current_process)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop, context=context)
        return task


def run_world(main: Callable[[WorldLoop], Coroutine[Any, Any, T]], *, start: Instant, seed: int) -> T:
    """Run a world to its end. The same seed gives the same world."""
    loop = WorldLoop(start=start, seed=seed)
    with asyncio.Runner(loop_factory=lambda: loop, debug=False) as runner:
        return runner.run(main(loop))
