"""One server of a sharded store, and whether it is available."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.work.placement_groups import PlacementStatus, is_elsewhere

T = TypeVar("T")

_log = get_logger("mainspring.servers")
#: A server that does not return its time for this long is unavailable, and is then probed at this interval.
_PATIENCE: Micros = SECOND
_AGAIN: Micros = 250 * MILLISECOND


class WrongServer(StoreUnavailable):
    """The server does not own the placement group of the request."""


class Server:
    """Forwards calls to its store.

    While the store is unavailable, calls fail at once instead of waiting for a dead server.
    """

    def __init__(self, store: PostgresStore, name: str, clock: Clock) -> None:
        self.store = store
        #: Its address without secrets, for display.
        self.name = name
        self.number = -1
        self.status: PlacementStatus | None = None
        self.away = True
        self._clock = clock
        self._probing: asyncio.Task[None] | None = None
        self._is_open = False
        #: Called when the server is available again.
        self.came_back: Callable[[Server], Awaitable[None]] | None = None

    def __str__(self) -> str:
        return f"server {self.number} ({self.name})" if self.number >= 0 else self.name

    async def open(self) -> None:
        await self.store.open()
        self._is_open = True
        self.away = False

    async def close(self) -> None:
        if self._probing is not None:
            await cancel_and_wait(self._probing)
        if self._is_open:
            await self.store.close()

    async def ask(self, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        if self.away:
            raise StoreUnavailable(f"{self} of the store is unavailable")
        try:
            return await call(self.store)
        except StoreUnavailable as error:
            if is_elsewhere(error):
                raise WrongServer(str(error)) from error
            self.doubt()
            raise StoreUnavailable(f"{self}: {error}") from error

    def doubt(self) -> None:
        """Probe the server after a failure or a timeout, because one failure alone proves little."""
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe(), name=f"probe of {self}")
            self._probing.add_done_callback(self._probed)

    async def _probe(self) -> None:
        while not await self._lives():
            if not self.away:
                _log.warning("server unavailable", server=str(self))
            self.away = True
            await self._clock.sleep(_AGAIN)
        if self.away:
            self.away = False
            _log.info("server available", server=str(self))
            if self.came_back is not None:
                await self.came_back(self)

    async def _lives(self) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE / SECOND):
                if not self._is_open:
                    await self.store.open()
                    self._is_open = True
                await self.store.now()
        except (StoreUnavailable, TimeoutError):
            return False
        return True

    def _probed(self, task: "asyncio.Task[None]") -> None:
        self._probing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("server unusable", server=str(self), error=str(error))
