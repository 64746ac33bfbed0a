"""Wraps the handlers of the application, so that the next attempts of a task can fail or kill their worker."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context

from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.handler import AsyncHandler, Handler, HandlerSource, Host
from mainspring.core.worker.reporting.capture import capture
from mainspring.testing.loop import EngineLoop, looking

#: What an attempt does instead of calling its function: it raises this error or, if None, its worker dies.
Fate = BaseException | None


class Rig:
    """A source of handlers that all run on the runtime's loop; blocking functions run one at a time on a thread."""

    def __init__(self, source: HandlerSource, loop: EngineLoop, kill_worker: Callable[[], None]) -> None:
        self._source = source
        self._loop = loop
        self._kill_worker = kill_worker
        self._fates: defaultdict[str, deque[Fate]] = defaultdict(deque)
        self._thread = ThreadPoolExecutor(1, "mainspring test handlers")

    def handlers(self) -> Mapping[str, Handler]:
        return {name: self._rigged(handler) for name, handler in self._source.handlers().items()}

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        inner = self._source.hosting() if isinstance(self._source, Host) else None
        return None if inner is None else _on_time(inner)

    def doom(self, task: str, fate: Fate, times: int) -> None:
        self._fates[task].extend([fate] * times)

    def close(self) -> None:
        self._thread.shutdown()

    def _rigged(self, handler: Handler) -> AsyncHandler:
        call = self._caller(handler)

        async def invoke(held: HeldRun) -> bytes | None:
            token = looking.set(False)
            # Pytest replaces ``sys.stdout`` between two phases of a test.
            capture.renew()
            self._loop.handlers += 1
            try:
                await self._meet_fate(handler.task)
                return await call(held)
            finally:
                self._loop.handlers -= 1
                looking.reset(token)

        # There are no child processes to isolate a suspect in.
        return AsyncHandler(handler.task, invoke, harmless=True, heartbeat=handler.heartbeat)

    def _caller(self, handler: Handler) -> Callable[[HeldRun], Coroutine[None, None, bytes | None]]:
        if isinstance(handler, AsyncHandler):
            return handler.invoke
        blocking = handler.invoke

        async def call(held: HeldRun) -> bytes | None:
            context = copy_context()
            return await self._loop.run_in_executor(self._thread, lambda: context.run(blocking, held))

        return call

    async def _meet_fate(self, task: str) -> None:
        fates = self._fates[task]
        if not fates:
            return
        fate = fates.popleft()
        if fate is not None:
            raise fate.with_traceback(None)
        self._kill_worker()
        await asyncio.Event().wait()


@asynccontextmanager
async def _on_time(inner: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
    """Keep the timers of the application's resources from counting as polls.

    The context has a task of its own, created on entry.
    """
    token = looking.set(False)
    try:
        await inner.__aenter__()
    finally:
        looking.reset(token)
    try:
        yield
    finally:
        await inner.__aexit__(None, None, None)
