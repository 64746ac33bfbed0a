"""Connections to PostgreSQL that a test leaves to the next one in its process.

A new connection costs the server a process, and every statement is parsed and planned again on it. Together that takes
several times as long as a typical contract test.
"""

import asyncio
from collections import defaultdict

import asyncpg

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import Database, Pool


class KeptConnections:
    """Open pools by address and settings. Each is used by one store at a time."""

    def __init__(self) -> None:
        self._pools: defaultdict[str, list[Pool]] = defaultdict(list)
        self._connections: defaultdict[str, list[asyncpg.Connection[asyncpg.Record]]] = defaultdict(list)

    def lend_to(self, store: PostgresStore) -> None:
        """Let the store use a kept pool instead of opening one, and leave it open when the store closes."""
        database = store._database
        key = f"{database.dsn} {database._session} {database._connections}"
        open_pool = database.open

        async def open_() -> None:
            if self._pools[key]:
                database._pool = self._pools[key].pop()
            else:
                await open_pool()

        async def close() -> None:
            pool = await _give_back(database)
            if pool is not None:
                self._pools[key].append(pool)

        database.open = open_  # type: ignore[method-assign]
        database.close = close  # type: ignore[method-assign]

    def take(self, dsn: str) -> "asyncpg.Connection[asyncpg.Record] | None":
        """Return a connection that a harness has put here, if there is one."""
        kept = self._connections[dsn]
        return kept.pop() if kept else None

    async def put(self, dsn: str, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        if connection.is_closed() or connection.is_in_transaction():
            await connection.close()
        else:
            self._connections[dsn].append(connection)

    async def close(self) -> None:
        for pools in self._pools.values():
            await asyncio.gather(*(pool.close() for pool in pools))
        for connections in self._connections.values():
            await asyncio.gather(*(connection.close() for connection in connections))


async def _give_back(database: Database) -> "Pool | None":
    """Take the pool of a store that closes. Return it unless a call is still using one of its connections."""
    pool, database._pool = database._pool, None
    at_hand, database._at_hand = database._at_hand, None
    if pool is None:
        return None
    if at_hand is not None:
        await pool.release(at_hand)
    if database._releasing:
        await asyncio.wait(database._releasing)
    if pool.get_idle_size() == pool.get_size():
        return pool
    pool.terminate()
    return None
