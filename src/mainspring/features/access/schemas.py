"""Tenants, API keys and the audit log in the wire format."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mainspring.http.schemas.common import Limit, Name, Request, RetentionName, Span, Time, Wire

RoleName = Literal["viewer", "submitter", "operator", "admin", "worker"]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]


class QuotasIn(Request, omit_defaults=True):
    """Limits of a tenant; null or a missing field means no limit."""

    jobs: Count | None = None
    queued: Count | None = None
    running: Count | None = None
    submits_per_minute: Count | None = None
    payload_bytes: Annotated[int, Meta(ge=0, le=262_144)] | None = None
    log_bytes_per_day: Count | None = None
    log_days: Annotated[int, Meta(ge=1, le=36_500)] | None = None


class TenantIn(Request):
    name: Name
    quotas: QuotasIn = msgspec.field(default_factory=QuotasIn)
    retention: RetentionName | msgspec.UnsetType = msgspec.UNSET
    """Retention of runs that choose no class; left out: unchanged."""


class TenantOut(Wire):
    name: str
    quotas: QuotasIn
    retention: str = "standard"
    created_at: str | None = None


class Tenants(Wire):
    items: list[TenantOut]


class KeyIn(Request):
    name: Name
    role: RoleName
    tenant: Name | None = None
    """The tenant of the key. An administrator of all tenants may leave it out, for a key that is bound to none."""
    queues: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    """The key changes and claims only runs of these queues; default: the queues that the caller can access."""
    expires_in: Span | None = None


class KeyOut(Wire):
    key_id: str
    name: str
    role: str
    created_at: str
    tenant: str | None = None
    queues: tuple[str, ...] = ()
    made_by: str = ""
    expires_at: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None


class CreatedKey(KeyOut, kw_only=True):
    key: str
    """The secret, shown only now and not stored."""


class Keys(Wire):
    items: list[KeyOut]


class AuditQuery(Request):
    tenant: Name | None = None
    target: Name | None = None
    author: Name | None = None
    action: Name | None = None
    """`jobs.pause`, or `jobs` for all actions that begin with it."""
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,18}$")] | None = None


class AuditOut(Wire):
    position: int
    time: str
    tenant: str
    author: str
    action: str
    target: str
    count: int
    before: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    after: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    why: str = ""
