"""What the parts of the store share: the database, the names, and the release of keys."""

from collections.abc import Iterable, Sequence

import asyncpg

from mainspring.adapters.store.postgres.database import Connection, Database
from mainspring.adapters.store.postgres.names import Names
from mainspring.adapters.store.postgres.rows import Policies
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import shard_of


class Part:
    shards: int
    _db: Database
    _names: Names
    _policies: Policies
    _wakeups: PostgresWakeups | None

    def _shards_of(self, identifiers: Sequence[str]) -> list[int]:
        """The shards that ids carry. Nobody would ever look at one that the store does not have."""
        shards = [shard_of(identifier) for identifier in identifiers]
        if shards and max(shards) >= self.shards:
            shard, identifier = max(zip(shards, identifiers, strict=True))
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shards

    async def _let_go(self, connection: Connection, rows: Iterable[asyncpg.Record]) -> None:
        """After runs have ended, inside the same transaction: queue whoever waited for their keys, restart delays."""
        gates = sorted({row["gate"] for row in rows if row["gate"] is not None})
        if gates:
            await self._open_gates(connection, gates)
        jobs = sorted({row["delayed_job"] for row in rows if row["delayed_job"] is not None})
        if jobs:
            await connection.execute(self._db.sql["end_delay"], jobs)

    async def _open_gates(self, connection: Connection, gates: list[int]) -> list[asyncpg.Record]:
        # Locked by a statement of its own: the next one then sees whatever a submit committed while it held the lock.
        await connection.fetch(self._db.sql["lock_held_gates"], gates)
        return await connection.fetch(self._db.sql["let_go"], gates)
