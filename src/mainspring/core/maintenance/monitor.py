"""What ``/metrics`` of a process says: what it counts itself, and what it reads of the fleet and the store."""

import asyncio
from collections.abc import Callable

from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.vitals import StoreVitals
from mainspring.core.runtime.metrics.book import Book, Press


class Monitor:
    """One registry a process."""

    def __init__(self, fleet: Fleet | None = None, vitals: StoreVitals | None = None) -> None:
        self._fleet = fleet
        self._vitals = vitals
        self._everything = Press()
        #: For who is bound to a tenant: nothing that names tasks or queues of others.
        self._harmless = Press()

    def add(self, tell: Callable[[Book], None], *, harmless: bool = False) -> None:
        """One more who has figures of this process. ``harmless``: whoever may ask at all may know them."""
        self._everything.add(tell)
        if harmless:
            self._harmless.add(tell)

    async def close(self) -> None:
        """Nothing is read any more."""
        if self._fleet is not None:
            await self._fleet.close()

    async def render(self, tenant: str | None = None) -> bytes:
        """For somebody who is bound to this tenant, or to none."""
        book = Book()
        # At once: a store that does not answer keeps nobody waiting twice.
        asked = [] if self._fleet is None else [self._fleet.tell(book, tenant)]
        if self._vitals is not None and tenant is None:
            asked.append(self._vitals.tell(book))
        await asyncio.gather(*asked)
        return (self._everything if tenant is None else self._harmless).print(book)
