"""Caches results that are read as a whole, so that later pages reuse the reading of the first page."""

from collections import OrderedDict
from typing import Generic, TypeVar

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock

T = TypeVar("T")

_KEPT_FOR: Micros = 30 * SECOND
#: The largest number of items of all readings together: about ten megabytes.
_MOST = 20_000


class ResultCache(Generic[T]):
    """A bounded cache that evicts the oldest reading first.

    On a miss the caller reads again, for example in another process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str | None, str], tuple[Micros, int, T]] = OrderedDict()
        self._size = 0

    def keep(self, key: tuple[str | None, str], reading: T, size: int) -> None:
        self._forget(key)
        self._kept[key] = (self._clock.monotonic(), size, reading)
        self._size += size
        while self._size > _MOST:
            self._forget(next(iter(self._kept)))

    def find(self, key: tuple[str | None, str]) -> T | None:
        at, _, reading = self._kept.get(key, (0, 0, None))
        if reading is not None and self._clock.monotonic() - at > _KEPT_FOR:
            self._forget(key)
            return None
        return reading

    def _forget(self, key: tuple[str | None, str]) -> None:
        _, size, _ = self._kept.pop(key, (0, 0, None))
        self._size -= size
