"""Signal handling: the first signal asks the process to stop cleanly, the second to stop at once."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Self

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The time for stopping in addition to the grace period; with the default one the sum is below the 30 s of Kubernetes.
_LEAVING: Micros = 4 * SECOND
_FLUSHING_SECONDS = 0.5


class LastResort:
    """Ends the process by force if it does not end by itself.

    Runs on a thread: a handler may block the loop, swallow its cancellation, or leave threads behind that cannot be
    ended. It wraps the whole process, and is disarmed at the end if no non-daemon thread remains.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: SimpleQueue[tuple[Micros, int] | None] = SimpleQueue()
        self._before = set(threading.enumerate())

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="mainspring last resort", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if all(thread.daemon or thread in self._before for thread in threading.enumerate()):
            self._limits.put(None)

    def end_within(self, limit: Micros, status: int) -> None:
        """Set a limit: the earliest limit applies, with the latest status. May be called from a signal handler."""
        self._limits.put((self._clock.monotonic() + limit, status))

    def _watch(self) -> None:
        limit = self._limits.get()
        end_at, status = limit or (0, 0)
        with suppress(Empty):
            while limit is not None:
                end_at, status = min(end_at, limit[0]), limit[1]
                limit = self._limits.get(timeout=max(end_at - self._clock.monotonic(), 0) / SECOND)
            return
        os.write(2, b"mainspring: something does not stop; the process is ended by force\n")
        # A hanging thread may hold the lock of a stream.
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        flushing.join(_FLUSHING_SECONDS)
        os._exit(status)


class StopSignals:
    """``async with StopSignals(…) as stop: await stop.asked.wait()``; ``stop.insisted`` is set by a second signal.

    A process that is still running when the grace period and the stop time are over is ended by force. After the second
    signal only the stop time applies.
    """

    def __init__(self, last_resort: LastResort, grace: Micros) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self._last_resort = last_resort
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self._came = 0
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}

    async def __aenter__(self) -> Self:
        # Not via the loop, which a handler may block: Python calls this between any two steps of the main thread.
        for number in _SIGNALS:
            signal.signal(number, self._handle)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._came += 1
        self._last_resort.end_within(_LEAVING + (self._grace if self._came == 1 else 0), status=1)
        self._loop.call_soon_threadsafe(self.asked.set if self._came == 1 else self.insisted.set)


def flush() -> None:
    """Flush the output streams, so that printed output survives any kind of exit."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
