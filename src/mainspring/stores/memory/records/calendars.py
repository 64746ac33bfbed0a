"""Memory store: calendars of tenants."""

from collections.abc import Collection

from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.stores.calendars import (
    calendar_differs,
    gone,
    group_calendars,
    next_version,
    refuse_unknown,
    refuse_used,
)
from mainspring.stores.changes import Change
from mainspring.stores.memory.tables import Tables


class MemoryCalendars:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def calendars(self, tenant: str | None) -> list[Calendar]:
        newest = (versions[-1] for _, versions in sorted(self._tables.calendars.items()))
        return [calendar for calendar in newest if tenant in (None, calendar.tenant) and not calendar.deleted]

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        return self._tables.calendars.get((tenant, name), [])[: -limit - 1 : -1]

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        versions = sorted(self._tables.calendars.items())
        return group_calendars(kept[-1] for (tenant, _), kept in versions if tenant in tenants)

    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        tables = self._tables
        with tables.transaction() as now:
            versions = tables.calendars.get((tenant, name), [])
            before = versions[-1] if versions else None
            version = next_version(before, tenant, name, spec, author, now, expected_version)
            if version is None:
                return versions[-1]
            self._add_version(before, version, author, "calendars.put")
            return version

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        tables = self._tables
        with tables.transaction() as now:
            before = tables.calendars.get((tenant, name), [None])[-1]
            if before is None or before.deleted:
                return False
            users = [job.spec for job in tables.jobs.values() if job.tenant == tenant and job.ticking]
            refuse_used(name, sorted(spec.name for spec in users if name in spec.calendars))
            self._add_version(before, gone(before, author, now), author, "calendars.delete")
            return True

    def _add_version(self, before: Calendar | None, version: Calendar, author: Author, action: str) -> None:
        tables = self._tables
        tables.calendars.setdefault((version.tenant, version.name), []).append(version)
        tables.audit(action, author, [Change(version.tenant, version.name, *calendar_differs(before, version))])
        rev = tables.compute_calendar_rev(version.tenant)
        for job in tables.jobs.values():
            if job.tenant == version.tenant and job.ticking:
                job.calendar_rev = rev
                if job.next_tick is not None:
                    tables.move_schedule(job, tables.now, job.next_tick)
                else:
                    job.rev += 1


def check_calendars_exist(tables: Tables, job: NewJob) -> None:
    """Refuse a job that names a calendar that does not exist."""
    if job.spec.calendars:
        known = {
            name
            for (tenant, name), versions in tables.calendars.items()
            if tenant == job.tenant and not versions[-1].deleted
        }
        refuse_unknown(job.spec, known)
