"""Database drivers whose connections a submit accepts, behind one surface for tests."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mainspring import Mainspring
from mainspring.sdk.calls.options import PreparedCall
from mainspring.sdk.task import Submitter


class Driver(ABC):
    """A connection of an application, in a transaction."""

    connection: Any

    @abstractmethod
    async def execute(self, statement: str) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    async def submit(self, task: Submitter[..., Any], *args: object) -> Any:
        return await task.options(connection=self.connection).submit(*args)

    async def submit_many(self, app: Mainspring, calls: list[PreparedCall[Any]]) -> list[Any]:
        return [*await app.submit_many(calls, connection=self.connection)]


class Asyncpg(Driver):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")


class Psycopg(Driver):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class SqlAlchemy(Psycopg):
    async def execute(self, statement: str) -> None:
        await self.connection.execute(text(statement))


class Blocking(Driver):
    """A blocking driver. Each call runs on a thread, as in a web framework."""

    def __init__(self, connection: Any, statement: Callable[[str], Any]) -> None:
        self.connection = connection
        self._statement = statement

    async def execute(self, statement: str) -> None:
        await asyncio.to_thread(self.connection.execute, self._statement(statement))

    async def commit(self) -> None:
        await asyncio.to_thread(self.connection.commit)

    async def rollback(self) -> None:
        await asyncio.to_thread(self.connection.rollback)

    async def submit(self, task: Submitter[..., Any], *args: object) -> Any:
        return await asyncio.to_thread(task.options(connection=self.connection).sync.submit, *args)

    async def submit_many(self, app: Mainspring, calls: list[PreparedCall[Any]]) -> list[Any]:
        return [*await asyncio.to_thread(app.submit_many_sync, calls, connection=self.connection)]


DRIVERS = (
    "asyncpg",
    "asyncpg pool",
    "psycopg async",
    "psycopg",
    "sqlalchemy async session",
    "sqlalchemy async connection",
    "sqlalchemy session",
    "sqlalchemy connection",
)


@asynccontextmanager
async def driver(name: str, dsn: str) -> AsyncIterator[Driver]:
    """Connect and begin a transaction."""
    address = dsn.partition("://")[2]
    match name:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            # Many applications do this. It must not affect Mainspring.
            await connection.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
            await connection.execute("BEGIN")
            yield Asyncpg(connection)
            await connection.close()
        case "asyncpg pool":
            async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as lent:
                await lent.execute("BEGIN")
                yield Asyncpg(lent)
        case "psycopg async":
            async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as opened:
                yield Psycopg(opened)
        case "psycopg":
            with psycopg.connect(dsn) as blocking:
                yield Blocking(blocking, lambda statement: statement)
        case "sqlalchemy async session" | "sqlalchemy async connection":
            engine = create_async_engine(
                f"postgresql+{'asyncpg' if name.endswith('session') else 'psycopg'}://{address}"
            )
            async with AsyncSession(engine) if name.endswith("session") else engine.connect() as held:
                yield SqlAlchemy(held)
            await engine.dispose()
        case _:
            made = create_engine(f"postgresql+psycopg://{address}")
            with Session(made) if name.endswith("session") else made.connect() as kept:
                yield Blocking(kept, text)
            made.dispose()
