"""The port for the calendars of tenants. Changes are rare and reach every schedule in the same transaction."""

from collections.abc import Collection
from typing import Protocol

import msgspec

from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.ports.storage.access import Author


class TenantCalendars(msgspec.Struct, frozen=True):
    """All the calendars of a tenant at one moment."""

    tenant: str
    #: The number of changes so far, as counted by ``Job.calendar_rev``.
    rev: int
    #: By name.
    calendars: list[Calendar]


class CalendarReads(Protocol):
    async def calendars(self, tenant: str | None) -> list[Calendar]:
        """Return the current calendars by tenant and name, of one tenant or of all."""
        ...

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        """Return the versions, newest first; also of a deleted calendar."""
        ...


class SchedulerCalendars(Protocol):
    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        """Return the calendars that a scheduler must apply, of those tenants that ever had one.

        They are at least as new as any job that was read before.
        """
        ...


class Calendars(CalendarReads, SchedulerCalendars, Protocol):
    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        """Create or change a calendar: a new version by this author, with a reason. An identical spec changes nothing.

        1. ``Conflict`` is raised if the current version is not ``expected_version``; 0 means that there is none.
        2. A change increments ``rev`` and ``calendar_rev`` of every active schedule of the tenant: ticks planned with
           the old calendars can no longer be fired.
        3. A job that looks ahead is due at once, so that a scheduler recomputes when to look at its next tick.
        """
        ...

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        """Delete a calendar, and return whether it existed. Its last version records the deletion.

        ``Conflict`` while a scheduled or paused job names it: a job cannot name a missing calendar, even if the two
        requests are concurrent.
        """
        ...
