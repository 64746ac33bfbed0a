"""An answer that is good for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mainspring.domain.instant import Micros
from mainspring.ports.clock import Clock

T = TypeVar("T")


class Remembered(Generic[T]):
    """Something of the store, as of a moment ago. However many ask at once, the store is asked once.

    What could not be read is not remembered: whoever asked is told, and the next one asks anew.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, good_for: Micros) -> None:
        self._read = read
        self._clock = clock
        self._good_for = good_for
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
        if self._read_at is None or self._clock.monotonic() - self._read_at >= self._good_for:
            return None
        return self._value
