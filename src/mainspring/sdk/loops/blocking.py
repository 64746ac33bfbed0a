"""An event loop on a separate thread, for blocking code such as Django views, scripts and shells."""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from mainspring.core.model.base.errors import Conflict
from mainspring.core.runtime.tasks import cancel_and_wait

T = TypeVar("T")

#: How long the exit of the program waits for connections to close.
_GOODBYE_SECONDS = 2


class BlockingLoop:
    """A loop that starts on first use. A forked child process starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread's loop, and block until it is done."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._started()).result()
        work.close()
        raise Conflict("this blocks, and would stop the event loop that calls it; await the same without .sync")

    def close(self) -> None:
        """Stop the thread and close everything that was opened on its loop."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None and os.getpid() == self._process:
            loop.call_soon_threadsafe(self._over.set)
            self._thread.join(_GOODBYE_SECONDS)
            atexit.unregister(self.close)

    def _started(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._process:
            # A fork copies no threads, and the lock may have been held when the child was forked.
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if self._loop is None:
                ready = threading.Event()
                self._thread = threading.Thread(target=self._serve, args=(ready,), name="mainspring", daemon=True)
                self._thread.start()
                ready.wait()
                atexit.register(self.close)
            assert self._loop is not None
            return self._loop

    def _serve(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._over = over = asyncio.Event()
            ready.set()
            await over.wait()
            await cancel_and_wait(*(asyncio.all_tasks() - {asyncio.current_task()}))

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(serve())
            # Closes what was opened on the loop.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            # asyncio.run would start a thread to shut down the executor, which an exiting interpreter refuses.
            loop.close()
