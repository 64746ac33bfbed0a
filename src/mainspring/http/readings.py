"""What was read for the first page of something that must be read whole, for the pages after it."""

from collections import OrderedDict
from typing import Generic, TypeVar

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock

T = TypeVar("T")

_KEPT_FOR: Micros = 30 * SECOND
#: Items of all readings together: some ten megabytes.
_MOST = 20_000


class Readings(Generic[T]):
    """Bounded; the oldest goes first. Whoever finds nothing here reads anew: another process may have the next page."""

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
