"""The oldest queued run on PostgreSQL, over a connection of its own."""

from typing import Self

import asyncpg

from bench.sizes import QUEUE


class PostgresHead:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
        self._connection = connection
        self._oldest = (
            f"SELECT id FROM {schema}.run WHERE claim_group = 0 AND state = 3 "
            f"AND queue = (SELECT n.id FROM {schema}.name n WHERE n.kind = 3 AND n.name = $1) "
            "ORDER BY rank, id LIMIT 1"
        )

    @classmethod
    async def open(cls, dsn: str, schema: str) -> Self:
        return cls(await asyncpg.connect(dsn), schema)

    async def oldest(self) -> str | None:
        found = await self._connection.fetchval(self._oldest, QUEUE)
        return None if found is None else found.hex

    async def close(self) -> None:
        await self._connection.close()
