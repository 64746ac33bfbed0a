"""Tenants, keys and the audit: parts of the store that only people and the API use."""

from typing import Protocol

import msgspec

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.instant import Instant


class Author(msgspec.Struct, frozen=True):
    """Who asks for a change, as the audit has it."""

    name: str
    #: Whose audit it stands in; the tenant of what is changed if that is None, each in its own.
    tenant: str | None = None
    why: str = ""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change by a person or a key. Written in the transaction of the change, never altered."""

    #: Grows; later entries have greater ones.
    position: int
    at: Instant
    #: Empty: what was changed is of no tenant.
    tenant: str
    author: str
    #: jobs.submit, jobs.put, jobs.pause, jobs.resume, jobs.cancel, jobs.retag, jobs.purge, runs.cancel, runs.edit,
    #: runs.finish, runs.discard, runs.bring_back, queues.pause, queues.resume, workers.drain, tenants.put, keys.put,
    #: keys.revoke, calendars.put, calendars.delete, store.restore, store.promote
    action: str
    #: The id or name of what was changed; of a batch the first. ``*`` is every queue.
    target: str
    #: How many were changed. Where nothing was, there is no entry.
    count: int = 1
    #: JSON with names in camelCase, of a single change: what differs. What was made has no before, and an after only if
    #: it is a key or a tenant. No secrets, and no hashes of any.
    before: bytes | None = None
    after: bytes | None = None
    why: str = ""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes; what is empty is not asked for. Target and author are compared whole."""

    target: str = ""
    author: str = ""
    #: ``jobs.pause``, or ``jobs`` for all that begin with it.
    action: str = ""
    since: Instant | None = None
    until: Instant | None = None


ALL_CHANGES = AuditFilter()


class Records(Protocol):
    """What an administrator looks at."""

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        """The keys of a tenant, or all of them; newest first, revoked and expired ones too."""
        ...

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Newest first, of one tenant or of all, those with a position less than ``before``."""
        ...


class Access(Records, Protocol):
    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        """Make a tenant, or change its quotas. ``default`` is always there. Its time of making is the store's."""
        ...

    async def tenants(self) -> list[Tenant]:
        """All of them, by name. Also those that only ever were the tenant of a run or a job: those have no quotas and
        no time of making."""
        ...

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        """Keep a new key. Its time of making is the store's. Idempotent: a known id stays as it is."""
        ...

    async def key(self, identifier: str) -> ApiKey | None: ...

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        """End a key for good; none if there is no such key, or it is another tenant's. Idempotent."""
        ...

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        """Record that a session of the dashboard has ended. The record is kept until ``ends_at``. Idempotent."""
        ...

    async def is_signed_out(self, session: str) -> bool:
        """Whether the session was ended by ``sign_out``."""
        ...

    async def touch_keys(self, identifiers: list[str]) -> None:
        """These were used just now. A hint for people: losing it is harmless."""
        ...
