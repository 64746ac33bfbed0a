"""What the parts of the store share: the database, the names, and the audit."""

from collections.abc import Iterable, Sequence

import msgspec

from mainspring.adapters.store.postgres.database import Connection, Statements
from mainspring.adapters.store.postgres.names import Kind, Names
from mainspring.adapters.store.postgres.rows import Policies
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import shard_of
from mainspring.ports.access import Author


class Change(msgspec.Struct, frozen=True):
    """One thing that somebody changed, for the audit."""

    #: Empty: of no tenant.
    tenant: str
    target: str
    before: bytes | None = None
    after: bytes | None = None


class Part:
    shards: int
    _db: Statements
    _names: Names
    _policies: Policies
    _wakeups: PostgresWakeups | None
    #: Whose things are there; None: everybody's.
    _bound_to: str | None = None

    def _shards_of(self, identifiers: Sequence[str]) -> list[int]:
        """The shards that ids carry. Nobody would ever look at one that the store does not have."""
        shards = [shard_of(identifier) for identifier in identifiers]
        if shards and max(shards) >= self.shards:
            shard, identifier = max(zip(shards, identifiers, strict=True))
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shards

    def _scope(self, asked: str | None) -> str | None:
        """The tenant whose things are meant. Of another's there is nothing: no name begins with a space."""
        if self._bound_to is None:
            return asked
        return self._bound_to if asked in (None, self._bound_to) else " "

    async def _scope_number(self, asked: str | None = None) -> int | None:
        """The same by number; 0 is nobody's."""
        tenant = self._scope(asked)
        return None if tenant is None else await self._names.find(Kind.TENANT, tenant) or 0

    async def _audit(
        self, connection: Connection, action: str, author: Author | None, changes: Iterable[Change]
    ) -> None:
        """One row a tenant, inside the transaction of the change; none for nobody, or for nothing."""
        if author is None:
            return
        by_tenant: dict[str, list[Change]] = {}
        for change in changes:
            by_tenant.setdefault(change.tenant if author.tenant is None else author.tenant, []).append(change)
        for tenant, changed in by_tenant.items():
            first, alone = changed[0], len(changed) == 1
            await connection.execute(
                self._db.sql["add_audit"],
                tenant,
                author.name,
                action,
                first.target,
                len(changed),
                first.before if alone else None,
                first.after if alone else None,
                author.why,
            )
