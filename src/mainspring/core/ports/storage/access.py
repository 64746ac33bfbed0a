"""The port for tenants, API keys and the audit, which are used only by people and the API."""

from typing import Protocol

import msgspec

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.instant import Instant


class Author(msgspec.Struct, frozen=True):
    """The author of a change, as recorded in the audit."""

    name: str
    #: The tenant of the audit entry. None: the tenant of each changed object.
    tenant: str | None = None
    why: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change by a person or a key. Written in the transaction of the change, never altered."""

    #: Grows: later entries have greater positions.
    position: int
    at: Instant
    #: Empty: the changed object belongs to no tenant.
    tenant: str
    author: str
    #: jobs.submit, jobs.put, jobs.pause, jobs.resume, jobs.cancel, jobs.retag, jobs.purge, runs.cancel, runs.edit,
    #: runs.finish, runs.discard, runs.bring_back, queues.pause, queues.resume, workers.drain, tenants.put, keys.put,
    #: keys.revoke, calendars.put, calendars.delete, store.restore, store.promote
    action: str
    #: The id or name of the changed object; of a batch, the first. ``*`` is every queue.
    target: str
    #: How many objects were changed. Without a change, there is no entry.
    count: int = 1
    #: The differences of a single change: JSON with names in camelCase. A created object has no ``before``, and has an
    #: ``after`` only if it is a key or a tenant. Never contains secrets or their hashes.
    before: bytes | None = None
    after: bytes | None = None
    why: str = ""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters changes; empty fields match everything. Target and author are compared exactly."""

    target: str = ""
    author: str = ""
    #: ``jobs.pause``, or ``jobs`` for all actions of that group.
    action: str = ""
    since: Instant | None = None
    until: Instant | None = None


ALL_CHANGES = AuditFilter()


class AuditReads(Protocol):
    """Reads for administrators."""

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all keys; newest first, including revoked and expired ones."""
        ...

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return entries of one tenant or of all, newest first, with a position less than ``before``."""
        ...


class Access(AuditReads, Protocol):
    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        """Create a tenant, or change its quotas. ``default`` always exists. The store sets the creation time."""
        ...

    async def tenants(self) -> list[Tenant]:
        """Return all tenants by name.

        Tenants that are known only from runs or jobs have no quotas and no creation time.
        """
        ...

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        """Store a new key. The store sets the creation time. Idempotent: a known id is left unchanged."""
        ...

    async def key(self, identifier: str) -> ApiKey | None: ...

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        """Revoke a key for good. None: there is no such key, or it belongs to another tenant. Idempotent."""
        ...

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        """Record that a session of the dashboard has ended. The record is kept until ``ends_at``. Idempotent."""
        ...

    async def is_signed_out(self, session: str) -> bool:
        """Return whether the session was ended by ``sign_out``."""
        ...

    async def touch_keys(self, identifiers: list[str]) -> None:
        """Record that these keys were used now. Informational: losing an update is harmless."""
        ...
