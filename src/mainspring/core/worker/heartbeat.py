"""Keeps the worker's lease alive, and reconciles its runs with the store.

In production it is a thread with its own event loop and connection. A handler that blocks the worker's loop, or a pool
without a free connection, must not look like a dead worker. It also watches the worker's loop and logs what blocks it.
(Only code that never releases the interpreter lock stops this thread too.) Without a store of its own it is a task on
the worker's loop, which is how simulations run it.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import FrameType
from typing import ParamSpec, Protocol, TypeAlias

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.runtime.threads import joined
from mainspring.core.store import Workforce
from mainspring.core.worker.attempt import Holding
from mainspring.core.worker.settings import WorkerSettings

_RETRY: Micros = 500 * MILLISECOND
#: The shortest interval between heartbeats, however often one is requested.
_CLOSEST: Micros = 100 * MILLISECOND
#: The worker's loop updates its pulse this often …
_PULSE: Micros = 500 * MILLISECOND
#: … and counts as blocked if it has not for this long.
_BLOCKED_AFTER: Micros = 2 * SECOND
_LOG_AGAIN_AFTER: Micros = 10 * SECOND

_log = get_logger("mainspring.heartbeat")

#: Opens a store for the heartbeat's own thread.
OpenWorkforce: TypeAlias = Callable[[], AbstractAsyncContextManager[Workforce]]
Arguments = ParamSpec("Arguments")


class LeaseHolder(Protocol):
    """The owner of the heartbeat, the worker.

    The attributes are read from the heartbeat's thread. The methods run on the worker's loop, except ``lease_renewed``.
    """

    @property
    def holding(self) -> Holding | None: ...

    @property
    def failing_since(self) -> Micros | None: ...

    def lease_renewed(self) -> None:
        """The lease was renewed. Called on the thread that sent the heartbeat, before anything else."""
        ...

    def heartbeat_answered(self, holding: Holding, answer: HeartbeatAnswer) -> None: ...

    def lease_over(self, holding: Holding, why: str) -> None: ...


class Heartbeat:
    def __init__(
        self,
        owner: LeaseHolder,
        store: Workforce,
        clock: Clock,
        settings: WorkerSettings,
        open_workforce: OpenWorkforce | None = None,
    ) -> None:
        self._owner = owner
        self._store = store
        self._clock = clock
        self._settings = settings
        self._open_workforce = open_workforce
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        #: Set at the start, as is the time of the last pulse.
        self._worker_thread: int
        #: The loop from which heartbeats are sent.
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hurried: asyncio.Event | None = None
        self._stopped = False
        #: Heartbeats are deliberately not sent; see ``send``.
        self.withholding = False
        self._pulse_at: Micros
        self._logged_at: Micros | None = None

    def start(self) -> None:
        self._worker_loop = asyncio.get_running_loop()
        self._worker_thread = threading.get_ident()
        self._pulse_at = self._clock.monotonic()
        if self._open_workforce is None:
            self._hurried = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._send_on(self._store), name="heartbeat"))
            return
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="mainspring heartbeat", daemon=True
        )
        self._thread.start()
        self._tasks.append(asyncio.create_task(self._send_pulses(), name="pulse"))

    async def stop(self) -> None:
        self._stopped = True
        self.hurry()
        if self._thread is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_interval / SECOND):
                    await joined(self._thread)
        await cancel_and_wait(*self._tasks)

    def hurry(self) -> None:
        """Send a heartbeat now, because a run was asked to stop."""
        hurried = self._hurried
        if hurried is not None:
            self._call_on(self._own_loop, hurried.set)

    async def send(self, store: Workforce) -> Micros:
        """Send one heartbeat; returns how long to wait for the next one."""
        holding = self._owner.holding
        if holding is None:
            return self._settings.heartbeat_interval
        now = self._clock.monotonic()
        if now - holding.renewed_at >= self._settings.lease - self._settings.lease_margin:
            self._call_on(self._worker_loop, self._owner.lease_over, holding, "no heartbeat was answered in time")
            return _RETRY
        failing_since = self._owner.failing_since
        if failing_since is not None and now - failing_since >= self._settings.lease:
            # Its outcomes do not reach the store: let the lease expire, so that other workers take its runs.
            if not self.withholding:
                _log.error("no outcome reported for a whole lease, lease abandoned")
            self.withholding = True
            return _RETRY
        self.withholding = False
        # The order matters. The store requeues a run of this session if its claim is not newer than ``last_claim`` and
        # not ``pending``, and the run is not ``held``. The worker's loop may claim, get an answer and complete runs
        # between any two of these lines. A claim enters ``pending`` before it becomes ``last_claim``, and leaves it
        # only after its runs are in ``held``. A run leaves ``held`` only when the store has its outcome.
        # For a claim not newer than what the first line reads: if the second line does not find it pending, its runs
        # were held before the third line, or are completed. In the reverse order, a claim answered between the lines
        # would be in neither.
        last_claim = holding.last_claim
        pending = list(holding.pending)
        held = list(holding.held)
        sent = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._settings.heartbeat_interval / SECOND):
                answer = await store.heartbeat(holding.session, self._settings.lease, held, pending, last_claim)
        except (StoreUnavailable, TimeoutError) as error:
            _log.warning("heartbeat failed", error=str(error) or "no answer", held=len(held))
            return _RETRY
        if not answer.alive:
            self._call_on(self._worker_loop, self._owner.lease_over, holding, "the store reaped this session")
            return _RETRY
        # Trusted from before the request was sent: the store cannot have counted from earlier.
        holding.renewed_at = max(holding.renewed_at, sent)
        self._owner.lease_renewed()
        if answer.returned:
            _log.warning("runs of a claim without an answer requeued", runs=answer.returned)
        if answer.cancels or answer.draining or answer.lost:
            self._call_on(self._worker_loop, self._owner.heartbeat_answered, holding, answer)
        return max(self._settings.heartbeat_interval - (self._clock.monotonic() - sent), _CLOSEST)

    async def _send_on(self, store: Workforce) -> None:
        assert self._hurried is not None
        while not self._stopped:
            try:
                wait = await self.send(store)
            except Exception:
                _log.exception("heartbeat failed")
                wait = _RETRY
            if self._stopped:
                return
            await self._clock.sleep(_CLOSEST)
            try:
                async with asyncio.timeout(max(wait - _CLOSEST, 0) / SECOND):
                    await self._hurried.wait()
            except TimeoutError:
                continue
            self._hurried.clear()

    async def _live(self) -> None:
        """Run the heartbeat's thread."""
        assert self._open_workforce is not None
        self._own_loop = asyncio.get_running_loop()
        self._hurried = asyncio.Event()
        watching = asyncio.create_task(self._watch())
        while not self._stopped:
            try:
                async with self._open_workforce() as store:
                    await self._send_on(store)
            except Exception as error:
                _log.warning("heartbeat cannot open a store connection", error=str(error))
                await self._clock.sleep(_RETRY)
        watching.cancel()

    async def _send_pulses(self) -> None:
        """Update the pulse on the worker's loop, as long as that loop is not blocked."""
        while True:
            self._pulse_at = self._clock.monotonic()
            await self._clock.sleep(_PULSE)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(_PULSE)
            self._look_at_the_loop()

    def _look_at_the_loop(self) -> None:
        now = self._clock.monotonic()
        silent = now - self._pulse_at
        if silent <= _BLOCKED_AFTER:
            if self._logged_at is not None:
                _log.warning("event loop no longer blocked")
                self._logged_at = None
            return
        if self._logged_at is None or now - self._logged_at >= _LOG_AGAIN_AFTER:
            self._logged_at = now
            task = asyncio.current_task(self._worker_loop)
            _log.error(
                "event loop blocked",
                task=task.get_name() if task is not None else None,
                at=_where(sys._current_frames().get(self._worker_thread)),
                seconds=round(silent / SECOND, 1),
            )

    def _call_on(
        self,
        loop: asyncio.AbstractEventLoop | None,
        what: Callable[Arguments, None],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> None:
        """Call a function on that loop, from any thread."""
        if self._thread is None or loop is None:
            what(*arguments, **named)
            return
        try:
            loop.call_soon_threadsafe(lambda: what(*arguments, **named))
        except RuntimeError:
            # That loop is closed: there is no receiver left.
            return


def _where(frame: FrameType | None) -> list[str]:
    """Return the innermost calls, innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < 5:
        calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return calls
