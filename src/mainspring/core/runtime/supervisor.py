"""Starts services in order and stops them in reverse order."""

from types import TracebackType
from typing import Self

from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.service import Service

_log = get_logger("mainspring.supervisor")


class Supervisor:
    """``async with Supervisor(a, b, c)``: all are ready inside; all have ended after. A failed start stops the started
    ones."""

    def __init__(self, *services: Service) -> None:
        self._services = services
        self._started: list[Service] = []

    async def start(self) -> None:
        try:
            for service in self._services:
                await service.start()
                self._started.append(service)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        while self._started:
            service = self._started.pop()
            try:
                await service.stop()
            except Exception:
                _log.exception("service did not stop cleanly", service=type(service).__name__)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
