"""Status cache writer: copies the status of changed runs, in batches, to a cache outside the store."""

from collections.abc import Callable, Mapping
from typing import Protocol

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.status_cache import StatusCache
from mainspring.core.ports.storage.outbox import EventBatch, Outbox
from mainspring.core.ports.storage.reads import RunViews
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

#: Name of the outbox reader, shared by all schedulers. The store drops it when it was not attached for this long.
READER = "status"
_READER_KEPT: Micros = MINUTE
_ATTACH_INTERVAL: Micros = 10 * SECOND
_SHARD = 0
_MAX_BATCHES = 500
_MAX_RUNS = 1_000
#: Changes within this time are written together.
_GATHER_TIME: Micros = 200 * MILLISECOND
#: Changes are kept this long while the cache is unavailable. After that it shows old states until its entries expire.
_MAX_OUTAGE: Micros = 10 * MINUTE


class StatusStore(Outbox, RunViews, Protocol):
    """The store methods that the writer uses."""


class StatusWriter(TickingService):
    """Writes the current state of changed runs to the status cache. The scheduler that owns the first shard runs it."""

    def __init__(
        self,
        store: StatusStore,
        status_cache: StatusCache,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
    ) -> None:
        super().__init__("status", clock, wakeups.listen(()))
        self._store = store
        self._status_cache = status_cache
        self._owned = owned
        self._attached_at: Micros | None = None
        #: Since when the cache is unavailable.
        self._unavailable_since: Micros | None = None

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            self._attached_at = None
            return _GATHER_TIME
        now = self.clock.monotonic()
        if self._attached_at is None or now - self._attached_at > _ATTACH_INTERVAL:
            await self._store.attach_reader(READER, _READER_KEPT)
            self._attached_at = now
        batches = await self._store.events(READER, _MAX_BATCHES)
        if not batches:
            return _GATHER_TIME
        try:
            await self._write_states(batches)
        except BrokerUnavailable as error:
            if self._unavailable_since is None:
                self._unavailable_since = now
                self.log.warning("status cache unavailable", error=str(error))
            if now - self._unavailable_since < _MAX_OUTAGE:
                return SECOND
        else:
            self._unavailable_since = None
        await self._store.acknowledge(READER, batches[-1].position)
        return 0 if len(batches) == _MAX_BATCHES else _GATHER_TIME

    async def _write_states(self, batches: list[EventBatch]) -> None:
        changed: list[RunId] = list(dict.fromkeys(run for batch in batches for run in batch.runs))
        for start in range(0, len(changed), _MAX_RUNS):
            views = await self._store.runs(changed[start : start + _MAX_RUNS])
            await self._status_cache.show_runs([view for view in views if view is not None])
