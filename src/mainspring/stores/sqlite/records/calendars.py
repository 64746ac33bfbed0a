"""SQLite: calendars of tenants."""

from collections.abc import Collection
from typing import Any

import apsw
import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.stores.calendars import almanacs_of, calendar_differs, gone, next_version, refuse_unknown, refuse_used
from mainspring.stores.changes import Change
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.encoding import decode_spec, encode

_decode = msgspec.json.Decoder(CalendarSpec).decode
_VERSIONS = (
    "SELECT tenant, name, version, spec, deleted, made_by, why, made_at FROM calendar"
    " WHERE tenant = ? AND name = ? ORDER BY version DESC LIMIT ?"
)
_NEWEST = (
    "SELECT tenant, name, version, spec, deleted, made_by, why, made_at FROM calendar AS c"
    " WHERE version = (SELECT max(version) FROM calendar WHERE tenant = c.tenant AND name = c.name)"
    " AND (?1 IS NULL OR tenant IN (SELECT value FROM json_each(?1))) ORDER BY tenant, name"
)
_USERS = (
    "SELECT j.name, v.spec FROM job j JOIN job_version v ON v.job_id = j.id AND v.version = j.version"
    " WHERE j.tenant = ? AND j.state IN ('scheduled', 'paused') AND instr(v.spec, '\"calendars\"') ORDER BY j.name"
)
# Plans made with the old calendars are void. A schedule that looks ahead becomes due now.
_CHANGED = (
    "UPDATE schedule SET rev = rev + 1, calendar_rev = ?2, next_fire = iif(tick IS NULL, next_fire, ?3)"
    " WHERE active = 1 AND job_id IN (SELECT id FROM job WHERE tenant = ?1)"
)


class SqliteCalendars(SqliteBase):
    async def calendars(self, tenant: str | None) -> list[Calendar]:
        newest = await self._read(lambda connection: _read_newest(connection, None if tenant is None else [tenant]))
        return [calendar for calendar in newest if not calendar.deleted]

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        return await self._read(lambda connection: _read_calendars(connection, _VERSIONS, (tenant, name, limit)))

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        return await self._read(lambda connection: almanacs_of(_read_newest(connection, tenants)))

    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        def put(connection: apsw.Connection, now: Instant) -> Calendar:
            before = next(iter(_read_calendars(connection, _VERSIONS, (tenant, name, 1))), None)
            made = next_version(before, tenant, name, spec, author, now, expected_version)
            if made is None:
                assert before is not None
                return before
            _add_version(connection, before, made, author, "calendars.put")
            return made

        return await self._write(put)

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        def delete(connection: apsw.Connection, now: Instant) -> bool:
            before = next(iter(_read_calendars(connection, _VERSIONS, (tenant, name, 1))), None)
            if before is None or before.deleted:
                return False
            users = [(str(user), decode_spec(str(spec))) for user, spec in connection.execute(_USERS, (tenant,))]
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
    count = connection.execute("SELECT count(*) FROM calendar WHERE tenant = ?", (tenant,)).get
    assert isinstance(count, int)
    return count


def _read_newest(connection: apsw.Connection, tenants: Collection[str] | None) -> list[Calendar]:
    return _read_calendars(connection, _NEWEST, (None if tenants is None else encode(list(tenants)),))


def _read_calendars(connection: apsw.Connection, query: str, bindings: tuple[str | int | None, ...]) -> list[Calendar]:
    return [_build_calendar(*row) for row in connection.execute(query, bindings)]


def _build_calendar(
    tenant: Any, name: Any, version: Any, spec: Any, deleted: Any, made_by: Any, why: Any, made_at: Any
) -> Calendar:
    return Calendar(
        tenant=tenant,
        name=name,
        version=version,
        spec=_decode(spec),
        made_by=made_by,
        why=why,
        made_at=made_at,
        deleted=bool(deleted),
    )


def _add_version(
    connection: apsw.Connection, before: Calendar | None, made: Calendar, author: Author, action: str
) -> None:
    connection.execute(
        "INSERT INTO calendar (tenant, name, version, spec, deleted, made_by, why, made_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            made.tenant,
            made.name,
            made.version,
            encode(made.spec),
            int(made.deleted),
            made.made_by,
            made.why,
            made.made_at,
        ),
    )
    connection.execute(_CHANGED, (made.tenant, count_calendar_changes(connection, made.tenant), made.made_at))
    changes = [Change(made.tenant, made.name, *calendar_differs(before, made))]
    write_audit(connection, made.made_at, action, author, changes)
