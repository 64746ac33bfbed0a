"""The resources that handlers need while a worker runs, and the capture of their output."""

from contextlib import AsyncExitStack

from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.log_lines import shows_output
from mainspring.core.worker.handler import HandlerSource, Host
from mainspring.core.worker.reporting.capture import capture

_log = get_logger("mainspring.worker")


class Hosting:
    def __init__(self, handlers: HandlerSource, *, capture_logs: bool) -> None:
        self._handlers = handlers
        self._capture_logs = capture_logs
        self._resources = AsyncExitStack()

    async def open(self) -> None:
        resources = self._handlers.hosting() if isinstance(self._handlers, Host) else None
        if resources is not None:
            await self._resources.enter_async_context(resources)
        if self._capture_logs or shows_output():
            capture.begin()
            self._resources.callback(capture.end)

    async def close(self) -> None:
        try:
            await self._resources.aclose()
        except Exception:
            _log.exception("cannot close the application's resources")
