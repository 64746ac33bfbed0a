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
from mainspring.testing.loop import RuntimeLoop, polling

#: What an attempt does instead of calling its function: it raises this error or, if None, its worker dies.
Fault = BaseException | None


class FaultInjector:
    """A source of handlers that all run on the runtime's loop; blocking functions run one at a time on a thread."""

    def __init__(self, source: HandlerSource, loop: RuntimeLoop, kill_worker: Callable[[], None]) -> None:
        self._source = source
        self._loop = loop
        self._kill_worker = kill_worker
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._thread = ThreadPoolExecutor(1, "mainspring test handlers")

    def handlers(self) -> Mapping[str, Handler]:
        return {name: self._wrap(handler) for name, handler in self._source.handlers().items()}

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        inner = self._source.hosting() if isinstance(self._source, Host) else None
        return None if inner is None else _enter_in_virtual_time(inner)

    def inject(self, task: str, fault: Fault, times: int) -> None:
        self._faults[task].extend([fault] * times)

    def close(self) -> None:
        self._thread.shutdown()

    def _wrap(self, handler: Handler) -> AsyncHandler:
        call = self._build_call(handler)

        async def invoke(held: HeldRun) -> bytes | None:
            token = polling.set(False)
            # Pytest replaces ``sys.stdout`` between two phases of a test.
            capture.renew()
            self._loop.handlers += 1
            try:
                await self._apply_fault(handler.task)
                return await call(held)
            finally:
                self._loop.handlers -= 1
                polling.reset(token)

        # There are no child processes to isolate a suspect in.
        return AsyncHandler(handler.task, invoke, harmless=True, heartbeat=handler.heartbeat)

    def _build_call(self, handler: Handler) -> Callable[[HeldRun], Coroutine[None, None, bytes | None]]:
        if isinstance(handler, AsyncHandler):
            return handler.invoke
        blocking = handler.invoke

        async def call(held: HeldRun) -> bytes | None:
            context = copy_context()
            return await self._loop.run_in_executor(self._thread, lambda: context.run(blocking, held))

        return call

    async def _apply_fault(self, task: str) -> None:
        faults = self._faults[task]
        if not faults:
            return
        fault = faults.popleft()
        if fault is not None:
            raise fault.with_traceback(None)
        self._kill_worker()
        await asyncio.Event().wait()


@asynccontextmanager
async def _enter_in_virtual_time(inner: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
    """Keep the timers of the application's resources from counting as polls.

    The context has a task of its own, created on entry.
    """
    token = polling.set(False)
    try:
        await inner.__aenter__()
    finally:
        polling.reset(token)
    try:
        yield
    finally:
        await inner.__aexit__(None, None, None)
