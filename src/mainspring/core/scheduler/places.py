"""Decides in which data centers a job's ticks run: one run per data center, or a ledger note about a substitute."""

from collections.abc import Sequence

from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.datacenters import ALL, preference_of, serving, targets_of
from mainspring.core.model.schedules.job import Fire
from mainspring.core.model.schedules.spread import noted, spread
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.datacenters import Place
from mainspring.core.ports.storage.datacenters import Places as PlaceReads

#: How long the known data centers are cached.
_ASK_AGAIN: Micros = SECOND


class Places:
    """Applies the data center rules of jobs. Queries the store only for jobs that need it."""

    def __init__(self, store: PlaceReads, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: list[Place] = []
        self._asked_at: Micros | None = None

    async def apply(self, fires: Sequence[Fire], now: Instant) -> Sequence[Fire]:
        """Return the fires as they are to be recorded. ``now`` is the store's time."""
        if not any(fire.job.spec.datacenters or fire.job.spec.policy.requires for fire in fires):
            return fires
        return [await self._place(fire, now) for fire in fires]

    async def _place(self, fire: Fire, now: Instant) -> Fire:
        spec = fire.job.spec
        if spec.datacenters:
            known = await self._places() if spec.datacenters == (ALL,) else []
            return spread(fire, targets_of(spec.datacenters, [place.name for place in known if place.seen_at]))
        preference = preference_of(spec.policy.requires)
        if preference is None:
            return fire
        seen = {place.name: place.seen_at for place in await self._places() if place.seen_at is not None}
        # For a data center that was never seen, it is unknown here since when it is required: then nothing is noted
        # yet.
        why = serving(preference, seen, now, now).why
        return noted(fire, why) if why else fire

    async def _places(self) -> list[Place]:
        now = self._clock.monotonic()
        if self._asked_at is None or now - self._asked_at >= _ASK_AGAIN:
            self._known = await self._store.places()
            self._asked_at = now
        return self._known
