"""SQLite: tenants, API keys and the audit."""

from typing import cast

import apsw
import msgspec

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.access import ALL_CHANGES, AuditEntry, AuditFilter, Author
from mainspring.stores.changes import Change, quotas_changed, words_of_key
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.access import decode_audit, decode_keys, decode_tenant, decode_tenants
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.threads import read


class SqliteAccess(SqliteBase):
    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        def put(connection: apsw.Connection, now: Instant) -> Tenant:
            found = cast(
                "tuple[str, Instant] | None",
                connection.execute(
                    "SELECT quotas, created_at FROM tenant WHERE name = :name", {"name": tenant.name}
                ).get,
            )
            known = None if found is None else decode_tenant(tenant.name, *found)
            if known is not None and known.quotas == tenant.quotas:
                return known
            stored = msgspec.structs.replace(tenant, created_at=now if known is None else known.created_at)
            connection.execute(
                "INSERT OR REPLACE INTO tenant (name, quotas, running, created_at)"
                " VALUES (:name, :quotas, :running, :created_at)",
                {
                    "name": stored.name,
                    "quotas": encode(stored.quotas),
                    "running": stored.quotas.running,
                    "created_at": stored.created_at,
                },
            )
            differs = quotas_changed(None if known is None else known.quotas, stored.quotas)
            change = Change(tenant.name, tenant.name, *differs)
            write_audit(connection, now, "tenants.put", author, [change])
            return stored

        return await self._write(put)

    async def tenants(self) -> list[Tenant]:
        return decode_tenants(await self._reader.read("tenants"))

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        def put(connection: apsw.Connection, now: Instant) -> ApiKey:
            connection.execute(
                "INSERT INTO api_key (id, tenant, name, role, secret_hash, queues, made_by, created_at, expires_at,"
                " revoked_at, last_used_at)"
                " VALUES (:id, :tenant, :name, :role, :secret_hash, :queues, :made_by, :created_at, :expires_at,"
                " :revoked_at, :last_used_at) ON CONFLICT DO NOTHING",
                {
                    "id": key.id,
                    "tenant": key.tenant,
                    "name": key.name,
                    "role": key.role.value,
                    "secret_hash": key.secret_hash.hex(),
                    "queues": encode(key.queues),
                    "made_by": key.made_by,
                    "created_at": now,
                    "expires_at": key.expires_at,
                    "revoked_at": key.revoked_at,
                    "last_used_at": key.last_used_at,
                },
            )
            if connection.changes():
                change = Change(key.tenant or "", key.id, None, words_of_key(key))
                write_audit(connection, now, "keys.put", author, [change])
            [kept] = decode_keys(read(connection, "keys", tenant=None, id=key.id))
            return kept

        return await self._write(put)

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        return decode_keys(await self._reader.read("keys", tenant=tenant, id=None))

    async def key(self, identifier: str) -> ApiKey | None:
        return next(iter(decode_keys(await self._reader.read("keys", tenant=None, id=identifier))), None)

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        def revoke(connection: apsw.Connection, now: Instant) -> ApiKey | None:
            for key in decode_keys(read(connection, "keys", tenant=tenant, id=identifier)):
                if key.revoked_at is not None:
                    return key
                connection.execute(
                    "UPDATE api_key SET revoked_at = :revoked_at WHERE id = :id", {"revoked_at": now, "id": identifier}
                )
                write_audit(connection, now, "keys.revoke", author, [Change(key.tenant or "", key.id)])
                return msgspec.structs.replace(key, revoked_at=now)
            return None

        return await self._write(revoke)

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        def put(connection: apsw.Connection, now: Instant) -> None:
            connection.execute("DELETE FROM signed_out WHERE ends_at <= :now", {"now": now})
            connection.execute(
                "INSERT INTO signed_out (id, ends_at) VALUES (:id, :ends_at) ON CONFLICT DO NOTHING",
                {"id": session, "ends_at": ends_at},
            )

        await self._write(put)

    async def is_signed_out(self, session: str) -> bool:
        def read_row(connection: apsw.Connection) -> bool:
            return connection.execute("SELECT 1 FROM signed_out WHERE id = :id", {"id": session}).get is not None

        return await self._read(read_row)

    async def touch_keys(self, identifiers: list[str]) -> None:
        def touch(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "UPDATE api_key SET last_used_at = :last_used_at"
                " WHERE id IN (SELECT value FROM json_each(:identifiers))",
                {"last_used_at": now, "identifiers": encode(identifiers)},
            )

        if identifiers:
            await self._write(touch)

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        filters: dict[str, str | int | None] = {
            "tenant = :tenant": tenant,
            "target = :target": wanted.target or None,
            "author = :author": wanted.author or None,
            "iif(instr(:action, '.'), action, substr(action, 1, instr(action, '.') - 1)) = :action": wanted.action
            or None,
            "at >= :since": wanted.since,
            "at < :until": wanted.until,
            "position < :before": before,
        }
        given = {text: value for text, value in filters.items() if value is not None}
        statement = f"""
            SELECT json_group_array(json_object(
                'position', position, 'at', at, 'tenant', tenant, 'author', author, 'action', action,
                'target', target, 'count', count, 'before', before, 'after', after, 'why', why)
                ORDER BY position DESC)
            FROM (SELECT * FROM audit WHERE {" AND ".join(given) or "true"} ORDER BY position DESC LIMIT :limit)
        """  # noqa: S608
        values = {text.rpartition(":")[2]: value for text, value in given.items()}

        def read_row(connection: apsw.Connection) -> str:
            found = connection.execute(statement, {**values, "limit": limit}).get
            assert isinstance(found, str)
            return found

        return decode_audit(await self._read(read_row))
