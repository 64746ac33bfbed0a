"""Memory store: tenants, API keys and the audit."""

from itertools import islice

import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT, ApiKey, Tenant
from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.access import ALL_CHANGES, AuditEntry, AuditFilter, Author
from mainspring.stores.changes import Change, quotas_changed, words_of_key
from mainspring.stores.memory.tables import Tables


class MemoryAccess:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        tables = self._tables
        with tables.transaction() as now:
            known = tables.tenants.get(tenant.name)
            if known is not None and known.quotas == tenant.quotas:
                return known
            stored = msgspec.structs.replace(tenant, created_at=now if known is None else known.created_at)
            tables.tenants[tenant.name] = stored
            differs = quotas_changed(None if known is None else known.quotas, stored.quotas)
            tables.audit("tenants.put", author, [Change(tenant.name, tenant.name, *differs)])
            return stored

    async def tenants(self) -> list[Tenant]:
        tables = self._tables
        named = {DEFAULT_TENANT, *tables.tenants}
        named.update(row.tenant for row in tables.runs.values())
        named.update(row.tenant for row in tables.jobs.values())
        return [tables.tenants.get(name, Tenant(name=name)) for name in sorted(named)]

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        tables = self._tables
        with tables.transaction() as now:
            if key.id not in tables.api_keys:
                tables.api_keys[key.id] = msgspec.structs.replace(key, created_at=now)
                tables.audit("keys.put", author, [Change(key.tenant or "", key.id, None, words_of_key(key))])
            return tables.api_keys[key.id]

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        keys = [key for key in self._tables.api_keys.values() if tenant in (None, key.tenant)]
        return sorted(keys, key=lambda key: (key.created_at, key.id), reverse=True)

    async def key(self, identifier: str) -> ApiKey | None:
        return self._tables.api_keys.get(identifier)

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        tables = self._tables
        with tables.transaction() as now:
            key = tables.api_keys.get(identifier)
            if key is None or tenant not in (None, key.tenant):
                return None
            if key.revoked_at is None:
                key = tables.api_keys[identifier] = msgspec.structs.replace(key, revoked_at=now)
                tables.audit("keys.revoke", author, [Change(key.tenant or "", key.id)])
            return key

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        with self._tables.transaction() as now:
            ended = self._tables.signed_out
            for known in [known for known, until in ended.items() if until <= now]:
                del ended[known]
            ended[session] = ends_at

    async def is_signed_out(self, session: str) -> bool:
        return session in self._tables.signed_out

    async def touch_keys(self, identifiers: list[str]) -> None:
        keys = self._tables.api_keys
        with self._tables.transaction() as now:
            for identifier in identifiers:
                if identifier in keys:
                    keys[identifier] = msgspec.structs.replace(keys[identifier], last_used_at=now)

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        found = (
            entry
            for entry in reversed(self._tables.audit_entries)
            if tenant in (None, entry.tenant)
            and wanted.target in ("", entry.target)
            and wanted.author in ("", entry.author)
            and wanted.action in ("", entry.action, entry.action.partition(".")[0])
            and (wanted.since is None or entry.at >= wanted.since)
            and (wanted.until is None or entry.at < wanted.until)
            and (before is None or entry.position < before)
        )
        return list(islice(found, limit))
