"""SQLite: calendars of tenants."""

from collections.abc import Collection

import apsw
import msgspec

from mainspring.core.model.base.instant import Instant
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
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import Parameters, fetch_rows
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.encoding import decode_spec, encode

_decode = msgspec.json.Decoder(CalendarSpec).decode
_VERSIONS = (
    "SELECT tenant, name, version, spec, deleted, made_by, why, made_at FROM calendar"
    " WHERE tenant = :tenant AND name = :name ORDER BY version DESC LIMIT :limit"
)
_NEWEST = (
    "SELECT tenant, name, version, spec, deleted, made_by, why, made_at FROM calendar AS c"
    " WHERE version = (SELECT max(version) FROM calendar WHERE tenant = c.tenant AND name = c.name)"
    " AND (:tenants IS NULL OR tenant IN (SELECT value FROM json_each(:tenants))) ORDER BY tenant, name"
)
_USERS = (
    "SELECT j.name, v.spec FROM job j JOIN job_version v ON v.job_id = j.id AND v.version = j.version"
    " WHERE j.tenant = :tenant AND j.state IN ('scheduled', 'paused') AND instr(v.spec, '\"calendars\"')"
    " ORDER BY j.name"
)
# Plans made with the old calendars are void. A schedule that looks ahead becomes due now.
_CHANGED = (
    "UPDATE schedule SET rev = rev + 1, calendar_rev = :calendar_rev, next_fire = iif(tick IS NULL, next_fire, :now)"
    " WHERE active = 1 AND job_id IN (SELECT id FROM job WHERE tenant = :tenant)"
)


class SqliteCalendars(SqliteBase):
    async def calendars(self, tenant: str | None) -> list[Calendar]:
        newest = await self._read(lambda connection: _read_newest(connection, None if tenant is None else [tenant]))
        return [calendar for calendar in newest if not calendar.deleted]

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        return await self._read(lambda connection: _read_versions(connection, tenant, name, limit))

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        return await self._read(lambda connection: group_calendars(_read_newest(connection, tenants)))

    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        def put(connection: apsw.Connection, now: Instant) -> Calendar:
            before = next(iter(_read_versions(connection, tenant, name, 1)), None)
            version = next_version(before, tenant, name, spec, author, now, expected_version)
            if version is None:
                assert before is not None
                return before
            _add_version(connection, before, version, author, "calendars.put")
            return version

        return await self._write(put)

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        def delete(connection: apsw.Connection, now: Instant) -> bool:
            before = next(iter(_read_versions(connection, tenant, name, 1)), None)
            if before is None or before.deleted:
                return False
            users = [
                (str(user), decode_spec(str(spec))) for user, spec in connection.execute(_USERS, {"tenant": tenant})
            ]
            refuse_used(name, [user for user, spec in users if name in spec.calendars])
            _add_version(connection, before, gone(before, author, now), author, "calendars.delete")
            return True

        return await self._write(delete)


def check_calendars_exist(connection: apsw.Connection, job: NewJob) -> None:
    """Refuse a job that names a calendar that does not exist."""
    if job.spec.calendars:
        newest = _read_newest(connection, [job.tenant])
        refuse_unknown(job.spec, {calendar.name for calendar in newest if not calendar.deleted})


def count_calendar_changes(connection: apsw.Connection, tenant: str) -> int:
    """Return how many times the calendars of a tenant have changed: each version is one change."""
    count = connection.execute("SELECT count(*) FROM calendar WHERE tenant = :tenant", {"tenant": tenant}).get
    assert isinstance(count, int)
    return count


def _read_versions(connection: apsw.Connection, tenant: str, name: str, limit: int) -> list[Calendar]:
    """Return the versions of a calendar, newest first."""
    return _read_calendars(connection, _VERSIONS, {"tenant": tenant, "name": name, "limit": limit})


def _read_newest(connection: apsw.Connection, tenants: Collection[str] | None) -> list[Calendar]:
    return _read_calendars(connection, _NEWEST, {"tenants": None if tenants is None else encode(list(tenants))})


class _CalendarRow(msgspec.Struct, frozen=True):
    tenant: str
    name: str
    version: int
    spec: str
    deleted: bool
    made_by: str
    why: str
    made_at: Instant


def _read_calendars(connection: apsw.Connection, query: str, values: Parameters) -> list[Calendar]:
    return [
        Calendar(
            tenant=row.tenant,
            name=row.name,
            version=row.version,
            spec=_decode(row.spec),
            made_by=row.made_by,
            why=row.why,
            made_at=row.made_at,
            deleted=row.deleted,
        )
        for row in fetch_rows(connection, _CalendarRow, query, values)
    ]


def _add_version(
    connection: apsw.Connection, before: Calendar | None, version: Calendar, author: Author, action: str
) -> None:
    connection.execute(
        "INSERT INTO calendar (tenant, name, version, spec, deleted, made_by, why, made_at)"
        " VALUES (:tenant, :name, :version, :spec, :deleted, :made_by, :why, :made_at)",
        {
            "tenant": version.tenant,
            "name": version.name,
            "version": version.version,
            "spec": encode(version.spec),
            "deleted": int(version.deleted),
            "made_by": version.made_by,
            "why": version.why,
            "made_at": version.made_at,
        },
    )
    values = {
        "tenant": version.tenant,
        "calendar_rev": count_calendar_changes(connection, version.tenant),
        "now": version.made_at,
    }
    connection.execute(_CHANGED, values)
    changes = [Change(version.tenant, version.name, *calendar_differs(before, version))]
    write_audit(connection, version.made_at, action, author, changes)
