"""The calendars of tenants."""

from collections.abc import Collection, Sequence

import asyncpg
import msgspec

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
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.rows import decode_spec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CalendarSpec).decode


class CalendarReadMixin(PostgresMixin):
    async def calendars(self, tenant: str | None) -> list[Calendar]:
        number = await self._scope_number(tenant)
        rows = await self._db.fetch("newest_calendars", tenants=None if number is None else [number])
        return [calendar for calendar in await self._calendars(rows) if not calendar.deleted]

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        number = await self._scope_number(tenant)
        return await self._calendars(await self._db.fetch("calendar_versions", tenant=number, name=name, limit=limit))

    async def _calendars(
        self, rows: Sequence[asyncpg.Record], connection: "Connection | None" = None
    ) -> list[Calendar]:
        await self._names.load_names({row["tenant"] for row in rows}, connection)
        found = [
            Calendar(
                tenant=self._names.get_name(row["tenant"]),
                name=row["name"],
                version=row["version"],
                spec=_decode(row["spec"]),
                made_by=row["made_by"],
                why=row["why"],
                made_at=row["made_at"],
                deleted=row["deleted"],
            )
            for row in rows
        ]
        return sorted(found, key=lambda calendar: (calendar.tenant, calendar.name, -calendar.version))


class CalendarMixin(CalendarReadMixin):
    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        numbers = [
            number
            for tenant in tenants
            if (number := await self._names.find_number(NameKind.TENANT, tenant)) is not None
        ]
        return group_calendars(await self._calendars(await self._db.fetch("newest_calendars", tenants=numbers)))

    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        await self._names.assign_numbers([(NameKind.TENANT, tenant)])

        async def put(connection: Connection) -> Calendar:
            before = await self._lock_calendar(connection, tenant, name)
            now = await connection.fetchval("SELECT " + f"{self._db.schema}.now_us()")
            made = next_version(before, tenant, name, spec, author, now, expected_version)
            if made is None:
                assert before is not None
                return before
            await self._add(connection, before, made, author, "calendars.put")
            return made

        return await self._db.transaction(put)

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        number = await self._names.find_number(NameKind.TENANT, tenant)
        if number is None:
            return False

        async def delete(connection: Connection) -> bool:
            before = await self._lock_calendar(connection, tenant, name)
            if before is None or before.deleted:
                return False
            rows = await connection.fetch(*self._db.sql["calendar_users"].bind(tenant=number))
            specs = [(row["name"], decode_spec(row["spec"])) for row in rows]
            refuse_used(name, [user for user, spec in specs if spec is not None and name in spec.calendars])
            now = await connection.fetchval("SELECT " + f"{self._db.schema}.now_us()")
            await self._add(connection, before, gone(before, author, now), author, "calendars.delete")
            return True

        return await self._db.transaction(delete)

    async def _lock_calendar(self, connection: Connection, tenant: str, name: str) -> Calendar | None:
        """Lock the calendars of a tenant; return the newest version of one of them.

        Until the commit, no other transaction changes them or declares jobs that use them.
        """
        number = self._names.get_number(NameKind.TENANT, tenant)
        await connection.execute(*self._db.sql["hold_calendars"].bind(tenant=number))
        rows = await connection.fetch(*self._db.sql["calendar_versions"].bind(tenant=number, name=name, limit=1))
        found = await self._calendars(rows, connection)
        return found[0] if found else None

    async def _add(
        self, connection: Connection, before: Calendar | None, made: Calendar, author: Author, action: str
    ) -> None:
        number = self._names.get_number(NameKind.TENANT, made.tenant)
        sql = self._db.sql
        await connection.execute(
            *sql["add_calendar"].bind(
                tenant=number,
                name=made.name,
                version=made.version,
                spec=_encode(made.spec),
                deleted=made.deleted,
                made_by=made.made_by,
                why=made.why,
                made_at=made.made_at,
            ),
        )
        rows = await connection.fetch(*sql["newest_calendars"].bind(tenants=[number]))
        await connection.execute(*sql["calendars_changed"].bind(tenant=number, rev=sum(row["version"] for row in rows)))
        await self._audit(connection, action, author, [Change(made.tenant, made.name, *calendar_differs(before, made))])

    async def _check_calendars(self, connection: Connection, jobs: Sequence[NewJob]) -> dict[str, int]:
        """Refuse jobs that name missing calendars; return how many changes the calendars of each tenant have had."""
        tenants = {job.tenant for job in jobs}
        numbers = sorted(self._names.get_number(NameKind.TENANT, tenant) for tenant in tenants)
        await connection.execute(*self._db.sql["share_calendars"].bind(tenants=numbers))
        rows = await connection.fetch(*self._db.sql["newest_calendars"].bind(tenants=numbers))
        found = {almanac.tenant: almanac for almanac in group_calendars(await self._calendars(rows, connection))}
        for job in jobs:
            if job.spec.calendars:
                almanac = found.get(job.tenant)
                known = set() if almanac is None else {calendar.name for calendar in almanac.calendars}
                refuse_unknown(job.spec, known)
        return {tenant: found[tenant].rev if tenant in found else 0 for tenant in tenants}
