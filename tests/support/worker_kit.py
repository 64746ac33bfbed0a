"""A worker on a memory store, tasks made of small functions, and a store whose operations a test can make fail."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, ProgressReport
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand, NewSession, Workforce
from mainspring.core.worker.handler import AsyncHandler, Handler
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.stores.memory.store import MemoryStore
from mainspring.testing.virtual_time import VirtualClock

_PAUSE: Micros = 5 * MILLISECOND

Task = Callable[[HeldRun], Coroutine[None, None, bytes | None]]


class Tasks:
    """Handlers by name."""

    def __init__(self, handlers: Mapping[str, Handler] | None = None, **tasks: Task) -> None:
        self._handlers = dict(handlers or {}) | {name: AsyncHandler(name, task) for name, task in tasks.items()}

    def handlers(self) -> Mapping[str, Handler]:
        return self._handlers


class FaultyStore:
    """Forwards every operation to a memory store and records it.

    ``before`` and ``after`` hold functions by the name of an operation. One that raises before the operation makes it
    fail unapplied; one that raises after it loses the answer. Both may also wait.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.inner = store
        self._one_at_a_time = threading.Lock()
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}
        self.heartbeats: list[HeartbeatAnswer] = []
        self.claims: list[tuple[list[Demand], int]] = []
        self.completed: list[list[Completion]] = []
        self.sessions: list[SessionId] = []
        #: The number of attempts in each flush of progress.
        self.progress_flushes: list[int] = []
        self.checkpoints: list[tuple[RunId, bytes]] = []
        self.check_completions: Callable[[Sequence[Completion]], None] = lambda completions: None
        self.completions_in_flight = 0
        self.most_completions_in_flight = 0

    def fail(self, operation: str, *, applied: bool = False, times: int = 1 << 30) -> None:
        left = times

        async def fail() -> None:
            nonlocal left
            if left > 0:
                left -= 1
                raise StoreUnavailable(f"{operation} failed for the test")

        (self.after if applied else self.before)[operation] = fail

    def heal(self) -> None:
        self.before.clear()
        self.after.clear()

    @asynccontextmanager
    async def _operation(self, name: str) -> AsyncIterator[None]:
        if name in self.before:
            await self.before[name]()
        # The heartbeat may run in its own thread. The memory store never waits while it holds the lock.
        with self._one_at_a_time:
            yield
        if name in self.after:
            await self.after[name]()

    async def open_session(self, session: NewSession) -> SessionId:
        async with self._operation("open_session"):
            answer = await self.inner.open_session(session)
            self.sessions.append(answer)
        return answer

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        async with self._operation("heartbeat"):
            answer = await self.inner.heartbeat(session, ttl, held, pending, last_claim)
            self.heartbeats.append(answer)
        return answer

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        async with self._operation("claim"):
            answer = await self.inner.claim(session, number, demands)
            self.claims.append((list(demands), len(answer)))
        return answer

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        self.completions_in_flight += 1
        self.most_completions_in_flight = max(self.most_completions_in_flight, self.completions_in_flight)
        try:
            async with self._operation("complete"):
                self.check_completions(completions)
                answer = await self.inner.complete(completions)
                self.completed.append(list(completions))
            return answer
        finally:
            self.completions_in_flight -= 1

    async def close_session(self, session: SessionId) -> None:
        async with self._operation("close_session"):
            await self.inner.close_session(session)

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        async with self._operation("report_progress"):
            self.progress_flushes.append(len(progress))
            return await self.inner.report_progress(progress)

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        async with self._operation("append_log"):
            return await self.inner.append_log(lines)

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        async with self._operation("save_checkpoints"):
            self.checkpoints += [(checkpoint.run, checkpoint.state) for checkpoint in checkpoints]
            return await self.inner.save_checkpoints(checkpoints)


class Bench:
    """A worker with its store, wakeups and clock."""

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        settings: WorkerSettings,
        source: str | None = None,
        brokers: Mapping[str, GuardedBroker] | None = None,
    ) -> None:
        """``brokers``: by queue, the brokers of its hints."""
        self._brokers = brokers
        self.clock = clock
        self.memory = MemoryStore(clock)
        self.store = FaultyStore(self.memory)
        self.wakeups = LocalWakeups()
        self.worker = self.make_worker(tasks, settings, source)

    def make_worker(
        self,
        tasks: Tasks,
        settings: WorkerSettings,
        source: str | None = None,
        open_workforce: Callable[[], "WorkforceContext"] | None = None,
    ) -> Worker:
        return Worker(
            WorkerRuntime(self.store, self.wakeups, self.clock, settings, Random(1)),
            tasks,
            source=source,
            open_workforce=open_workforce,
            brokers=self._brokers,
        )

    async def submit(self, *runs: NewRun, notify: bool = True) -> list[RunId]:
        await self.memory.submit(runs)
        if notify:
            self.wakeups.notify({queue_topic(run.queue) for run in runs})
        return [run.id for run in runs]

    async def run(self, run: RunId) -> RunView:
        (view,) = await self.memory.runs([run])
        assert view is not None
        return view

    async def state(self, run: RunId) -> RunState:
        return (await self.run(run)).state

    async def until(self, run: RunId, *states: RunState, within: Micros = 120 * SECOND) -> RunView:
        """Wait until a run is in one of the states, or in a final one if none is named.

        ``within`` is the sum of the pauses between two reads, so that neither a slow machine nor a clock that skips
        time uses it up.
        """
        for _ in range(within // _PAUSE + 1):
            view = await self.run(run)
            if view.state in states or (not states and view.state.ended):
                return view
            await self.clock.sleep(_PAUSE)
        raise AssertionError(f"still {view.state} ({view.reason}) after {within / SECOND:g} s")


@asynccontextmanager
async def running_worker(tasks: Tasks, settings: WorkerSettings | None = None) -> AsyncIterator[Bench]:
    """A started worker in virtual time. At the end it stops without a grace period."""
    bench = Bench(VirtualClock(), tasks, settings or WorkerSettings())
    await bench.worker.start()
    try:
        yield bench
    finally:
        bench.store.heal()
        bench.worker.stop_now()
        await bench.worker.left()


class WorkforceContext:
    """The result of ``open_workforce`` for a store that needs no opening."""

    def __init__(self, store: Workforce) -> None:
        self._store = store

    async def __aenter__(self) -> Workforce:
        return self._store

    async def __aexit__(self, *_: object) -> None:
        return None
