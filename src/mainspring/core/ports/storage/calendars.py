"""The calendars of tenants. Seldom changed, often minded: a change reaches every schedule in the same transaction."""

from collections.abc import Collection
from typing import Protocol

import msgspec

from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.ports.storage.access import Author


class Almanac(msgspec.Struct, frozen=True):
    """All the calendars of a tenant, as of one moment."""

    tenant: str
    #: How many changes there were, as ``Job.calendar_rev`` counts them.
    rev: int
    #: By name.
    calendars: list[Calendar]


class CalendarReads(Protocol):
    async def calendars(self, tenant: str | None) -> list[Calendar]:
        """Those there are now, by tenant and name; of one tenant or of all."""
        ...

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        """Newest first; also of one that was deleted."""
        ...


class Almanacs(Protocol):
    async def almanacs(self, tenants: Collection[str]) -> list[Almanac]:
        """What a scheduler minds, of those tenants that ever had a calendar. At least as new as any job read before."""
        ...


class Calendars(CalendarReads, Almanacs, Protocol):
    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        """Make a calendar, or change it: a new version by this author, who says why. The same again changes nothing.

        ``Conflict`` if another version was expected; 0 is none. A change grows the ``rev`` of every active schedule of
        the tenant, and its ``calendar_rev``: what was planned by the old calendars cannot be fired any more. A job that
        looks ahead is due at once, so that somebody works out anew when to look at its next tick.
        """
        ...

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        """Its last version says that it is gone; whether it was there. ``Conflict`` while a scheduled or paused job
        names it: a job cannot name what is not there, however the two requests meet."""
        ...
