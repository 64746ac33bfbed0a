"""Samples once a minute how many runs wait and run, so that the load can be shown over time."""

from collections.abc import Callable, Mapping
from typing import Protocol

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_SHARD = 0
#: How often a process that does not own the first shard checks again.
_EVERY: Micros = 2 * SECOND
#: The delay after the start of a minute: two clocks never agree exactly on that start.
_AFTER: Micros = SECOND


class LoadStore(Protocol):
    """The part of the store that the sampler uses."""

    async def sample_load(self) -> Instant: ...


class LoadSampler(TickingService):
    """Samples if this process owns the first shard. Two concurrent samplers do no harm: each minute is sampled once."""

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
