"""A second connection to the database of a store, which holds rows while the store acts.

A call that must not wait is run by ``Rival.at_once``, one that must wait by ``Rival.waits``. Both decide by
``pg_blocking_pids``: nothing is measured in time.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from tests.support.kept_connections import KeptConnections
from tests.support.store_harness import PostgresHarness
from tests.support.waiting import eventually

Answer = TypeVar("Answer")

_BLOCKS = """
    SELECT EXISTS (SELECT FROM pg_stat_activity
                   WHERE datname = current_database() AND $1::int = ANY (pg_blocking_pids(pid)))
"""


class Rival:
    """Holds rows in an open transaction, and sees whether a session waits for it."""

    def __init__(self, connection: "asyncpg.Connection[Any]", watch: "asyncpg.Connection[Any]") -> None:
        self._connection = connection
        self._watch = watch

    async def hold(self, rows: str, *arguments: object, mode: str = "UPDATE") -> None:
        """Lock rows, such as ``run WHERE id = $1``, until ``release``."""
        await self.execute(f"SELECT 1 FROM {rows} FOR {mode}", *arguments)

    async def execute(self, statement: str, *arguments: object) -> None:
        """Run a statement that touches at least one row, in the open transaction."""
        if not self._connection.is_in_transaction():
            await self._connection.execute("BEGIN")
        status = await self._connection.execute(statement, *arguments)
        assert int(status.rpartition(" ")[2]) > 0, f"no row: {statement}"

    async def release(self) -> None:
        """Roll back, so that waiting statements continue."""
        await self._connection.execute("ROLLBACK")

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def blocks(self) -> bool:
        """Whether a session waits for a lock of this connection."""
        return bool(await self._watch.fetchval(_BLOCKS, self._connection.get_server_pid()))

    async def at_once(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the answer of a call, which must not wait for this connection."""
        task = asyncio.create_task(call)
        await self._until_decided(task)
        if not task.done():
            await self.release()
            await task
            pytest.fail("the call waits for a lock")
        return await task

    async def waits(self, call: Coroutine[Any, Any, Answer]) -> "asyncio.Task[Answer]":
        """Start a call, which must wait for this connection, and return its task."""
        task = asyncio.create_task(call)
        await self._until_decided(task)
        assert not task.done(), f"the call does not wait: {task}"
        return task

    async def _until_decided(self, task: "asyncio.Task[Answer]") -> None:
        async def decided() -> bool:
            return task.done() or await self.blocks()

        await eventually(decided)

    async def is_locked(self, rows: str, *arguments: object) -> bool:
        """Whether another session than this one holds a row."""
        try:
            async with self._watch.transaction():
                found = await self._watch.fetch(f"SELECT 1 FROM {rows} FOR UPDATE NOWAIT", *arguments)
        except asyncpg.LockNotAvailableError:
            return True
        assert found, f"no row: {rows}"
        return False


@asynccontextmanager
async def connect_rival(harness: PostgresHarness) -> AsyncIterator[Rival]:
    connection = await asyncpg.connect(harness._dsn, server_settings={"search_path": harness._schema})
    try:
        yield Rival(connection, harness._connection)
    finally:
        await connection.close()


@asynccontextmanager
async def open_frozen_store(dsn: str, kept: KeptConnections) -> AsyncIterator[PostgresHarness]:
    """A store whose clock only the test moves. At the end the sweep must find nothing."""
    harness = PostgresHarness(dsn, kept)
    await harness.open()
    try:
        await harness.freeze_clock()
        yield harness
        assert await harness.store.sweep(1_000) == 0
    finally:
        await harness.close()
