"""Runs sync handlers in child processes, because a process can be killed and a thread cannot."""

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.cause import Cause
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import NEVER, Attempt, Stop
from mainspring.core.worker.executors.liveness import CUT_OFF
from mainspring.core.worker.executors.process import ChildProcess, ChildProgram
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, ReportListener

_log = get_logger("mainspring.children")

#: After runs had to wait for a thread, their queue claims no more than there is room for, during this time.
_NARROW: Micros = 10 * SECOND
UNLIMITED = 1 << 30
#: Processes of attempts stopped for these reasons are asked to end before they are killed. A worker that drains has no
#: time for that.
_PATIENT = (Stop.TIMEOUT, Stop.SILENT, Stop.CANCEL)


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a pool, and how long its children and attempts may take."""

    #: The most children, and the threads of each.
    size: int
    threads: int
    #: A child that has not started after this long is ended.
    start_timeout: Micros
    #: Attempts do not wait longer than this for a starting child, or for a free thread.
    start_patience: Micros
    patience: Micros
    kill_grace: Micros
    recycle_after_runs: int | None = None
    recycle_memory_bytes: int | None = None


class ChildPool:
    """Child processes of one kind, started on demand.

    - An attempt that must stop is interrupted. If that does not end it, its child is killed: the attempt gets the
      outcome it was stopped for. The innocent attempts in that child are released, uncharged.
    - If a child dies by itself, its attempts are lost. If it hosted a single one, that one is to blame.
    """

    def __init__(
        self,
        program: ChildProgram,
        limits: PoolLimits,
        clock: Clock,
        outcomes: Outcomes,
        listener: ReportListener[Attempt],
        *,
        watch: Callable[[Micros], None],
        check_lease: Callable[[], None],
    ) -> None:
        """``watch``: has ``sweep`` called at this time. ``check_lease``: ends the lease if it was not renewed."""
        self._program = program
        self._limits = limits
        self._clock = clock
        self._outcomes = outcomes
        self._listener = listener
        self._watch = watch
        self._check_lease = check_lease
        #: Why the last child failed to start; None once one is ready.
        self._start_error: str | None = None
        self._children: set[ChildProcess] = set()
        self._where: dict[Attempt, ChildProcess] = {}
        #: Attempts without a thread, with the time they began to wait.
        self._waiting: deque[tuple[Attempt, Micros]] = deque()
        self._closed = False
        self._all_gone = asyncio.Event()

    @property
    def room(self) -> int:
        """How many more attempts could be started at once."""
        free = sum(self._limits.threads - child.load for child in self._children if child.accepts)
        return free + max(self._limits.size - len(self._children), 0) * self._limits.threads - len(self._waiting)

    @property
    def processes(self) -> list[int]:
        return [child.pid for child in self._children]

    def start(self, attempt: Attempt) -> None:
        attempt.executor = self
        # Its time limit runs from the moment it begins.
        attempt.until = NEVER
        if not self._place(attempt):
            now = self._clock.monotonic()
            self._waiting.append((attempt, now))
            self._watch(now + self._limits.patience)
            attempt.group.narrow = self
            attempt.group.narrow_until = now + _NARROW

    def stop(self, attempt: Attempt) -> None:
        child = self._where.get(attempt)
        if child is not None and attempt.begun:
            child.interrupt(attempt)
        elif child is not None:
            del self._where[attempt]
            child.forget(attempt)
            self._outcomes.failed(attempt, "stopped before it began")
        else:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not attempt)
            self._outcomes.failed(attempt, "stopped before it began")

    def kill(self, attempt: Attempt) -> None:
        child = self._where.get(attempt)
        if child is not None:
            _log.warning("killing a child process", pid=child.pid, task=attempt.held.task, run=attempt.held.id)
            if attempt.stop in _PATIENT and not child.asked:
                child.terminate()
            else:
                child.condemn()

    def kill_all(self) -> None:
        for child in self._children:
            child.condemn()

    def sweep(self, now: Micros) -> None:
        """Release runs that wait too long for a thread, and end children that do not start or do not exit."""
        while self._waiting and now - self._waiting[0][1] >= self._limits.patience:
            attempt, _ = self._waiting.popleft()
            self._give_back(attempt, "no thread was free for it", now)
        for child in list(self._children):
            if not child.ready and not child.slow and now - child.started_at >= self._limits.start_patience:
                child.slow = True
                for attempt in child.backlog:
                    del self._where[attempt]
                    child.forget(attempt)
                    self._give_back(attempt, "the child process is still starting", now)
            if not child.ready and now - child.started_at >= self._limits.start_timeout:
                child.refuse(
                    f"the child process did not start within {self._limits.start_timeout / SECOND:g} s: importing "
                    f"{self._program.source.partition(':')[0]} takes too long (worker.child_start)"
                )
                child.condemn()
            elif child.finishing_since is not None and now - child.finishing_since >= self._limits.kill_grace:
                child.condemn()

    def _give_back(self, attempt: Attempt, reason: str, now: Micros) -> None:
        """Release the run, uncharged, and limit its queue to the available room.

        If no child starts at all, the run fails.
        """
        if self._start_error is not None:
            self._outcomes.failed(attempt, self._start_error)
            return
        attempt.group.narrow = self
        attempt.group.narrow_until = now + _NARROW
        self._outcomes.released(attempt, reason)

    async def close(self) -> None:
        """End all children. Attempts that still run in them are killed."""
        self._closed = True
        for child in list(self._children):
            if child.load:
                child.condemn()
            else:
                child.finish()
        if self._children:
            try:
                async with asyncio.timeout(self._limits.kill_grace / SECOND):
                    await self._all_gone.wait()
            except TimeoutError:
                for child in list(self._children):
                    child.condemn()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.kill_grace / SECOND):
                        await self._all_gone.wait()

    def _place(self, attempt: Attempt) -> bool:
        """Find a child with a free thread, or start one."""
        roomy = [child for child in self._children if child.accepts and child.load < self._limits.threads]
        if roomy:
            child = min(roomy, key=lambda candidate: candidate.load)
        elif len(self._children) < self._limits.size and not self._closed:
            try:
                child = self._start_child()
            except OSError as error:
                self._outcomes.failed(attempt, f"a child process could not be started: {error}")
                return True
        else:
            return False
        self._where[attempt] = child
        child.give(attempt)
        if self._limits.recycle_after_runs is not None and child.given >= self._limits.recycle_after_runs:
            child.retiring = True
        return True

    def _start_child(self) -> ChildProcess:
        child = ChildProcess(
            self._program,
            measures_memory=self._limits.recycle_memory_bytes is not None,
            alone=self._limits.threads == 1,
            clock=self._clock,
            owner=self,
        )
        self._children.add(child)
        self._all_gone.clear()
        self._watch(child.started_at + self._limits.start_patience)
        self._watch(child.started_at + self._limits.start_timeout)
        return child

    def started(self) -> None:
        """A child is ready."""
        self._start_error = None
        self._fill()

    def begin(self, attempt: Attempt) -> None:
        """A child is about to call its handler."""
        attempt.begun = True
        attempt.reporter = AttemptReporter(attempt, self._listener, tenant=attempt.held.tenant)
        attempt.until = self._clock.monotonic() + attempt.duration
        self._watch(attempt.until)

    def ended(
        self, child: ChildProcess, attempt: Attempt, result: bytes | None, error: str | None, cause: Cause
    ) -> None:
        """User code has returned or raised."""
        del self._where[attempt]
        left = attempt.stop is not None and child.leaves_behind()
        if left:
            # The leftover processes end with the child. In a child with other runs their owner is unknown, and those
            # runs come first.
            child.retiring = True
        if left and not child.load:
            child.withheld.append((attempt, result, error, cause))
        else:
            self._report_outcome(attempt, result, error, cause)
        if self._limits.recycle_memory_bytes is not None and child.memory >= self._limits.recycle_memory_bytes:
            child.retiring = True
        if child.retiring and not child.load:
            child.finish()
            self._watch(self._clock.monotonic() + self._limits.kill_grace)
        self._fill()

    def _report_outcome(self, attempt: Attempt, result: bytes | None, error: str | None, cause: Cause) -> None:
        if error is None:
            self._outcomes.succeeded(attempt, result)
        else:
            self._outcomes.failed(attempt, error, cause)

    def exited(self, child: ChildProcess, code: int) -> None:
        """The process is gone, and all of its messages were received."""
        self._children.discard(child)
        if not self._children:
            self._all_gone.set()
        # If the worker was frozen, its children may have ended themselves: then no outcome may be reported.
        self._check_lease()
        hosted = child.hosted
        if child.refusal is not None:
            self._start_error = child.refusal
            _log.error("child process failed to start", pid=child.pid, error=child.refusal)
        elif not child.condemned and (hosted or child.finishing_since is None):
            tasks = sorted({attempt.held.task for attempt in hosted})
            _log.error("child process died", pid=child.pid, how=describe_exit(code), tasks=tasks)
        for attempt, result, error, cause in child.withheld:
            self._report_outcome(attempt, result, error, cause)
        for attempt in hosted:
            del self._where[attempt]
            if attempt.stop is not None:
                self._outcomes.failed(attempt, f"its process had to be killed: it {describe_exit(code)}")
            elif child.condemned:
                self._outcomes.released(attempt, "its process had to be killed because of another run")
            else:
                self._outcomes.lost(attempt, blamed=len(hosted) == 1, how=f"its process {describe_exit(code)}")
        for attempt in child.backlog:
            del self._where[attempt]
            if child.refusal is not None:
                self._outcomes.failed(attempt, child.refusal)
            elif not child.ready and not child.condemned:
                self._outcomes.failed(attempt, f"the child process {describe_exit(code)} while it started")
            else:
                self.start(attempt)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._place(self._waiting[0][0]):
            self._waiting.popleft()


def describe_exit(code: int) -> str:
    """Describe how a process ended, by the code that ``Popen.wait`` returns: negative for a signal."""
    if code == CUT_OFF:
        return "had to end, because a task closed its connection to the worker"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"
