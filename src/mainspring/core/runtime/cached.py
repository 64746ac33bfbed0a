"""Caches for values that are read from the store."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Generic, TypeVar

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.tasks import cancel_and_wait

T = TypeVar("T")


class Cached(Generic[T]):
    """A cached value. However many callers ask at once, the store is read once.

    A failed read is not cached: its callers get the error, and the next caller reads again.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, fresh_for: Micros) -> None:
        self._read = read
        self._clock = clock
        self._fresh_for = fresh_for
        self._value: T | None = None
        self._read_at: Micros | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> T:
        value = self._fresh()
        if value is not None:
            return value
        async with self._reading:
            value = self._fresh()
            if value is None:
                began = self._clock.monotonic()
                value = self._value = await self._read()
                self._read_at = began
            return value

    def forget(self) -> None:
        self._read_at = None

    def _fresh(self) -> T | None:
        if self._read_at is None or self._clock.monotonic() - self._read_at >= self._fresh_for:
            return None
        return self._value


class BackgroundCache(Generic[T]):
    """A cached value that may take long to read. Reads run in the background.

    Callers wait as long as they can, and then get the last value if it is not too old. Only one read runs at a time. A
    failed read is repeated when the next one is due.
    """

    def __init__(
        self, read: Callable[[], Coroutine[None, None, T]], clock: Clock, fresh_for: Micros, stale_for: Micros
    ) -> None:
        """``fresh_for``: serve from cache without refreshing. ``stale_for``: keep serving this long
        if refreshing fails."""
        self._read = read
        self._clock = clock
        self._fresh_for = fresh_for
        self._stale_for = stale_for
        self._value: T | None = None
        self._read_at: Micros | None = None
        self._tried_at: Micros | None = None
        self._reading: asyncio.Task[None] | None = None

    async def get(self, seconds: float) -> T | None:
        """Return the value, waiting at most ``seconds`` for a refresh. None: no sufficiently recent value."""
        if self._reading is None and not self._is_within(self._tried_at, self._fresh_for):
            self._reading = asyncio.create_task(self._renew())
        reading = self._reading
        if reading is not None:
            await asyncio.wait([reading], timeout=seconds)
            if reading.done() and not reading.cancelled():
                reading.result()
        return self._value if self._is_within(self._read_at, self._fresh_for + self._stale_for) else None

    async def close(self) -> None:
        """Cancel the running read."""
        reading = self._reading
        if reading is not None:
            await cancel_and_wait(reading)

    async def _renew(self) -> None:
        began = self._tried_at = self._clock.monotonic()
        try:
            with suppress(StoreUnavailable):
                self._value = await self._read()
                self._read_at = began
        finally:
            self._reading = None

    def _is_within(self, moment: Micros | None, time: Micros) -> bool:
        return moment is not None and self._clock.monotonic() - moment < time
