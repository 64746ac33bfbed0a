"""The event loop of a test's runtime and handlers: virtual time that passes only when a test lets it.

The loop runs in a thread of its own, so that a test may run on any loop, or on none. A call from outside is a command.
Without a command time stands still. During a command, when no task can proceed, time jumps to the next event:

- a timer of a handler or of a command, or
- the next change in the store: a run comes due, a schedule ticks, an attempt times out, a lease expires.

The runtime's own timers only poll the store for changes. The store can predict every change that time alone causes, so
these timers are held back: a year has 630 million polls of the scheduler, but an hourly job causes 8,760 changes. At a
change the scheduler is notified first, since most changes are its own. If it does not handle the change, all polls run,
and time passes at the pace of their timers until the change is handled.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context, ContextVar
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.testing.virtual_time import VirtualLoop, VirtualSelector, round_to_micros

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

#: Timers that are set in a context with this flag are polls.
polling: ContextVar[bool] = ContextVar("polling", default=False)

#: Real seconds without activity on open files after which a running handler counts as waiting for virtual time.
_SILENCE = 0.1
#: Virtual seconds that the remaining tasks get to end.
_GOODBYE = 60
#: The number of cancelled polls that may stay in the heap.
_FEW = 100
#: Half a microsecond: instants are microseconds, but the loop counts in floats.
_HALF_A_STEP = 0.5 / SECOND


class ChangeHandler(Protocol):
    """Predicts and handles the changes in the store that time alone causes."""

    def next_change(self) -> Instant | None:
        """Return when time alone next changes the store; a past time means that a change has not been handled."""
        ...

    def handle_change(self) -> None:
        """Handle a change that happens now."""
        ...


class RuntimeLoop(VirtualLoop):
    """An event loop that is created in one thread and runs in another."""

    def __init__(self, start: Instant) -> None:
        self._selector_of_time = _RuntimeSelector(start, self)
        self.handler: ChangeHandler | None = None
        #: Number of handlers in progress.
        self.handlers = 0
        self._commands = 0
        #: Commands that came while a thread was busy: most likely the thread sent them and waits for the answer.
        self._asked_by_threads = 0
        self._threads = 0
        self._polls = _PollTimers()
        self._resting: list[asyncio.Future[None]] = []
        self._moving: list[asyncio.Future[None]] = []
        super().__init__(start=start, selector=self._selector_of_time)
        self._thread = threading.Thread(target=self._live, name="mainspring test runtime", daemon=True)

    # Called from other threads.

    @property
    def now(self) -> Instant:
        return self.start + self.elapsed

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop the loop and wait until its thread has ended."""
        self.call_soon_threadsafe(self.stop)
        self._thread.join()

    @property
    def runs_here(self) -> bool:
        """Report whether the caller runs on the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def command(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on this loop, from another thread.

        The future is done when no task can proceed without time passing.
        """
        return asyncio.run_coroutine_threadsafe(self._run_command(work), self)

    # Called on the loop.

    async def at_rest(self) -> None:
        """Return when no other task can proceed without time passing."""
        waiter = self.create_future()
        self._resting.append(waiter)
        await waiter

    async def moved(self) -> None:
        """Return when time has advanced, however little."""
        waiter = self.create_future()
        self._moving.append(waiter)
        await waiter

    async def _run_command(self, work: Coroutine[Any, Any, T]) -> T:
        by_thread = self._threads > 0
        self._commands += 1
        self._asked_by_threads += by_thread
        try:
            result = await work
        finally:
            self._commands -= 1
            self._asked_by_threads -= by_thread
        if not by_thread:
            await self.at_rest()
        return result

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if not (polling.get() if context is None else context.get(polling, False)):
            return super().call_at(when, callback, *args, context=context)
        poll = asyncio.TimerHandle(when, callback, args, self, context)
        self._polls.add(poll)
        return poll

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """Run a function in a thread. Time stands still meanwhile."""
        future = asyncio.BaseEventLoop.run_in_executor(self, executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._on_thread_done)
        return future

    def _on_thread_done(self, _: object) -> None:
        self._threads -= 1

    # Called by the selector when no task can proceed, with the time until the next timer that is not a poll.

    def wait(self, timeout: float | None, files: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
        if self._threads and not self._asked_by_threads:
            return files.select(None)
        # One of the files is how other threads wake this loop.
        if self.handlers and len(files.get_map()) > 1 and (ready := files.select(_SILENCE)):
            return ready
        if self._wake(self._resting):
            return []
        if not self._commands:
            return files.select(None)
        self._move(timeout)
        self._wake(self._moving)
        return []

    def _wake(self, waiters: list[asyncio.Future[None]]) -> bool:
        woken = [waiter for waiter in waiters if not waiter.done()]
        waiters.clear()
        for waiter in woken:
            waiter.set_result(None)
        return bool(woken)

    def _move(self, timeout: float | None) -> None:
        """Advance to the next timer or the next change, whichever is sooner."""
        now = self.now
        timer = None if timeout is None else now + round_to_micros(timeout)
        change = None if self.handler is None else self.handler.next_change()
        if change is not None and change <= now:
            # A change has happened that the runtime has not handled yet.
            if self.run_due_polls():
                return
            to = min(moment for moment in (timer, self._find_next_poll(), now + SECOND) if moment is not None)
        elif change is not None and (timer is None or change <= timer):
            to = change
        else:
            to = now + SECOND if timer is None else timer
        self._selector_of_time.elapsed = to - self.start
        if to == change and self.handler is not None:
            self.handler.handle_change()

    def run_due_polls(self) -> bool:
        """Run the polls that are due; report whether there were any."""
        due = self._polls.take(self.time() + _HALF_A_STEP)
        for poll in due:
            self.call_soon(_run_poll, poll)
        return bool(due)

    def _find_next_poll(self) -> Instant | None:
        when = self._polls.next()
        return None if when is None else self.now + round_to_micros(when - self.time())

    def _live(self) -> None:
        asyncio.set_event_loop(self)
        try:
            self.run_forever()
            self._commands += 1
            self.run_until_complete(self._cancel_remaining_tasks())
            self.run_until_complete(self.shutdown_asyncgens())
            self.run_until_complete(self.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.close()

    async def _cancel_remaining_tasks(self) -> None:
        left = asyncio.all_tasks(self) - {asyncio.current_task(self)}
        for task in left:
            task.cancel()
        if not left:
            return
        _, stubborn = await asyncio.wait(left, timeout=_GOODBYE)
        for task in stubborn:
            # Otherwise the garbage collector would close it, in the middle of other code.
            with suppress(RuntimeError):
                cast(Coroutine[Any, Any, Any], task.get_coro()).close()


class _PollTimers:
    """Polling timers of the runtime, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[asyncio.TimerHandle] = []
        self._tidy_at = _FEW

    def add(self, poll: asyncio.TimerHandle) -> None:
        heappush(self._heap, poll)
        if len(self._heap) > self._tidy_at:
            # Nearly all are cancelled, because a notification came first.
            self._heap = [poll for poll in self._heap if not poll.cancelled()]
            heapify(self._heap)
            self._tidy_at = _FEW + 2 * len(self._heap)

    def next(self) -> float | None:
        while self._heap and self._heap[0].cancelled():
            heappop(self._heap)
        return self._heap[0].when() if self._heap else None

    def take(self, end: float) -> list[asyncio.TimerHandle]:
        taken = []
        while self._heap and self._heap[0].when() < end:
            poll = heappop(self._heap)
            if not poll.cancelled():
                taken.append(poll)
        return taken


def _run_poll(poll: asyncio.TimerHandle) -> None:
    """Run a poll unless it was cancelled at the last moment."""
    if not poll.cancelled():
        poll._run()


class _RuntimeSelector(VirtualSelector):
    """Polls real files first; if none is ready, the loop decides how time advances."""

    def __init__(self, start: Instant, loop: RuntimeLoop) -> None:
        super().__init__(start, longest=_FOREVER)
        self._files = selectors.DefaultSelector()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._files.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._loop.wait(timeout, self._files)

    def register(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        return self._files.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()

    def close(self) -> None:
        self._files.close()


_FOREVER: Micros = 1 << 62
