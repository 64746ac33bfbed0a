"""Tenants, API keys and the audit."""

import asyncpg
import msgspec

from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant
from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.access import ALL_CHANGES, AuditEntry, AuditFilter, Author
from mainspring.stores.changes import Change, quotas_changed, words_of_key
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

_encode = msgspec.json.Encoder().encode
_decode_quotas = msgspec.json.Decoder(Quotas).decode
_LAST = 2**63 - 1


class AccessMixin(PostgresMixin):
    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        await self._names.assign_numbers([(NameKind.TENANT, tenant.name)])
        number = self._names.get_number(NameKind.TENANT, tenant.name)

        async def put(connection: Connection) -> Tenant:
            row = await connection.fetchrow(*self._db.sql["tenant"].bind(number=number))
            known = None if row is None else _decode_quotas(row["quotas"])
            if row is not None and known == tenant.quotas:
                return msgspec.structs.replace(tenant, created_at=row["created_at"])
            quotas = tenant.quotas
            created_at = await connection.fetchval(
                *self._db.sql["put_tenant"].bind(number=number, running=quotas.running, quotas=_encode(quotas))
            )
            differs = quotas_changed(known, quotas)
            await self._audit(connection, "tenants.put", author, [Change(tenant.name, tenant.name, *differs)])
            return msgspec.structs.replace(tenant, created_at=created_at)

        # Claims in progress with the old quota finish first.
        return await self._db.transaction_alone("lock_tenants", put)

    async def tenants(self) -> list[Tenant]:
        tenants = [
            Tenant(name=row["name"])
            if row["quotas"] is None
            else Tenant(name=row["name"], quotas=_decode_quotas(row["quotas"]), created_at=row["created_at"])
            for row in await self._db.fetch("tenants")
        ]
        return sorted(tenants, key=lambda tenant: tenant.name)

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        async def put(connection: Connection) -> ApiKey:
            made = await connection.fetch(
                *self._db.sql["put_key"].bind(
                    id=key.id,
                    tenant=key.tenant,
                    name=key.name,
                    role=key.role.value,
                    secret_hash=key.secret_hash,
                    queues=key.queues,
                    made_by=key.made_by,
                    expires_at=key.expires_at,
                    revoked_at=key.revoked_at,
                    last_used_at=key.last_used_at,
                ),
            )
            if made:
                change = Change(key.tenant or "", key.id, None, words_of_key(key))
                await self._audit(connection, "keys.put", author, [change])
            row = await connection.fetchrow(*self._db.sql["api_key"].bind(key=key.id))
            assert row is not None
            return _key(row)

        return await self._db.transaction(put)

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        return [_key(row) for row in await self._db.fetch("api_keys", tenant=self._scope(tenant))]

    async def key(self, identifier: str) -> ApiKey | None:
        rows = await self._db.fetch("api_key", key=identifier)
        return _key(rows[0]) if rows else None

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        async def revoke(connection: Connection) -> ApiKey | None:
            row = await connection.fetchrow(*self._db.sql["lock_key"].bind(key=identifier))
            if row is None or tenant not in (None, row["tenant"]):
                return None
            if row["revoked_at"] is None:
                await connection.execute(*self._db.sql["revoke_key"].bind(key=identifier))
                await self._audit(connection, "keys.revoke", author, [Change(row["tenant"] or "", identifier)])
                row = await connection.fetchrow(*self._db.sql["api_key"].bind(key=identifier))
                assert row is not None
            return _key(row)

        return await self._db.transaction(revoke)

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        await self._db.execute("sign_out", session=session, ends_at=ends_at)

    async def is_signed_out(self, session: str) -> bool:
        return bool(await self._db.fetch("signed_out", session=session))

    async def touch_keys(self, identifiers: list[str]) -> None:
        if identifiers:
            await self._db.execute("touch_api_keys", keys=sorted(identifiers))

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        last = _LAST if before is None else before
        since, until = wanted.since or 0, _LAST if wanted.until is None else wanted.until
        rows = await self._db.fetch(
            "audit",
            tenant=self._scope(tenant),
            target=wanted.target,
            author=wanted.author,
            before=last,
            limit=limit,
            action=wanted.action,
            since=since,
            until=until,
        )
        return [
            AuditEntry(
                position=row["position"],
                at=row["at"],
                tenant=row["tenant"],
                author=row["author"],
                action=row["action"],
                target=row["target"],
                count=row["count"],
                before=row["before"],
                after=row["after"],
                why=row["why"],
            )
            for row in rows
        ]


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        role=Role(row["role"]),
        secret_hash=row["secret_hash"],
        queues=tuple(row["queues"]),
        made_by=row["made_by"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
