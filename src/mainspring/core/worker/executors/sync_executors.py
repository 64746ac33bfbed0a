"""All executors outside the worker's event loop: threads, child processes, and children for a single run."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.executors.children import UNLIMITED, ChildPool, PoolLimits
from mainspring.core.worker.executors.liveness import LivenessFile
from mainspring.core.worker.executors.process import ChildProgram
from mainspring.core.worker.executors.threads import ThreadExecutor
from mainspring.core.worker.handler import SyncHandler
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_reporter import ReportListener
from mainspring.core.worker.runtime import WorkerRuntime

if TYPE_CHECKING:
    pass

_log = get_logger("mainspring.children")


class SyncExecutors:
    """Creates each pool when the first attempt needs it, so a worker of async tasks has none."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        outcomes: Outcomes,
        watch: Callable[[Micros], None],
        check_lease: Callable[[], None],
        listener: ReportListener[Attempt],
        source: str | None,
    ) -> None:
        self.source = source
        self._clock = runtime.clock
        self._settings = runtime.settings
        self._outcomes = outcomes
        self._watch = watch
        self._check_lease = check_lease
        self._listener = listener
        self._tracing = runtime.tracing
        self._threads = ThreadExecutor(outcomes, listener)
        self._liveness: LivenessFile | None = None
        self._pools: dict[str, ChildPool] = {}
        self._warned = False

    @property
    def processes(self) -> list[int]:
        """The ids of the current child processes."""
        return [pid for pool in self._pools.values() for pid in pool.processes]

    def start(self, attempt: Attempt, handler: SyncHandler) -> None:
        if handler.mode != "thread" and self.source is not None:
            self._pool(handler.mode).start(attempt)
            return
        if handler.mode != "thread" and not self._warned:
            self._warned = True
            _log.warning("sync tasks run on plain threads: no source for child processes")
        self._watch(attempt.until)
        self._threads.start(attempt, handler)

    def start_alone(self, attempt: Attempt) -> None:
        """Run an attempt alone in a child, because workers died while they ran it.

        If the child dies too, it is the culprit.
        """
        self._pool("alone").start(attempt)

    def sweep(self, now: Micros) -> None:
        for pool in self._pools.values():
            pool.sweep(now)

    def record_renewal(self) -> None:
        """Record that the lease was renewed. Called from the heartbeat's thread."""
        liveness = self._liveness
        if liveness is not None:
            liveness.record_renewal()

    def kill_all(self) -> None:
        """Kill all children because the lease is lost. Idle ones would soon end by themselves without a pulse."""
        for pool in self._pools.values():
            pool.kill_all()

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            liveness.close()

    def _pool(self, kind: str) -> ChildPool:
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools[kind] = self._make_pool(kind)
        return pool

    def _make_pool(self, kind: str) -> ChildPool:
        children = self._settings.children
        match kind:
            case "child":
                size, threads, runs = children.children, children.threads_per_child, children.recycle_after_runs
            case "process":
                size, threads, runs = children.processes or os.cpu_count() or 1, 1, children.recycle_after_runs
            case _:
                size, threads, runs = UNLIMITED, 1, 1
        if self._liveness is None:
            self._liveness = LivenessFile()
        assert self.source is not None
        program = ChildProgram(
            source=self.source,
            adopts=children.adopts,
            liveness=self._liveness,
            # Rounded up: when a child considers its worker gone, the worker must have given up its lease.
            silence=-(-(self._settings.lease - self._settings.lease_margin) // SECOND),
            captures=self._settings.capture_logs,
            tracing=None if self._tracing is None else self._tracing.said,
        )
        limits = PoolLimits(
            size=size,
            threads=threads,
            start_timeout=children.start_timeout,
            start_patience=children.start_patience,
            patience=children.patience,
            kill_grace=self._settings.kill_grace,
            recycle_after_runs=runs,
            recycle_memory_bytes=children.recycle_memory_bytes,
        )
        return ChildPool(
            program,
            limits,
            self._clock,
            self._outcomes,
            self._listener,
            watch=self._watch,
            check_lease=self._check_lease,
        )
