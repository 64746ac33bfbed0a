"""Decides in which data centers a job's ticks run: one run per data center, or a ledger note about a substitute."""

from collections.abc import Sequence

from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.datacenters import ALL, find_preference, list_targets, serving
from mainspring.core.model.schedules.job import Fire
from mainspring.core.model.schedules.spread import noted, spread
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.datacenters import DatacenterReads, DatacenterStatus

#: How long the known data centers are cached.
_CACHED_FOR: Micros = SECOND


class DatacenterChoice:
    """Applies the data center rules of jobs. Queries the store only for jobs that need it."""

    def __init__(self, store: DatacenterReads, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: list[DatacenterStatus] = []
        self._read_at: Micros | None = None

    async def apply(self, fires: Sequence[Fire], now: Instant) -> Sequence[Fire]:
        """Return the fires as they are to be recorded. ``now`` is the store's time."""
        if not any(fire.job.spec.datacenters or fire.job.spec.policy.requires for fire in fires):
            return fires
        return [await self._choose(fire, now) for fire in fires]

    async def _choose(self, fire: Fire, now: Instant) -> Fire:
        spec = fire.job.spec
        if spec.datacenters:
            known = await self._read_datacenters() if spec.datacenters == (ALL,) else []
            return spread(fire, list_targets(spec.datacenters, [one.name for one in known if one.seen_at]))
        preference = find_preference(spec.policy.requires)
        if preference is None:
            return fire
        seen = {one.name: one.seen_at for one in await self._read_datacenters() if one.seen_at is not None}
        # For a data center that was never seen, it is unknown here since when it is required: then nothing is noted
        # yet.
        why = serving(preference, seen, now, now).why
        return noted(fire, why) if why else fire

    async def _read_datacenters(self) -> list[DatacenterStatus]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= _CACHED_FOR:
            self._known = await self._store.datacenters()
            self._read_at = now
        return self._known
