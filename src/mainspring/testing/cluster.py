"""The runtime of a test: the real scheduler and the real worker, on the memory store, on a loop in virtual time."""

import asyncio
from collections.abc import Collection, Container, Coroutine, Sequence
from contextvars import copy_context
from random import Random

import msgspec

from mainspring.config.runtime import Runtime
from mainspring.config.services.worker import DEFAULT_SLOTS
from mainspring.config.settings import Settings
from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.maintenance.reaper import Reaper
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import DAY, Instant, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer, complete_release
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, ProgressReport, WorkerStore
from mainspring.core.runtime.service import Service
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.core.store import Demand, NewSession
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.features.slo.service import SloKeeper
from mainspring.sdk.app import Mainspring
from mainspring.stores.memory import MemoryStore
from mainspring.stores.memory.rows import ANY_LABEL
from mainspring.testing.faults import FaultInjector
from mainspring.testing.loop import RuntimeLoop, polling
from mainspring.testing.virtual_time import VirtualClock

#: Leases must outlast jumps in time. Only a test makes a worker die here.
_LONG: Micros = 100 * 366 * DAY
#: Remaining lease of a worker that a test kills: the default of workers.
_LEASE = WorkerSettings().lease


class VirtualCluster:
    """Runs the scheduler and the worker of a test. Every method runs on the loop.

    Nothing is pruned: a test may read a run from a year ago.
    """

    def __init__(self, app: Mainspring, loop: RuntimeLoop) -> None:
        self._app = app
        self._loop = loop
        self.runtime = Runtime(Settings(store="memory:", shards=1), VirtualClock(loop))
        # The same test must see the same backoffs every time.
        self.runtime.random = Random(0)
        assert isinstance(self.runtime.store, MemoryStore)
        self.store = self.runtime.store
        loop.handler = self
        self.faults = FaultInjector(app, loop, self._kill_worker)
        self._keeper: _ShardKeeper | None = None
        self._services: list[Service] = []
        self._worker: Worker | None = None
        self._connection: _WorkerConnection | None = None
        self._takeover: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.runtime.open()
        await self._app.declare()
        await self._spawn_polling(self._start())

    async def close(self) -> None:
        await self._stop()
        self.faults.close()
        await self.runtime.close()

    async def outage(self, duration: Micros) -> None:
        until = self._loop.now + duration
        await self._stop()
        await self.sleep_until(until)
        await self._spawn_polling(self._start())

    async def sleep_until(self, moment: Instant) -> None:
        await self.runtime.clock.sleep(max(moment - self._loop.now, 0))
        self._loop.run_due_polls()

    async def run_until_idle(self) -> None:
        while True:
            await self._loop.at_rest()
            change = self.store.next_change()
            late = change is not None and change <= self._loop.now
            if not late and not any(depth.running for depth in await self.store.depths()):
                self._loop.run_due_polls()
                return
            await self._loop.moved()

    def next_change(self) -> Instant | None:
        # In an outage no scheduler or worker would handle a change.
        if self._keeper is None:
            return None
        change = self.store.next_change()
        silence = None if self._worker is None else self._worker.next_silence
        if silence is None:
            return change
        silent = self._loop.now + silence - self.runtime.clock.monotonic()
        return silent if change is None else min(change, silent)

    def handle_change(self) -> None:
        if self._keeper is not None:
            self._keeper.notify_again()

    async def _start(self) -> None:
        runtime = self.runtime
        self._keeper = _ShardKeeper(self.store, self.store.shards, runtime.wakeups, runtime.clock, ttl=_LONG)
        self._services = [
            self._keeper,
            # The wheel would time the scheduler's polls; here the loop does.
            Scheduler(self.store, self._keeper, runtime.wakeups, runtime.clock, use_wheel=False),
            Reaper(self.store, runtime.wakeups, runtime.clock, runtime.random),
            SloKeeper(self.store, runtime.wakeups, runtime.clock),
        ]
        for service in self._services:
            await service.start()
        await self._start_worker()

    async def _start_worker(self) -> None:
        self._connection = _WorkerConnection(self.store, self._app.handlers())
        settings = WorkerSettings(
            queues=dict.fromkeys(sorted(self._app.queues()), DEFAULT_SLOTS),
            lease=_LONG,
            # Gathering saves round trips, but it is a pause that no change in the store would end.
            gather=0,
            grace=0,
        )
        self._worker = Worker(
            WorkerRuntime(self._connection, self.runtime.wakeups, self.runtime.clock, settings, self.runtime.random),
            self.faults,
            attempt_log=AttemptLog(self.runtime.clock),
        )
        await self._worker.start()

    async def _stop(self) -> None:
        self._keeper = None
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        while self._services:
            await self._services.pop().stop()

    def _kill_worker(self) -> None:
        """Stop the handlers of the worker, cut its connection to the store, and start another worker in its place."""
        worker, self._worker = self._worker, None
        if worker is None or worker.lease.holding is None or self._connection is None:
            return
        self._connection.cut = True
        self._takeover = self._spawn_polling(
            self._expire(worker, worker.lease.holding.session, list(worker.lease.holding.held))
        )

    async def _expire(self, worker: Worker, session: SessionId, held: Sequence[RunId]) -> None:
        await self.store.heartbeat(session, _LEASE, held, (), 0)
        worker.stop_now()
        await self._start_worker()
        await worker.left()

    def _spawn_polling(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task of the runtime: its timers are polls."""
        context = copy_context()
        context.run(polling.set, True)
        return self._loop.create_task(work, context=context)


class _ShardKeeper(ShardKeeper):
    """Makes the scheduler poll after a jump in time. It uses the callback for new shards, which causes no delay."""

    def notify_again(self) -> None:
        for listener in self._listeners:
            listener()


#: The data center of jobs that target all data centers.
_DATACENTER = "test"


class _WorkerConnection:
    """The connection of a worker to the store. Once it is cut, no call returns.

    Runs of tasks that the application does not have are deferred for good. A worker would release them every few
    seconds in case another worker has the task, but here is no other worker.
    """

    def __init__(self, store: WorkerStore, known: Container[str]) -> None:
        self._store = store
        self._known = known
        self.cut = False

    async def open_session(self, session: NewSession) -> SessionId:
        await self._check()
        # There is no other worker, so this one accepts every label set and every data center.
        accepting = msgspec.structs.replace(session, labels=(ANY_LABEL,), datacenter=_DATACENTER)
        return await self._store.open_session(accepting)

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        await self._check()
        return await self._store.heartbeat(session, ttl, held, pending, last_claim)

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        await self._check()
        runs = await self._store.claim(session, number, demands)
        unknown = [run for run in runs if run.task not in self._known]
        if not unknown:
            return runs
        await self._store.complete([complete_release(run, "no such task in this test", _LONG) for run in unknown])
        return [run for run in runs if run.task in self._known]

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        await self._check()
        return await self._store.complete(completions)

    async def close_session(self, session: SessionId) -> None:
        await self._check()
        await self._store.close_session(session)

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        await self._check()
        return await self._store.report_progress(progress)

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        await self._check()
        return await self._store.append_log(lines)

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        await self._check()
        return await self._store.save_checkpoints(checkpoints)

    async def _check(self) -> None:
        if self.cut:
            await asyncio.Event().wait()
