"""The event loop of a child process, on which the application opens resources and async code runs."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from mainspring.core.worker.executors.interruption import Interrupted
from mainspring.core.worker.handler import Host

T = TypeVar("T")
#: How often a waiting thread checks whether it was interrupted.
_LOOK = 0.05


class HostLoop:
    """An event loop on a separate thread, started on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._stack = AsyncExitStack()

    def open(self, source: object) -> None:
        """Open the application's resources, before the first run."""
        hosting = source.hosting() if isinstance(source, Host) else None
        if hosting is not None:
            self.run(self._stack.enter_async_context(hosting))

    def close(self) -> None:
        """Close the application's resources, after the last run."""
        if self._loop is not None:
            self.run(self._stack.aclose())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. If this thread is interrupted, the coroutine is cancelled."""
        # It runs with the context variables of this thread, which include the current attempt.
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            # An unlimited wait would not notice an interruption.
            while not future.done():
                wait([future], _LOOK)
        except Interrupted:
            future.cancel()
            raise
        return future.result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="mainspring host", daemon=True).start()
            return self._loop
