"""Looks once a minute how much waits and runs, so that it can be shown over time."""

from collections.abc import Callable, Mapping
from typing import Protocol

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_SHARD = 0
#: Who does not own the first shard looks again then.
_EVERY: Micros = 2 * SECOND
#: So long after a minute has begun: two clocks never agree on when that is.
_AFTER: Micros = SECOND


class LoadStore(Protocol):
    """The part of the store that it uses."""

    async def sample_load(self) -> Instant: ...


class LoadSampler(TickingService):
    """Whoever owns the first shard does it. Two that do it at once do no harm: a minute is looked at once."""

    def __init__(
        self, store: LoadStore, wakeups: Wakeups, clock: Clock, owned: Callable[[], Mapping[int, int]]
    ) -> None:
        super().__init__("load", clock, wakeups.listen(()))
        self._store = store
        self._owned = owned

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            return _EVERY
        now = await self._store.sample_load()
        return MINUTE - now % MINUTE + _AFTER
