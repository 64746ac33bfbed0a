"""Decodes the rows of tenants, API keys and the audit."""

import msgspec

from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant
from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.access import AuditEntry


class _TenantRow(msgspec.Struct, frozen=True):
    name: str
    quotas: str
    created_at: Instant


class _KeyRow(msgspec.Struct, frozen=True):
    id: str
    tenant: str | None
    name: str
    role: Role
    secret_hash: str
    queues: tuple[str, ...]
    made_by: str
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    last_used_at: Instant | None


class _AuditRow(msgspec.Struct, frozen=True):
    position: int
    at: Instant
    tenant: str
    author: str
    action: str
    target: str
    count: int
    before: str | None
    after: str | None
    why: str


_tenant_rows = msgspec.json.Decoder(list[_TenantRow])
_key_rows = msgspec.json.Decoder(list[_KeyRow])
_audit_rows = msgspec.json.Decoder(list[_AuditRow])


def decode_tenants(text: str) -> list[Tenant]:
    return [decode_tenant(row.name, row.quotas, row.created_at) for row in _tenant_rows.decode(text)]


def decode_tenant(name: str, quotas: str, created_at: Instant) -> Tenant:
    return Tenant(name=name, quotas=msgspec.json.decode(quotas, type=Quotas), created_at=created_at)


def decode_keys(text: str) -> list[ApiKey]:
    return [
        ApiKey(**{**msgspec.structs.asdict(row), "secret_hash": bytes.fromhex(row.secret_hash)})
        for row in _key_rows.decode(text)
    ]


def decode_audit(text: str) -> list[AuditEntry]:
    return [
        AuditEntry(
            **{
                **msgspec.structs.asdict(row),
                "before": None if row.before is None else row.before.encode(),
                "after": None if row.after is None else row.after.encode(),
            }
        )
        for row in _audit_rows.decode(text)
    ]
