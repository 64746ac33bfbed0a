"""Fills pages of filtered lists: searches back until a page is full or the time is used up."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import JobFilter, Lists, Page, RunFilter

T = TypeVar("T")
#: How long one request searches. The last read of the store may end a little later.
SEARCH_TIME: Micros = 150 * MILLISECOND


class Search:
    """The search of one request. Lists that are searched one after the other share its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop_at = clock.monotonic() + SEARCH_TIME

    async def runs(self, reads: Lists, wanted: RunFilter, after: str | None, limit: int) -> Page[RunView]:
        async def read(after: str | None, limit: int) -> Page[RunView]:
            return await reads.list_runs(wanted, None if after is None else RunId(after), limit)

        return await self.fill(read, after, limit)

    async def jobs(self, reads: Lists, wanted: JobFilter, after: str | None, limit: int) -> Page[Job]:
        async def read(after: str | None, limit: int) -> Page[Job]:
            return await reads.list_jobs(wanted, None if after is None else JobId(after), limit)

        return await self.fill(read, after, limit)

    async def fill(
        self, read: Callable[[str | None, int], Awaitable[Page[T]]], after: str | None, limit: int
    ) -> Page[T]:
        """Read a list from a cursor on until there are enough items, no more rows, or no time left.

        One read of a store examines a limited number of rows, so that no statement takes long. If a page has a
        cursor but fewer items than the limit, the search stopped at that cursor.
        """
        items: list[T] = []
        while True:
            page = await read(after, limit - len(items))
            items += page.items
            after = page.after
            if after is None or len(items) >= limit or self._clock.monotonic() >= self._stop_at:
                return Page(items, after)
