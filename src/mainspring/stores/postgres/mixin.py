"""Base of the parts of the PostgreSQL store: the database, the names and the audit."""

from collections.abc import Iterable, Sequence

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import decode_shard
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, sum_up
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection, StatementRunner
from mainspring.stores.postgres.names import NameCache
from mainspring.stores.postgres.rows import PolicyCodec
from mainspring.stores.postgres.wakeups import PostgresWakeups


class PostgresMixin:
    shards: int
    _db: StatementRunner
    _names: NameCache
    _policies: PolicyCodec
    _wakeups: PostgresWakeups | None
    #: The only tenant this instance may access; None: all tenants.
    _bound_to: str | None = None

    def _decode_shards(self, identifiers: Sequence[str]) -> list[int]:
        """Return the shards of ids; raise ``Invalid`` for a shard that the store does not have.

        No process would ever scan such a shard.
        """
        shards = [decode_shard(identifier) for identifier in identifiers]
        if shards and max(shards) >= self.shards:
            shard, identifier = max(zip(shards, identifiers, strict=True))
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shards

    def _scope(self, asked: str | None) -> str | None:
        """Return the tenant to filter by; None: all tenants.

        For a tenant out of scope it is a space, which matches no name.
        """
        if self._bound_to is None:
            return asked
        return self._bound_to if asked in (None, self._bound_to) else " "

    async def _scope_number(self, asked: str | None = None) -> int | None:
        """Return the number of the tenant to filter by; None: all tenants. 0 matches no tenant."""
        tenant = self._scope(asked)
        return None if tenant is None else await self._names.find_number(NameKind.TENANT, tenant) or 0

    async def _audit(
        self, connection: Connection, action: str, author: Author | None, changes: Iterable[Change]
    ) -> None:
        """Write one audit row per tenant, inside the transaction of the change.

        Without an author or without changes, nothing is written.
        """
        if author is None:
            return
        for tenant, change, count in sum_up(author, changes):
            await connection.execute(
                *self._db.sql["add_audit"].bind(
                    tenant=tenant,
                    author=author.name,
                    action=action,
                    target=change.target,
                    count=count,
                    before=change.before,
                    after=change.after,
                    why=author.why,
                ),
            )
