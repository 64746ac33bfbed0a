"""Renders ``/metrics`` of a process: its own metrics, and those of the fleet and the store."""

import asyncio
from collections.abc import Callable

from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.store_metrics import StoreVitals
from mainspring.core.runtime.metrics.exposition import Exporter, Exposition


class Monitor:
    """The metrics registry of a process."""

    def __init__(self, fleet: Fleet | None = None, vitals: StoreVitals | None = None) -> None:
        self._fleet = fleet
        self._vitals = vitals
        self._everything = Exporter()
        #: For callers bound to a tenant: nothing that names tasks or queues of others.
        self._harmless = Exporter()

    def add(self, export: Callable[[Exposition], None], *, harmless: bool = False) -> None:
        """Add a source of metrics of this process. ``harmless``: every authorized caller may see them."""
        self._everything.add(export)
        if harmless:
            self._harmless.add(export)

    async def close(self) -> None:
        """Stop all reads."""
        if self._fleet is not None:
            await self._fleet.close()

    async def render(self, tenant: str | None = None) -> bytes:
        """Render the metrics for a caller that is bound to this tenant, or to none."""
        exposition = Exposition()
        # Concurrently: a store that does not answer delays the caller only once.
        asked = [] if self._fleet is None else [self._fleet.export(exposition, tenant)]
        if self._vitals is not None and tenant is None:
            asked.append(self._vitals.export(exposition))
        await asyncio.gather(*asked)
        return (self._everything if tenant is None else self._harmless).print(exposition)
