"""Authorization: one table of roles and permissions. A permission that is not in the table is denied."""

import hashlib
import hmac
from collections.abc import Collection
from enum import StrEnum

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Instant, check_instant
from mainspring.core.model.runs.names import MAX_PAYLOAD, check_name, check_queue, check_tenant
from mainspring.core.model.runs.retention import check_class

DEFAULT_TENANT = "default"
#: An API key is ``ms_<id>_<secret>``. Only a hash of the secret is stored; it is random, so a fast hash is enough.
KEY_PREFIX = "ms"
KEY_ID_LENGTH = 12
SECRET_LENGTH = 43
MOST_QUOTA = 10**12


class Role(StrEnum):
    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


class Permission(StrEnum):
    """The permission that an API operation requires."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMINISTER = "administer"
    WORK = "work"
    #: Only for principals that are bound neither to a tenant nor to queues.
    ADMINISTER_ALL = "administer all"


GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.SUBMITTER: frozenset({Permission.READ, Permission.SUBMIT}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.SUBMIT, Permission.OPERATE}),
    Role.ADMIN: frozenset(
        {
            Permission.READ,
            Permission.SUBMIT,
            Permission.OPERATE,
            Permission.ADMINISTER,
            Permission.ADMINISTER_ALL,
            Permission.WORK,
        }
    ),
    Role.WORKER: frozenset({Permission.WORK}),
}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller."""

    #: The name in the audit log: ``key:1a2b3c4d5e6f`` or the subject of a token.
    name: str
    role: Role
    #: None: bound to no tenant.
    tenant: str | None
    #: The caller changes and claims only objects in these queues; empty: in all.
    queues: frozenset[str] = frozenset()

    def may(self, permission: Permission) -> bool:
        if permission is Permission.ADMINISTER_ALL and (self.tenant is not None or self.queues):
            return False
        return permission in GRANTS[self.role]

    def choose_tenant(self, asked: str | None) -> str | None:
        """Return the tenant that a request is for; None: it names none, and the caller can access all of them.

        Raise ``Invalid`` if the caller is bound to another tenant.
        """
        if self.tenant is not None and asked not in (None, self.tenant):
            raise Invalid("tenant", f"{asked!r} is not yours", "leave it out")
        return asked if self.tenant is None else self.tenant

    def reaches(self, queues: Collection[str]) -> bool:
        """Return whether the caller may change objects in all of these queues; an empty collection means all queues."""
        return not self.queues or (bool(queues) and self.queues.issuperset(queues))


class Quotas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The quotas of a tenant. None: no limit."""

    #: Recurring jobs that are not cancelled or finished.
    jobs: int | None = None
    #: Queued runs.
    queued: int | None = None
    #: Concurrent runs. Enforced exactly, by the claim.
    running: int | None = None
    submits_per_minute: int | None = None
    payload_bytes: int | None = None
    #: The retention class of runs without one; empty: the standard class.
    retention: str = ""
    #: The log output of all its runs per day.
    log_bytes_per_day: int | None = None
    #: How long logs are kept outside the store.
    log_days: int | None = None

    def check(self) -> None:
        check_class("retention", self.retention)
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, int) and not 0 <= value <= MOST_QUOTA:
                raise Invalid(f"quotas.{field}", f"{value} is out of range", "0 or more")
        if self.payload_bytes is not None and self.payload_bytes > MAX_PAYLOAD:
            raise Invalid("quotas.payload_bytes", f"is {self.payload_bytes}", f"at most {MAX_PAYLOAD}")


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    quotas: Quotas = Quotas()
    created_at: Instant = 0

    def check(self) -> None:
        check_tenant("name", self.name)
        self.quotas.check()


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as the store holds it. The secret is shown once, at creation."""

    id: str
    #: None: bound to no tenant.
    tenant: str | None
    name: str
    role: Role
    secret_hash: bytes
    queues: tuple[str, ...] = ()
    made_by: str = ""
    created_at: Instant = 0
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    #: Accurate to about a minute.
    last_used_at: Instant | None = None

    def check(self) -> None:
        check_name("name", self.name)
        if self.tenant is not None:
            check_tenant("tenant", self.tenant)
        for queue in self.queues:
            check_queue("queues", queue)
        if self.expires_at is not None:
            check_instant(self.expires_at, "expiresIn")

    def is_valid(self, secret: str, now: Instant) -> bool:
        """Return whether the secret is right and the key in force. The comparison takes constant time."""
        right = hmac.compare_digest(self.secret_hash, hash_secret(secret))
        expired = self.expires_at is not None and now >= self.expires_at
        return right and not expired and self.revoked_at is None

    @property
    def principal(self) -> Principal:
        return Principal(name=f"key:{self.id}", role=self.role, tenant=self.tenant, queues=frozenset(self.queues))


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def write_key(identifier: str, secret: str) -> str:
    return f"{KEY_PREFIX}_{identifier}_{secret}"


def read_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key; None if the text is not a key."""
    prefix, _, rest = text.partition("_")
    identifier, _, secret = rest.partition("_")
    if prefix != KEY_PREFIX or len(identifier) != KEY_ID_LENGTH or len(secret) != SECRET_LENGTH or not text.isascii():
        return None
    return identifier, secret
